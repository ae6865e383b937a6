"""Restoring a backup into a new data directory.

Order: everything is checked, then parts, secrets and logs are written, the log of the clock last and its
beginning at the very end: a directory that was not restored to its end has no readable clock beside other
logs, which a server refuses as damage.

A restored directory has another history from the moment of the backup on. What outside of it may be of the
lost one must not be taken for its own: its clock says so (`persist.history`).
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemill import failpoints
from tidemill.backup.manifest import BackupMissing, Manifest, Stored, names, read_manifest, read_stored
from tidemill.backup.secret_files import LOGS, SECRETS
from tidemill.backup.take import COPIES, Progress
from tidemill.catalog.secrets import keep_file
from tidemill.catalog.store import CATALOG_SHARD, next_id
from tidemill.errors import TidemillError
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.history import begin_history
from tidemill.persist.lease import CLOCK_SHARD
from tidemill.persist.log import ShardMissing, log_folder
from tidemill.persist.shard import Shard
from tidemill.persist.txns.record import TXNS_SHARD

FP_WRITTEN = failpoints.register("restore.written", "all of a backup is written but the log of the clock")


class NotEmpty(TidemillError):
    sqlstate = "58P02"


class NoFolderForSecrets(TidemillError):
    sqlstate = "55000"


def find(source: Blobs, name: str | None) -> Manifest:
    """The backup of that name; the newest without one."""
    if name is None:
        there = names(source)
        if not there:
            raise BackupMissing(f'there is no backup in "{source.url}"')
        name = there[-1]
    return read_manifest(source, name)


def check(source: Blobs, manifest: Manifest, progress: Progress = lambda *_: None) -> dict[str, bytes]:
    """The files of the backup's archive. Raises BackupDamaged unless every byte of the backup is there."""
    archive = read_stored(source, manifest.rest, manifest.archive)
    done, total = 0, sum(part.bytes for part in manifest.parts.values())

    def verify(item: tuple[str, Stored]) -> int:
        return len(read_stored(source, *item))

    with ThreadPoolExecutor(COPIES, thread_name_prefix="check") as pool:
        for size in pool.map(verify, manifest.parts.items()):
            done += size
            progress(done, total)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def restore(
    source: Blobs,
    manifest: Manifest,
    target: Blobs,
    secrets: Path | None,
    *,
    continued: bool = False,
    progress: Progress = lambda *_: None,
) -> None:
    """Write the directory as it was. `secrets` is the folder for the texts of secrets. `continued`: nothing
    was written to the original after the backup, so it is the same history."""
    if target.list("shards"):
        raise NotEmpty(
            f'"{target.url}" is not empty',
            hint="Restore into a new folder or prefix. What an interrupted restore has left can be deleted.",
        )
    files = check(source, manifest)
    texts = _within(files, SECRETS)
    if texts and secrets is None:
        raise NoFolderForSecrets(
            "there is no place for the secrets of the backup",
            hint="Give a local folder that stays with --secrets-dir, as the server will have it.",
        )
    logs = _within(files, LOGS)
    # Without this log there could be a directory that looks new.
    order = sorted(logs, key=lambda path: (not path.startswith(log_folder(TXNS_SHARD)), path))
    clock = {path: logs[path] for path in logs if path.startswith(log_folder(CLOCK_SHARD) + "/")}
    _put_all(target, {path: logs[path] for path in order if path not in clock})
    for name, text in texts.items():
        assert secrets is not None
        keep_file(secrets, name, text)
    _copy_parts(source, manifest, target, progress)
    failpoints.hit(FP_WRITTEN)
    if not continued:
        clock = _with_history(clock, _next_id(target))
    # The clock can be read when its first file is there.
    _put_all(target, dict(sorted(clock.items(), reverse=True)))


def _within(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    return {n.removeprefix(f"{folder}/"): data for n, data in files.items() if n.startswith(f"{folder}/")}


def _put_all(target: Blobs, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        target.put_if_absent(path, data)


def _copy_parts(source: Blobs, manifest: Manifest, target: Blobs, progress: Progress) -> None:
    done, total = 0, sum(part.bytes for part in manifest.parts.values())

    def copy(item: tuple[str, Stored]) -> int:
        data = read_stored(source, *item)
        target.put(item[0], data)
        return len(data)

    with ThreadPoolExecutor(COPIES, thread_name_prefix="restore") as pool:
        for size in pool.map(copy, manifest.parts.items()):
            done += size
            progress(done, total)


def _next_id(target: Blobs) -> int:
    try:
        return next_id(Shard.open(target, CATALOG_SHARD, epoch=None))
    except ShardMissing:
        return 0


def _with_history(clock: Mapping[str, bytes], first: int) -> dict[str, bytes]:
    """The log of the clock, and another history in it."""
    with tempfile.TemporaryDirectory(prefix="tidemill-restore-") as folder:
        aside = open_blobs(os.path.join(folder, "data"))
        _put_all(aside, clock)
        shard = Shard.open(aside, CLOCK_SHARD, epoch=None)
        begin_history(shard, first)
        paths: Iterable[str] = (info.path for info in aside.list(log_folder(CLOCK_SHARD)))
        return {path: aside.get(path) for path in paths}
