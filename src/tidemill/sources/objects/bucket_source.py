"""FROM S3: the objects of a bucket as rows. An object is there as a whole, and never changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.decode.contract import legible
from tidemill.sources.aws_role import frozen
from tidemill.sources.objects.bucket import CALLED, BucketListing, BucketStore
from tidemill.sources.objects.notifications import NotificationQueue
from tidemill.sources.objects.patterns import folder_of, is_shown, pattern
from tidemill.sources.objects.source import ObjectSource
from tidemill.sources.objects.store import ObjectStat, Stamp, changed


class BucketSource(ObjectSource):
    def __init__(self, definition: Mapping[str, Any]) -> None:
        bucket = str(definition["bucket"])
        store = BucketStore(bucket, frozen(definition["connection"]))
        queue: str | None = definition.get("queue")
        told = None if queue is None else NotificationQueue(queue, bucket, dict(store.options))
        listing = listing_of(store, definition.get("matching"), told)
        super().__init__(definition, store, listing, f'bucket "{legible(bucket)}"')

    def _end(self, key: str, stat: ObjectStat, bound: int, stamp: Stamp | None) -> int:
        if bound and stamp is not None and (stat.tag, stat.size) != (stamp.print, stamp.size):
            was, now = (f"{size} bytes and the ETag {tag}" for tag, size in _told(stat, stamp))
            raise changed(CALLED, key, f"It had {was}; now it has {now}.")
        return stat.size

    def _print(self, key: str, upper: int, stat: ObjectStat | None) -> str:
        return "" if stat is None else stat.tag


def _told(stat: ObjectStat, stamp: Stamp) -> tuple[tuple[str, int], tuple[str, int]]:
    return (stamp.print, stamp.size), (stat.tag, stat.size)


def listing_of(store: BucketStore, glob: str | None, queue: NotificationQueue | None = None) -> BucketListing:
    wanted = None if glob is None else pattern(glob)
    prefix = "" if glob is None else folder_of(glob)
    return BucketListing(
        store,
        prefix,
        lambda key: is_shown(key) and (wanted is None or wanted.fullmatch(key) is not None),
        queue,
    )
