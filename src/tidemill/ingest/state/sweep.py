"""Cleanup of the state folder: folders of earlier boots, leftovers of crashes, buckets over the limit.

Called by `store` in the background, at any time, by any number of processes that share the folder. Anything
removed here that is needed again is read from the collection.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass

from tidemill.ingest.state.manifest import read_manifest, upper_of
from tidemill.runs.run import RUN_SUFFIX, remove
from tidemill.runs.small_file import get_small

# Younger files may belong to a commit or merge in progress.
GRACE_SECONDS = 600.0

# The number of states of a bucket that are kept: the newest, the one from which a failed tick is repeated,
# and one more for a commit in progress. Commits remove older ones themselves; this is for buckets that are no
# longer used.
KEEP_UPPERS = 3


@dataclass(frozen=True, slots=True)
class _Bucket:
    folder: str
    bytes: int
    used: float  # the time of its newest manifest


def sweep(root: str, current: str, limit: int) -> list[str]:
    """Clean `root`, whose live folder is `current`; returns the folders of buckets that were removed."""
    for entry in _entries(root):
        if entry.name.startswith("boot-") and entry.path != current:
            shutil.rmtree(entry.path, ignore_errors=True)
    buckets = [_sweep_bucket(bucket.path) for shard in _entries(current) for bucket in _entries(shard.path)]
    total = sum(bucket.bytes for bucket in buckets)
    removed: list[str] = []
    for bucket in sorted(buckets, key=lambda b: b.used):
        if total <= limit:
            break
        shutil.rmtree(bucket.folder, ignore_errors=True)
        removed.append(bucket.folder)
        total -= bucket.bytes
    return removed


def _sweep_bucket(folder: str) -> _Bucket:
    """Remove files that no manifest names; return the remaining ones."""
    now = time.time()
    size, used = 0, 0.0
    needed: set[str] = set()
    loose: list[tuple[str, int, float]] = []
    entries = _entries(folder)
    uppers = sorted((u for entry in entries if (u := upper_of(entry.name)) is not None), reverse=True)
    for entry in entries:
        try:
            stat = entry.stat()
        except OSError:
            continue
        upper = upper_of(entry.name)
        if upper is not None:
            used = max(used, stat.st_mtime)
            manifest = read_manifest(folder, upper)
            if manifest is None or (
                upper not in uppers[:KEEP_UPPERS] and now - stat.st_mtime >= GRACE_SECONDS
            ):
                remove(entry.path)
            else:
                size += stat.st_size
                needed.update(run.name for run in manifest.runs)
            continue
        if entry.name.endswith(".merged"):
            facts = get_small(folder, entry.name)
            if facts is not None and now - stat.st_mtime < GRACE_SECONDS:
                needed.update(run[0] for run in facts[0])
        loose.append((entry.name, stat.st_size, stat.st_mtime))
    for name, file_size, modified in loose:
        if not (name.endswith(RUN_SUFFIX) and name in needed) and now - modified >= GRACE_SECONDS:
            remove(os.path.join(folder, name))
        else:
            size += file_size
    return _Bucket(folder, size, used)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
