"""Taking a backup.

Order: the cut, its parts, its logs and secrets, the manifest. The manifest is the commit: until it is there,
nothing of the backup is seen, and what was copied is used by the next one. Parts that the server deletes
meanwhile (they stay for an hour after they were replaced) make another cut necessary.
"""

from __future__ import annotations

import datetime
import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill import failpoints
from tidemill.backup.cut import AtCut, Cut, Moved, find_cut
from tidemill.backup.manifest import FOLDER, Manifest, Stored, known_parts, manifest_path, names
from tidemill.backup.secret_files import LOGS, SECRETS, secrets_at
from tidemill.errors import DataCorrupted, TidemillError
from tidemill.persist.blob import BlobMissing, Blobs
from tidemill.persist.formats import check
from tidemill.persist.lease import CLOCK_SHARD
from tidemill.persist.log import Loaded, checkpoint_path, entry_path, hint_path, load
from tidemill.persist.part import part_path
from tidemill.persist.shard import Shard
from tidemill.persist.txns.record import TXNS_SHARD, unapplied

FP_PART = failpoints.register("backup.part", "a part is copied, the backup is not complete")
FP_ARCHIVE = failpoints.register("backup.archive", "all files of a backup are there, its manifest is not")

# A cut is made again when files of it went away: they stay for at least five minutes (those of tables for an
# hour), and each try copies only what the ones before have not.
TRIES = 5
# Parts that are copied at once; each is in memory meanwhile, some tens of megabytes.
COPIES = 4

# Told what is done, and of how much, in bytes.
Progress = Callable[[int, int], None]


class NotADirectory(TidemillError):
    sqlstate = "58P01"


@dataclass(frozen=True, slots=True)
class Taken:
    """`copied` are the bytes that no earlier backup had."""

    manifest: Manifest
    copied: int


def take(source: Blobs, target: Blobs, secrets: Path | None, progress: Progress = lambda *_: None) -> Taken:
    """Back the data directory up into the folder. The caller has locked the folder. `secrets` is the folder
    of the texts of secrets, as `catalog.secrets` has it."""
    for tries in range(1, TRIES + 1):
        try:
            return _take(source, target, secrets, progress)
        except (BlobMissing, DataCorrupted) as error:
            missing = error if isinstance(error, BlobMissing) else error.__cause__
            # Damage does not go away; what a server deletes is not asked for by the next cut.
            if tries == TRIES or not isinstance(missing, BlobMissing):
                raise
    raise AssertionError("unreachable")


def _take(source: Blobs, target: Blobs, secrets: Path | None, progress: Progress) -> Taken:
    cut = find_cut(source)
    if CLOCK_SHARD not in cut.versions:
        raise NotADirectory(
            f'"{source.url}" is no data directory', detail="There is no log of a clock in it."
        )
    past = AtCut(source, cut)
    clock = Shard.open(past, CLOCK_SHARD, epoch=None)
    check(clock)
    loaded = {shard_id: load(past, shard_id) for shard_id in cut.versions}
    parts = {
        part_path(shard_id, part): part.bytes
        for shard_id, shard in loaded.items()
        for part in shard.state.parts.values()
    }
    parts |= _pending(past, loaded)
    stored, copied = _copy_parts(past, target, parts, progress)
    archive = _archive(past, cut, loaded, secrets)
    name = _name(target)
    rest = f"{FOLDER}/{name}-{uuid.uuid4().hex[:8]}.zip"
    target.put(rest, archive)
    failpoints.hit(FP_ARCHIVE)
    manifest = Manifest(
        name=name,
        made=time.time_ns() // 1_000_000,
        directory=clock.state.metadata.table_id,
        epoch=cut.moment.epoch,
        stamp=cut.moment.stamp,
        shards=len(loaded),
        rest=rest,
        archive=Stored.of(archive),
        parts=stored,
    )
    target.put_if_absent(manifest_path(name), manifest.encode())
    return Taken(manifest, copied + len(archive))


def _pending(past: AtCut, loaded: Mapping[str, Loaded]) -> dict[str, int]:
    """The parts of transactions that the logs of their shards do not name yet."""
    txns = Shard.open(past, TXNS_SHARD, epoch=None) if TXNS_SHARD in loaded else None
    if txns is None or not txns.upper:
        return {}
    with txns.snapshot(txns.upper - 1) as snapshot:
        rows = unapplied(snapshot.read())
    # Those of shards that were dropped are not needed, and may be gone.
    return {part_path(row.shard_id, row.part): row.part.bytes for row in rows if row.shard_id in loaded}


def _copy_parts(
    source: Blobs, target: Blobs, parts: Mapping[str, int], progress: Progress
) -> tuple[dict[str, Stored], int]:
    known = known_parts(target)
    stored = {path: known[path] for path in parts if path in known}
    new = [path for path in parts if path not in known]
    total, done = sum(parts.values()), sum(parts[path] for path in stored)
    progress(done, total)
    # Left by a backup that was not completed, perhaps in the middle of a file.
    left = {info.path for info in target.list("shards")} if new else set[str]()

    def copy(path: str) -> tuple[str, Stored]:
        data = source.get(path)
        if len(data) != parts[path]:
            raise DataCorrupted(
                f'file "{path}" is damaged',
                detail=f"It has {len(data)} bytes, it had {parts[path]}.",
                hint="`tidemill inspect` shows what else is; restore the data directory from a backup.",
            )
        made = Stored.of(data)
        if path in left:
            if Stored.of(target.get(path)) == made:
                return path, made
            target.delete([path])
        target.put(path, data)
        failpoints.hit(FP_PART)
        return path, made

    copied = 0
    with ThreadPoolExecutor(COPIES, thread_name_prefix="backup") as pool:
        for path, made in _in_order(pool, copy, new):
            stored[path] = made
            copied += made.bytes
            progress(done + copied, total)
    return stored, copied


def _in_order(
    pool: ThreadPoolExecutor, copy: Callable[[str], tuple[str, Stored]], paths: list[str]
) -> Iterator[tuple[str, Stored]]:
    try:
        yield from pool.map(copy, paths)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def _archive(past: AtCut, cut: Cut, loaded: Mapping[str, Loaded], secrets: Path | None) -> bytes:
    """The logs from the checkpoints that they are read from, and the texts of secrets that the catalog of the
    cut has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for shard_id, shard in loaded.items():
            first = 0 if shard.checkpoint is None else shard.checkpoint
            if shard.checkpoint is not None:
                path = checkpoint_path(shard_id, shard.checkpoint)
                data = past.get(path)
                archive.writestr(f"{LOGS}/{path}", data)
                archive.writestr(f"{LOGS}/{hint_path(shard_id)}", _hint(shard.checkpoint, data))
            listed = cut.listings[shard_id].entries
            # The checkpoint's own entry too: its stamp is the shard's last, where none follows.
            wanted = [v for v in range(first, cut.versions[shard_id] + 1) if v > first or v in listed]
            paths = [entry_path(shard_id, version) for version in wanted]
            for path, data in zip(paths, past.get_many(paths), strict=True):
                archive.writestr(f"{LOGS}/{path}", data)
        for name, data in secrets_at(past, secrets):
            archive.writestr(f"{SECRETS}/{name}", data)
    return buffer.getvalue()


def _hint(version: int, checkpoint: bytes) -> str:
    """The file that names the checkpoint: without it the first entry would pass for one that never was."""
    rows = pq.ParquetFile(pa.BufferReader(checkpoint)).metadata.num_rows
    return json.dumps({"version": version, "size": rows})


def _name(target: Blobs) -> str:
    """By the time, and after all others in the folder: the machine's clock may have been set back."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    there = names(target)
    last = there[-1] if there else ""
    if now > last:
        return now
    base, _, number = last.partition(".")
    return f"{base}.{int(number or 0) + 1:04d}"


__all__ = ["COPIES", "TRIES", "Moved", "NotADirectory", "Progress", "Taken", "take"]
