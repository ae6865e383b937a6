"""The upsert state: the current row of each key of a collection, by key bucket, cached on the worker's disk.

`ingest.task` calls it inside tasks. `prepare` brings the buckets of a collection to its `upper`, from the
disk or from the collection. `BucketState.apply` turns the records of a time into updates.
`BucketState.commit` keeps the result for the next tick, wherever it runs. Promises: the result is the same
whatever the cache holds, lacks or loses meanwhile. A tick costs what changes, not the size of the collection.
Memory is bounded by a tick's records, and while hydrating by `fill.SPILL_BYTES` and a bucket.

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
