"""`tidemill backup` and `tidemill restore`: flags, progress, and what is said at the end. The work is in
`tidemill.backup`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tidemill.backup.manifest import Manifest, names, prune, read_manifest
from tidemill.backup.restore import check, find, restore
from tidemill.backup.take import Progress, take
from tidemill.cli.sizes import show_size
from tidemill.config import Config, ConfigError
from tidemill.errors import TidemillError
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.lock import DirectoryLock


def run_backup(data: Config, place: Config, *, keep: int | None, as_json: bool, quiet: bool) -> None:
    """`place` is the configuration with the folder of the backups as its directory."""
    source, target = _blobs(data), _blobs(place)
    if not data.on_s3 and not os.path.isdir(data.data_dir):
        raise ConfigError(f'there is no data directory "{data.data_dir}"')
    if f"{target.url}/".startswith(f"{source.url}/"):
        raise ConfigError("the backups would be in the data directory", hint="Name a folder outside of it.")
    _private(place)
    with _locked(target), _bar("backup", quiet=quiet or as_json) as progress:
        taken = take(source, target, _secrets(data, source), progress)
        gone = [] if keep is None else prune(target, keep)
    if as_json:
        print(json.dumps({**_told(taken.manifest), "copied": taken.copied, "deleted": gone}))
    elif not quiet:
        print(
            f"backup {taken.manifest.name}: {taken.manifest.shards} shards, "
            f"{show_size(taken.manifest.bytes)}, of which {show_size(taken.copied)} are new"
        )
        if gone:
            print(f"deleted {', '.join(gone)}")


def run_restore(
    place: Config, data: Config, name: str | None, *, continued: bool, as_json: bool, quiet: bool
) -> None:
    source, target = _blobs(place), _blobs(data)
    manifest = find(source, name)
    secrets = None if data.on_s3 else Path(data.data_dir) / "secrets"
    if data.secrets_dir:
        secrets = Path(data.secrets_dir) / manifest.directory
    _private(data)
    with _bar("restore", quiet=quiet or as_json) as progress:
        restore(source, manifest, target, secrets, continued=continued, progress=progress)
    if as_json:
        print(json.dumps(_told(manifest)))
    elif not quiet:
        print(f"restored backup {manifest.name} of {_moment(manifest.made)} into {target.url}")
        if not continued:
            print("Sinks and subscriptions that it has stand still until they are made anew or reset.")


def run_check(place: Config, name: str | None, *, as_json: bool, quiet: bool) -> None:
    source = _blobs(place)
    manifest = find(source, name)
    with _bar("check", quiet=quiet or as_json) as progress:
        check(source, manifest, progress)
    if as_json:
        print(json.dumps(_told(manifest)))
    elif not quiet:
        print(f"backup {manifest.name} is whole: {show_size(manifest.bytes)}")


def run_list(place: Config, *, as_json: bool) -> None:
    source = _blobs(place)
    found = [read_manifest(source, name) for name in names(source)]
    if as_json:
        print(json.dumps([_told(manifest) for manifest in found]))
        return
    for manifest in found:
        print(f"{manifest.name}  {_moment(manifest.made)}  {show_size(manifest.bytes):>9}")


def _told(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "made": manifest.made,
        "directory": manifest.directory,
        "shards": manifest.shards,
        "parts": len(manifest.parts),
        "bytes": manifest.bytes,
    }


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _blobs(config: Config) -> Blobs:
    return open_blobs(config.data_dir, config.s3_options())


def _secrets(config: Config, source: Blobs) -> Path | None:
    from tidemill.persist.lease import CLOCK_SHARD
    from tidemill.persist.log import ShardMissing, load

    if not config.secrets_dir:
        return None if config.on_s3 else Path(config.data_dir) / "secrets"
    try:
        directory = load(source, CLOCK_SHARD).state.metadata.table_id
    except ShardMissing:
        return None
    return Path(config.secrets_dir) / directory


def _private(config: Config) -> None:
    """A folder that is made here: there may be passwords in it."""
    if not config.on_s3:
        os.makedirs(config.data_dir, mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _locked(target: Blobs) -> Generator[None]:
    lock = DirectoryLock(target)
    if not lock.acquire():
        raise TidemillError(f'another backup into "{target.url}" is being made', sqlstate="55006")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _bar(what: str, *, quiet: bool) -> Generator[Progress]:
    """Drawn on a terminal only."""
    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    shown = sys.stderr.isatty() and not quiet
    with Bar(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
