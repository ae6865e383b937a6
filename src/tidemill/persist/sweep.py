"""Sweeper: deletes files that are no longer needed. Off the hot path.

There are two kinds. Removed parts are no longer live since some version. They are deleted after the grace
period for external readers, and only if no snapshot of this process predates their removal. Orphans are parts
that no entry ever named, left by a writer that died or gave up. They are deleted only when their job is known
to be over, because until then its commit may still arrive.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tidemill import failpoints
from tidemill.persist.blob import Blobs
from tidemill.persist.committer import Committer, stamps_ms
from tidemill.persist.holds import Holds
from tidemill.persist.log import log_folder

FP_BEFORE_DELETE = failpoints.register(
    "persist.sweep.before_delete", "removed or orphaned parts are about to be deleted"
)

# Maximum number of deletions per call; the next sweep deletes the rest. Bounds the time of one call (some 20
# ms on a disk). Maintenance uses smaller steps.
SWEEP_BATCH = 1000

_COMPACTION = re.compile(r"compact-e(\d+)-(\w+)")


def sweep_removed(committer: Committer, holds: Holds, keep_seconds: float, limit: int = SWEEP_BATCH) -> int:
    """Delete removed parts that are due; returns how many."""
    horizon = stamps_ms() - int(keep_seconds * 1000)
    with committer.changed:
        # A reader that pinned version v reads the parts live at v: all parts removed after v stay.
        pinned = holds.oldest_version()
        due: list[str] = []
        for path, tombstone in committer.state.removed.items():
            # In the order of their removal: those behind are younger, and pinned too.
            if tombstone.at > horizon or len(due) == limit:
                break
            if pinned is not None and tombstone.version > pinned:
                break
            due.append(path)
    if not due:
        return 0
    failpoints.hit(FP_BEFORE_DELETE)
    committer.blobs.delete([f"shards/{committer.shard_id}/{path}" for path in due])
    with committer.changed:
        for path in due:
            committer.state.removed.pop(path, None)
    return len(due)


def sweep_orphans(committer: Committer, finished: Callable[[str], bool], grace_seconds: float) -> int:
    """Delete parts that no version names, are older than the grace period, and whose job is over:
    `finished` says so, or it is a compaction of an earlier epoch or of this handle, which runs none now.
    Returns how many."""
    blobs, shard_id = committer.blobs, committer.shard_id
    horizon = time.time() - grace_seconds
    prefix = f"shards/{shard_id}/"
    # List first, look at the state second: a part committed in between is then seen as live.
    found = [
        info.path.removeprefix(prefix) for info in blobs.list(f"{prefix}parts") if info.modified <= horizon
    ]
    committer.refresh()
    with committer.changed:
        state = committer.state
        unknown = [path for path in found if path not in state.parts and path not in state.removed]
        epoch = state.epoch
    orphans = [path for path in unknown if _over(path.split("/")[1], finished, epoch, committer.writer)]
    if orphans:
        failpoints.hit(FP_BEFORE_DELETE)
        blobs.delete([prefix + path for path in orphans])
    return len(orphans) + blobs.tidy(prefix, horizon)


def _over(job: str, finished: Callable[[str], bool], epoch: int, writer: str) -> bool:
    match = _COMPACTION.fullmatch(job)
    if match is None:
        return finished(job)
    return int(match[1]) < epoch or match[2] == writer


def never_used(blobs: Blobs, shard_id: str, creator: str) -> bool:
    """Whether the folder of a shard holds only its log and parts of its creator's job (their names begin with
    `creator`): then it may be deleted when nothing refers to it. Anything else was user data once."""
    allowed = (f"{log_folder(shard_id)}/", f"shards/{shard_id}/parts/{creator}")
    return all(info.path.startswith(allowed) for info in blobs.list(f"shards/{shard_id}"))


def drop_shard(blobs: Blobs, shard_id: str) -> None:
    """Delete a shard whole; idempotent. The log goes first: what cannot be opened cannot be half read."""
    blobs.delete_prefix(log_folder(shard_id))
    blobs.delete_prefix(f"shards/{shard_id}")
