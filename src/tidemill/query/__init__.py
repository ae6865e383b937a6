"""SELECT at a time, on Spark.

The engine calls it, on worker threads: `SparkHost` is the server's one Spark session; `Input` (a snapshot)
and `ConstantInput` are what a query reads; `run` gives a stream of Arrow batches that can be cancelled,
`collect` a table. It knows shards (`persist`) and Spark SQL text, and nothing of names, sessions or
transactions.

Promises: a relation is exactly the collection's multiset at the snapshot's time (`read`); memory is bounded
by named limits (`read.Limits`, `run`); a failure has the scope of its query and is a `TidemillError`; a dead
JVM is noticed, reported and can be started again.
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
