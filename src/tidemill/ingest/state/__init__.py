"""The upsert state: the current row of each key of a collection, by key bucket, cached on the worker's disk.

`ingest.task` calls it inside tasks. `prepare` advances the buckets of a collection to its `upper`, from the
disk or from the collection. `BucketState.apply` turns the records of a time into updates.
`BucketState.commit` stores the result for the next tick, which may run in any process. Promises: the result
does not depend on the contents of the cache, nor on files that are lost. The cost of a tick depends on its
changes, not on the size of the collection. Memory is bounded by the records of a tick, and while hydrating by
`fill.SPILL_BYTES` and one bucket.

A state is a list of sorted runs (`run`), newest first, named by a manifest (`manifest`). `merge` keeps the
list short, `store` owns the folder, `fill` reads the collection.
"""

from tidemill.ingest.state.bucket import BucketState
from tidemill.ingest.state.fill import History, KeyNotUnique, PreparedFill, catch_up, hydrate, prepare
from tidemill.ingest.state.store import StateStore, shared

__all__ = [
    "BucketState",
    "History",
    "KeyNotUnique",
    "PreparedFill",
    "StateStore",
    "catch_up",
    "hydrate",
    "prepare",
    "shared",
]
