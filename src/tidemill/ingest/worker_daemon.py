"""The process that Spark forks its Python workers from: it has loaded what their tasks need.

Spark starts it once per executor, by the name that `warm` has for it. A plain worker loads a second's worth
of libraries in its first task, each for itself: the first records of a source would wait for that, and so
would every tick after a worker was killed. Forked from here they share those pages.

Only loads. Whatever a library does when it is used, threads and connections above all, would be broken in the
forked copies: a lock that another thread holds at the fork is held there for ever.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark.daemon import manager

# What tasks use, each with all that it loads in turn.
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
    # Its threads would not be in the forked copies, which are asked to keep to one core each anyhow.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in LOADED:
        importlib.import_module(name)
    # What is here is here for ever: no collection in a worker is to visit it, which would copy its pages.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
