"""What a backup says of itself, and the folder that many of them share.

    backups/<name>.json          the manifest; the backup exists since this file does
    backups/<name>-<nonce>.zip   the logs, cut, and the texts of secrets
    shards/<shard>/parts/...     parts, under the names that they have in the data directory

A part's name is never used again, for whatever contents, so backups share the parts that they have in common.
The first line of a manifest is the checksum of the rest. Names sort by age.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.errors import DataCorrupted, TidemillError, UndefinedObject
from tidemill.persist.blob import BlobMissing, Blobs

FORMAT = 1
FOLDER = "backups"


class BackupDamaged(DataCorrupted):
    """A file of the backup is missing, or is not what was written."""


class BackupMissing(UndefinedObject):
    sqlstate = "58P01"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file as it must be."""

    bytes: int
    sha256: str

    @staticmethod
    def of(data: bytes) -> Stored:
        return Stored(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Manifest:
    """`made`: when, in milliseconds. `directory` is the id of the data directory. `epoch` and `stamp` are the
    moment (`cut.Moment`). `rest` is the path of the archive of everything but parts; `parts` is by their
    paths."""

    name: str
    made: int
    directory: str
    epoch: int
    stamp: int
    shards: int
    rest: str
    archive: Stored
    parts: Mapping[str, Stored] = field(default_factory=dict[str, Stored])
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        return self.archive.bytes + sum(part.bytes for part in self.parts.values())

    def encode(self) -> bytes:
        body = json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def manifest_path(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def names(blobs: Blobs) -> list[str]:
    """The backups of the folder, oldest first."""
    found = [info.path.removeprefix(f"{FOLDER}/") for info in blobs.list(FOLDER)]
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def read_manifest(blobs: Blobs, name: str) -> Manifest:
    """Raises BackupMissing, BackupDamaged, and an error for formats of later versions."""
    path = manifest_path(name)
    try:
        data = blobs.get(path)
    except BlobMissing:
        raise BackupMissing(f'there is no backup "{name}" in "{blobs.url}"') from None
    checksum, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise _damaged(blobs, path, "Its checksum does not fit.")
    told: dict[str, Any] = json.loads(body)
    if told["format"] != FORMAT:
        raise TidemillError(
            f'backup "{name}" has format {told["format"]}, this version of tidemill reads format {FORMAT}',
            hint="Restore it with a newer version of tidemill.",
            sqlstate="F0000",
        )
    told["parts"] = {path: Stored(**stored) for path, stored in told["parts"].items()}
    told["archive"] = Stored(**told["archive"])
    return Manifest(**told)


def read_stored(blobs: Blobs, path: str, stored: Stored) -> bytes:
    """A file of a backup. Raises BackupDamaged where it is not what it was."""
    try:
        data = blobs.get(path)
    except BlobMissing:
        raise _damaged(blobs, path, "It is missing.") from None
    if len(data) != stored.bytes:
        raise _damaged(blobs, path, f"It has {len(data)} bytes, it had {stored.bytes}.")
    if Stored.of(data) != stored:
        raise _damaged(blobs, path, "Its checksum does not fit.")
    return data


def known_parts(blobs: Blobs) -> dict[str, Stored]:
    """The parts of the last backup whose manifest can be read, as far as their files are there. Older backups
    have no others that are still used: what a log does not name any more it never names again."""
    there = {info.path: info.size for info in blobs.list("shards")}
    for name in reversed(names(blobs)):
        try:
            parts = read_manifest(blobs, name).parts
        except BackupDamaged:
            continue
        return {path: stored for path, stored in parts.items() if there.get(path) == stored.bytes}
    return {}


def prune(blobs: Blobs, keep: int) -> list[str]:
    """Delete all backups but the last `keep`, and the files that no backup has. The manifests go first: a
    backup is there as a whole, or not."""
    there = names(blobs)
    gone = there[: max(0, len(there) - keep)]
    left = [read_manifest(blobs, name) for name in there[len(gone) :]]
    blobs.delete([manifest_path(name) for name in gone])
    used = {manifest.rest for manifest in left} | {part for m in left for part in m.parts}
    blobs.delete(list(_unused(blobs, used)))
    return gone


def _unused(blobs: Blobs, used: set[str]) -> Iterable[str]:
    for folder in (FOLDER, "shards"):
        for info in blobs.list(folder):
            if info.path not in used and not (folder == FOLDER and info.path.endswith(".json")):
                yield info.path


def _damaged(blobs: Blobs, path: str, detail: str) -> BackupDamaged:
    return BackupDamaged(
        f'file "{path}" of the backup is damaged',
        detail=f'{detail} The backups are in "{blobs.url}".',
        hint="Restore an earlier backup: `tidemill restore --list` shows those there are.",
    )
