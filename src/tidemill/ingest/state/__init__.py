"""The upsert state: which row each key of a collection has now, by key bucket, cached on the worker's disk.

Called inside tasks by `ingest.task`: `prepare` brings the buckets of a collection to its `upper`, from what
the disk has, or from the collection itself; `BucketState.apply` turns the records of a time into updates;
`BucketState.commit` keeps what came out for the next tick, wherever it runs. Promises: the answer is the same
whatever the cache holds, lacks or loses meanwhile; a tick costs what changes, not what is there; memory is
bounded by a tick's records, and while hydrating by `fill.SPILL_BYTES` and a bucket.

A state is a list of sorted runs (`run`), newest first, that a manifest (`manifest`) names; `merge` keeps the
list short; `store` owns the folder; `fill` reads the collection.
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
