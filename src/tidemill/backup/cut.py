"""One moment of a directory that is being written: the version of each log at it.

A server commits to hundreds of logs, one entry at a time, and stamps every entry with a number that grows
from entry to entry, whatever the machine's clock does (`persist.committer`); the epoch tells one server's
stamps from the next one's. The cut is everything up to one (epoch, stamp). It is closed under "was durable
before": an entry is stamped after all that it builds on is durable, so what it builds on has a smaller stamp,
and was there when its log was listed, because the logs are listed after the stamp was seen in the directory.
An entry that is under way while its log is listed may be left out. Then whatever builds on it has a greater
stamp.

So the cut is a state in which a power cut could have left the directory, and a server opens it as after one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.persist.blob import BlobInfo, BlobMissing, Blobs
from tidemill.persist.log import (
    LogListing,
    checkpoint_path,
    entry_path,
    hint_path,
    list_log,
    log_folder,
    read_entry,
)

ShardId = str


class Moved(BlobMissing):
    """The server has deleted what a cut needs: it is to be made again, later."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Compares as entries were stamped."""

    epoch: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Cut:
    moment: Moment
    # The last version of each log that belongs to it, and the log's files as they were listed.
    versions: Mapping[ShardId, int] = field(default_factory=dict[ShardId, int])
    listings: Mapping[ShardId, LogListing] = field(default_factory=dict[ShardId, LogListing])


def find_cut(blobs: Blobs) -> Cut:
    """A cut with every entry that is durable when it is called. Raises Moved."""
    logged: dict[ShardId, Moment] = {}
    for shard_id in blobs.folders("shards"):
        entries = list_log(blobs, shard_id).entries
        if entries:
            logged[shard_id] = _moment(blobs, shard_id, max(entries))
    last = max(logged.values(), default=Moment(0, 0))
    versions: dict[ShardId, int] = {}
    listings: dict[ShardId, LogListing] = {}
    # Shards that were created meanwhile, too: they may have been stamped before `last`.
    for shard_id in sorted({*logged, *blobs.folders("shards")}):
        listing = list_log(blobs, shard_id)
        if listing.empty and shard_id in logged:
            raise Moved(f"shard {shard_id} was dropped")
        version = _version_at(blobs, shard_id, listing, last)
        if version is not None:
            versions[shard_id], listings[shard_id] = version, listing
    return Cut(last, versions, listings)


def _moment(blobs: Blobs, shard_id: ShardId, version: int) -> Moment:
    entry = read_entry(blobs, shard_id, version)
    if entry is None or entry.epoch is None:
        raise Moved(f"version {version} of the log of shard {shard_id} is gone")
    return Moment(entry.epoch, entry.timestamp)


def _version_at(blobs: Blobs, shard_id: ShardId, listing: LogListing, last: Moment) -> int | None:
    for version in sorted(listing.entries, reverse=True):
        if _moment(blobs, shard_id, version) <= last:
            return version
    if listing.entries and min(listing.entries) > 0:
        raise Moved(f"the log of shard {shard_id} was cleaned")
    # Created later; or, without any entry, whole in its checkpoint.
    return None if listing.entries or not listing.checkpoints else max(listing.checkpoints)


class AtCut:
    """The store as it was at a cut: `Blobs` without writing."""

    def __init__(self, blobs: Blobs, cut: Cut) -> None:
        self._blobs = blobs
        self._cut = cut
        self._logs = {log_folder(shard_id): listing for shard_id, listing in cut.listings.items()}
        self._later = {
            path
            for shard_id, listing in cut.listings.items()
            for path in self._after(shard_id, listing, cut.versions[shard_id])
        }

    @staticmethod
    def _after(shard_id: ShardId, listing: LogListing, version: int) -> list[str]:
        # The next entry also where it was not listed yet: whoever follows the log asks for it.
        entries = [v for v in listing.entries if v > version]
        found = [entry_path(shard_id, v) for v in {*entries, version + 1}]
        found += [checkpoint_path(shard_id, v) for v in listing.checkpoints if v > version]
        return [*found, hint_path(shard_id)]

    @property
    def url(self) -> str:
        return self._blobs.url

    @property
    def overlap(self) -> int:
        return self._blobs.overlap

    def get(self, path: str) -> bytes:
        if path in self._later:
            raise BlobMissing(f'"{path}" is later than the backup')
        return self._blobs.get(path)

    def get_many(self, paths: Sequence[str]) -> list[bytes]:
        if any(path in self._later for path in paths):
            raise BlobMissing("a file is later than the backup")
        return self._blobs.get_many(paths)

    def open(self, path: str, expected: int) -> pa.NativeFile:
        return self._blobs.open(path, expected)

    def size(self, path: str) -> int:
        return self._blobs.size(path)

    def list(self, prefix: str) -> list[BlobInfo]:
        """Of a shard's log: its files of the cut."""
        listing = self._logs.get(prefix)
        if listing is None:
            return []
        files = [*listing.entries.values(), *listing.checkpoints.values()]
        return sorted((f for f in files if f.path not in self._later), key=lambda f: f.path)

    def folders(self, prefix: str) -> list[str]:
        return sorted(self._cut.versions) if prefix == "shards" else []

    def put(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        raise _read_only()

    def put_if_absent(self, path: str, data: bytes) -> None:
        raise _read_only()

    def delete(self, paths: Sequence[str]) -> None:
        raise _read_only()

    def delete_prefix(self, prefix: str) -> None:
        raise _read_only()

    def tidy(self, prefix: str, older_than: float) -> int:
        raise _read_only()

    def sync(self, paths: Sequence[str]) -> None:
        raise _read_only()

    def table_uri(self, path: str) -> tuple[str, dict[str, str]]:
        raise _read_only()


def _read_only() -> Internal:
    return Internal("a backup does not write to what it backs up")
