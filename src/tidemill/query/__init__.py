"""SELECT at a time, on Spark.

The engine calls this package on worker threads. `SparkHost` is the server's one Spark session. `Input` (a
snapshot) and `ConstantInput` are what a query reads. `run` returns a stream of Arrow batches that can be
cancelled; `collect` returns a table. The package knows shards (`persist`) and Spark SQL text. It does not
know names, sessions or transactions.

Promises: a relation is exactly the collection's multiset at the snapshot's time (`read`). Named limits bound
memory (`read.Limits`, `run`). A failure affects only its query and is a `TidemillError`. A dead JVM is
detected, reported and can be restarted.
"""

from tidemill.query.job import Job
from tidemill.query.multiset import NegativeMultiplicity, SourceError
from tidemill.query.read import ConstantInput, Input, Limits
from tidemill.query.run import ResultStream, collect, run
from tidemill.query.spark import SparkHost

__all__ = [
    "ConstantInput",
    "Input",
    "Job",
    "Limits",
    "NegativeMultiplicity",
    "ResultStream",
    "SourceError",
    "SparkHost",
    "collect",
    "run",
]
