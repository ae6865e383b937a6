"""Log clean-up: deletes entries of a shard's log before its checkpoints, in small steps. Off the hot path.

Called by `maintain`. The folder of a log holds thousands of names, and listing it slows concurrent commits. A
handle therefore lists it once and then tracks the names: it sees each version and writes the checkpoints. The
next handle finds files that other processes left.

Order: a checkpoint and the hint that names it are synced before they are registered here. Entries before the
second newest checkpoint are deleted; newer ones are kept, so one bad checkpoint loses nothing. Entries
younger than the log's retention age are kept for external readers and for delayed writers (`committer`).
Deletion starts at the oldest entry, so a crash leaves no gap in the log.
"""

from __future__ import annotations

import time
from collections import deque

from tidemill import failpoints
from tidemill.persist.blob import Blobs
from tidemill.persist.log import checkpoint_path, entry_path, list_log

FP_BEFORE_DELETE = failpoints.register(
    "persist.clean.before_delete", "old log entries are about to be deleted"
)

# The number of remembered moments of the log's age: an entry is removed at most a hundredth of the age too
# late.
MOMENTS = 100


class Cleaner:
    """What one handle knows of its log's files. Not thread-safe: maintenance runs one at a time."""

    def __init__(self, blobs: Blobs, shard_id: str, keep_seconds: float) -> None:
        self._blobs = blobs
        self._shard_id = shard_id
        self._keep = keep_seconds
        # The first version whose entry may still be there; None before the folder was listed.
        self._oldest: int | None = None
        # Versions of the existing checkpoints, oldest first.
        self._checkpoints: list[int] = []
        # (when, version), oldest first: by then the log had reached that version, so its entry and those
        # before it are at least that old.
        self._moments: deque[tuple[float, int]] = deque()
        # The last version whose entry has reached the retention age.
        self._aged = -1

    @property
    def listed(self) -> bool:
        return self._oldest is not None

    def see(self, version: int) -> None:
        """The log's newest version, now."""
        now = time.time()
        if self._moments:
            then, last = self._moments[-1]
            if version <= last or 0 <= now - then < self._keep / MOMENTS:
                return
        self._moments.append((now, version))

    def add_checkpoint(self, version: int) -> None:
        """It is durable, and so is the hint that names it."""
        if version not in self._checkpoints:
            self._checkpoints.append(version)

    def list(self) -> int:
        """List the log's files. Deletes old entries that no longer belong to the log and returns their
        number. (A sleeping writer put them under cleaned names and died before it could delete them.)"""
        listing = list_log(self._blobs, self._shard_id)
        self._checkpoints = sorted(listing.checkpoints)
        entries = sorted(listing.entries)
        # Entries connected to the newest; those below a gap are not part of the log.
        first = len(entries)
        while first and (first == len(entries) or entries[first - 1] == entries[first] - 1):
            first -= 1
        log, ghosts = entries[first:], entries[:first]
        self._oldest = log[0] if log else 0
        self._moments.clear()
        latest = 0.0
        step = max(1, len(log) // MOMENTS)
        for index, version in enumerate(log):
            latest = max(latest, listing.entries[version].modified)
            if index % step == step - 1 or index == len(log) - 1:
                self._moments.append((latest, version))
        horizon = time.time() - self._keep
        gone = [listing.entries[v].path for v in ghosts if listing.entries[v].modified <= horizon]
        if gone and len(self._checkpoints) > 1:
            self._blobs.delete(gone)
            return len(gone)
        return 0

    def clean(self, limit: int | None = None) -> int:
        """Delete expired entries, the oldest first, at most `limit`; returns the number of files."""
        horizon = time.time() - self._keep
        while self._moments and self._moments[0][0] <= horizon:
            self._aged = self._moments.popleft()[1]
        if self._oldest is None or len(self._checkpoints) < 2:
            return 0
        end = min(self._checkpoints[-2], self._aged + 1)
        if limit is not None:
            end = min(end, self._oldest + limit)
        if end <= self._oldest:
            return 0
        entries = [entry_path(self._shard_id, version) for version in range(self._oldest, end)]
        old = [version for version in self._checkpoints if version < end]
        failpoints.hit(FP_BEFORE_DELETE)
        self._blobs.delete([*entries, *(checkpoint_path(self._shard_id, version) for version in old)])
        self._checkpoints = self._checkpoints[len(old) :]
        self._oldest = end
        return len(entries) + len(old)
