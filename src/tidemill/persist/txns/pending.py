"""Pending parts: applies committed parts to their data shards, and tracks which txns rows can be retracted.

The pending parts of a shard are added to it with one compare-and-append, which moves its upper past the
latest of their times. This is idempotent across crashes: a data shard whose upper is past T holds everything
of T. For a shard that is written through txns, only this module advances the upper past a time that still has
unapplied parts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from tidemill import failpoints
from tidemill.errors import Internal
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.persist.txns.marks import Marks
from tidemill.persist.txns.record import Unapplied

FP_BEFORE = failpoints.register(
    "txns.apply.before", "a transaction is durable, nothing of it in a data shard"
)
FP_AFTER = failpoints.register("txns.apply.after", "a part is in its data shard, not yet retracted from txns")


class _ShardQueue:
    """The unapplied parts of one shard, oldest first."""

    __slots__ = ("applying", "parts")

    def __init__(self) -> None:
        self.parts: deque[Unapplied] = deque()
        # Held while parts are appended: one thread at a time per shard. Readers wait for it.
        self.applying = threading.Lock()


class PendingParts:
    """Thread-safe. Memory: one small value per part that is not yet applied and retracted. `Txns` limits the
    unapplied parts of each shard."""

    def __init__(self, open_shard: Callable[[str], Shard], marks: Marks) -> None:
        self._open_shard = open_shard
        self._marks = marks
        self._lock = threading.Lock()
        self._queues: dict[str, _ShardQueue] = {}
        # Applied durably: later entries of the txns shard retract their rows.
        self._applied: list[Unapplied] = []
        self._forgotten: set[str] = set()

    def add(self, committed: Iterable[Unapplied]) -> None:
        """Add the parts of one group of transactions, or of a recovery. Per shard, times must not go
        back."""
        with self._lock:
            for unapplied in committed:
                if unapplied.shard_id in self._forgotten:
                    self._applied.append(unapplied)
                    continue
                parts = self._queues.setdefault(unapplied.shard_id, _ShardQueue()).parts
                if parts and parts[-1].time > unapplied.time:
                    raise Internal(f"transactions of shard {unapplied.shard_id} are out of order")
                parts.append(unapplied)

    def shards(self) -> list[str]:
        """The shards with unapplied parts."""
        with self._lock:
            return [s for s, q in self._queues.items() if q.parts]

    def __len__(self) -> int:
        with self._lock:
            return sum(len(q.parts) for q in self._queues.values())

    def oldest(self, shard_id: str) -> int | None:
        """The time of the first unapplied part of a shard; None without one."""
        with self._lock:
            queue = self._queues.get(shard_id)
            return queue.parts[0].time if queue is not None and queue.parts else None

    def count(self, shard_id: str) -> int:
        """The number of unapplied parts of a shard."""
        with self._lock:
            queue = self._queues.get(shard_id)
            return 0 if queue is None else len(queue.parts)

    def forget(self, shard_id: str) -> None:
        """The shard is dropped: its parts are no longer applied, only their rows are retracted."""
        with self._lock:
            self._forgotten.add(shard_id)
            queue = self._queues.pop(shard_id, None)
            if queue is not None:
                self._applied += queue.parts
                # A thread that is applying them must not list them a second time.
                queue.parts.clear()

    def take_applied(self, limit: int) -> list[Unapplied]:
        """Rows to retract with the next entry; return them with `put_back` if that entry is not committed."""
        with self._lock:
            taken, self._applied = self._applied[:limit], self._applied[limit:]
            return taken

    def put_back(self, rows: list[Unapplied]) -> None:
        with self._lock:
            self._applied = rows + self._applied

    def applied_count(self) -> int:
        with self._lock:
            return len(self._applied)

    def apply(self, shard_id: str, until: int | None = None) -> None:
        """Apply the shard's parts at or before `until` (None: all). When this returns, they are in the data
        shard, even if another thread applied them."""
        oldest = self.oldest(shard_id)
        if oldest is None or (until is not None and oldest > until):
            # Nothing to apply, but another thread may still be appending.
            with self._lock:
                queue = self._queues.get(shard_id)
            if queue is not None:
                with queue.applying:
                    return
            return
        shard = self._open_shard(shard_id)
        self.apply_to(shard, until)

    def apply_to(self, shard: Shard, until: int | None = None, upper: int | None = None) -> None:
        """Like `apply`, for an open shard. The same entry moves the shard's upper to at least `upper`."""
        with self._lock:
            queue = self._queues.setdefault(shard.id, _ShardQueue())
        with queue.applying:
            while True:
                with self._lock:
                    todo = [u for u in queue.parts if until is None or u.time <= until]
                lower = upper_of(shard)
                fresh = [u for u in todo if u.time >= lower]
                target = max([lower, upper or 0, *(u.time + 1 for u in fresh)])
                if target > lower:
                    failpoints.hit(FP_BEFORE)
                    try:
                        shard.compare_and_append([u.part for u in fresh], lower, target)
                    except UpperMismatch:
                        # An earlier append of ours, with an unknown outcome, has succeeded: check again.
                        continue
                    failpoints.hit(FP_AFTER)
                # Before the parts count as applied: the entry that retracts them carries the mark.
                if todo:
                    self._marks.reach(shard.id, shard.version)
                with self._lock:
                    for unapplied in todo:
                        # `forget` may have emptied the queue meanwhile.
                        if queue.parts and queue.parts[0] is unapplied:
                            queue.parts.popleft()
                            self._applied.append(unapplied)
                return
