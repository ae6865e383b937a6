"""The process from which Spark forks its Python workers, with their libraries already loaded.

Spark starts it once per executor, by the name that `warm` gives it. Without it, each worker loads its
libraries in its first task, which takes about a second. This would delay the first records of a source, and
every tick after a worker was killed. Forked workers share the loaded pages.

It only imports. Anything that a library does in use, above all threads and connections, would be broken in
the forked copies: a lock that another thread holds at the fork is never released there.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark.daemon import manager

# The modules that tasks use, with everything that they load.
LOADED = (
    "pyspark.worker",
    "pyarrow.parquet",
    "tidemill.ingest.compact_task",
    "tidemill.ingest.keyed",
    "tidemill.ingest.task",
    "tidemill.sources.generators",
    "tidemill.sources.kafka.reader",
    "tidemill.sql.functions.python",
)


def main() -> None:
    # Its threads would not exist in the forked copies, which use one core each anyway.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in LOADED:
        importlib.import_module(name)
    # Make loaded objects permanent: garbage collection in a worker would visit them, and so copy their pages.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
