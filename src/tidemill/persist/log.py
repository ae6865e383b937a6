"""Log reader: reads the newest checkpoint of a shard and every entry after it, strictly.

Called when a shard is opened, and when a writer learns of commits by others. delta-rs writes the checkpoints.
They are read here with Arrow, because deltalake does not expose tombstones and the sweeper needs them. A
missing, truncated or impossible entry raises `DataCorrupted` with the name of the file. It never shortens the
history silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import DataCorrupted, TidemillError, UndefinedObject
from tidemill.persist.blob import BlobInfo, BlobMissing, Blobs
from tidemill.persist.entry import Actions, Entry, decode, read_action
from tidemill.persist.state import ShardState, state_of

_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

# A listing that races with another process's clean-up may name entries that are gone a moment later; the
# second look starts from the newer checkpoint that allowed the clean-up.
_LOOKS = 3


class ShardMissing(UndefinedObject):
    """No shard has this id."""

    sqlstate = "58P01"


def shard_folder(shard_id: str) -> str:
    """Its Delta table, within the data directory."""
    return f"shards/{shard_id}"


def log_folder(shard_id: str) -> str:
    return f"{shard_folder(shard_id)}/_delta_log"


def entry_path(shard_id: str, version: int) -> str:
    return f"{log_folder(shard_id)}/{version:020d}.json"


def checkpoint_path(shard_id: str, version: int) -> str:
    return f"{log_folder(shard_id)}/{version:020d}.checkpoint.parquet"


def hint_path(shard_id: str) -> str:
    return f"{log_folder(shard_id)}/_last_checkpoint"


@dataclass(slots=True)
class LogListing:
    """The log's files by version."""

    entries: dict[int, BlobInfo] = field(default_factory=dict[int, BlobInfo])
    checkpoints: dict[int, BlobInfo] = field(default_factory=dict[int, BlobInfo])

    @property
    def empty(self) -> bool:
        return not self.entries and not self.checkpoints


def list_log(blobs: Blobs, shard_id: str) -> LogListing:
    listing = LogListing()
    for info in blobs.list(log_folder(shard_id)):
        name = info.path.rpartition("/")[2]
        if match := _ENTRY.fullmatch(name):
            listing.entries[int(match[1])] = info
        elif match := _CHECKPOINT.fullmatch(name):
            listing.checkpoints[int(match[1])] = info
    return listing


@dataclass(frozen=True, slots=True)
class Loaded:
    """A log read whole. `checkpoint` is the version it started from (None: entry 0); `broken` are
    checkpoints that could not be read and are not needed."""

    state: ShardState
    checkpoint: int | None
    broken: tuple[int, ...]


def load(blobs: Blobs, shard_id: str) -> Loaded:
    """Read the whole log; raises ShardMissing or DataCorrupted."""
    for look in range(_LOOKS):
        try:
            return _load(blobs, shard_id, list_log(blobs, shard_id))
        except DataCorrupted as error:
            if look == _LOOKS - 1 or not isinstance(error.__cause__, BlobMissing):
                raise
    raise AssertionError("unreachable")


def _load(blobs: Blobs, shard_id: str, listing: LogListing) -> Loaded:
    if listing.empty:
        raise ShardMissing(f'shard "{shard_id}" does not exist')
    last = max([*listing.entries, *listing.checkpoints])
    broken: list[int] = []
    unreadable: TidemillError | None = None
    for version in sorted(listing.checkpoints, reverse=True):
        try:
            state = read_checkpoint(blobs, shard_id, version)
        except DataCorrupted as error:
            # A power cut may leave a checkpoint incomplete before its sync. The entries after it are cleaned
            # only after the sync.
            broken.append(version)
            unreadable = unreadable or error
            continue
        _follow(blobs, shard_id, state, range(version + 1, last + 1), listing)
        return Loaded(state, version, tuple(broken))
    if 0 not in listing.entries:
        raise unreadable or _missing(entry_path(shard_id, 0))
    state = _first(blobs, shard_id)
    _follow(blobs, shard_id, state, range(1, last + 1), listing)
    return Loaded(state, None, tuple(broken))


def _first(blobs: Blobs, shard_id: str) -> ShardState:
    path = entry_path(shard_id, 0)
    entry = decode(blobs.get(path), 0, path)
    actions = Actions(upper=entry.upper, since=entry.since, epoch=entry.epoch, metadata=entry.metadata)
    return state_of(0, actions, path)


def _follow(blobs: Blobs, shard_id: str, state: ShardState, versions: range, listing: LogListing) -> None:
    for version in versions:
        if version not in listing.entries:
            raise _missing(entry_path(shard_id, version))
    paths = [entry_path(shard_id, version) for version in versions]
    for version, path, data in zip(versions, paths, _get_all(blobs, paths), strict=True):
        state.apply(version, decode(data, version, path), path)


def _get_all(blobs: Blobs, paths: Sequence[str]) -> list[bytes]:
    try:
        return blobs.get_many(paths)
    except BlobMissing as error:
        raise DataCorrupted("a log entry vanished", detail=error.primary) from error


def read_entry(blobs: Blobs, shard_id: str, version: int) -> Entry | None:
    """One entry, or None where there is none (yet, or any more: see `cleaned_past`)."""
    path = entry_path(shard_id, version)
    try:
        data = blobs.get(path)
    except BlobMissing:
        return None
    return decode(data, version, path)


def cleaned_past(blobs: Blobs, shard_id: str, version: int) -> bool:
    """Whether a checkpoint at or past `version` exists: only then can the entry of that version have been
    cleaned away. One small read: clean-up begins only after the hint that names the checkpoint is durable."""
    try:
        hint = json.loads(blobs.get(hint_path(shard_id)))
        return int(hint["version"]) >= version
    except BlobMissing:
        return False
    except (ValueError, KeyError, TypeError):
        # A torn hint (power cut): the listing knows.
        return any(v >= version for v in list_log(blobs, shard_id).checkpoints)


def read_checkpoint(blobs: Blobs, shard_id: str, version: int) -> ShardState:
    """The state at a checkpoint."""
    path = checkpoint_path(shard_id, version)
    try:
        source = pa.BufferReader(blobs.get(path))
        table = pq.ParquetFile(source).read(["add", "remove", "metaData", "protocol", "txn"])
        actions = Actions()
        for row in table.to_pylist():
            if any(value is not None for value in row.values()):
                read_action(row, actions)
        return state_of(version, actions, path)
    except (pa.ArrowException, BlobMissing, ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(
            f'checkpoint "{path}" is corrupt',
            detail=str(error),
            hint="The data directory is damaged: restore the file.",
        ) from error


def check_reached(shard_id: str, version: int, expected: int | None) -> None:
    """Raises when a log that ends at `version` (-1: does not exist) is known to have reached a later one: its
    newest entries are missing, which nothing else reveals. Call before any write: a new entry would take the
    name of a missing one."""
    if expected is not None and version < expected:
        path = entry_path(shard_id, version + 1)
        raise _missing(
            path, f"The log of shard {shard_id} ends at version {version}; it had reached {expected}."
        )


def _missing(path: str, detail: str | None = None) -> DataCorrupted:
    return DataCorrupted(
        f'log entry "{path}" is missing',
        detail=detail,
        hint="The data directory is damaged: restore the file, or the whole directory from a backup.",
    )
