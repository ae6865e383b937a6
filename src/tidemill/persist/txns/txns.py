"""Group committer: takes transactions from any thread and commits each group at one time through txns.

Order of one group, and why:
1. T = oracle.write_ts(). From now on reads are below T, until T is complete.
2. Requests whose reads changed are refused, including changes by an earlier request of the same group.
3. One part per data shard is written: durable, invisible.
4. One entry of the txns shard names all parts: the commit point. It also retracts the rows of applied parts,
   and marks the versions that the logs of their shards have reached.
5. The parts are queued for their data shards, then T is complete, then the callers are notified. A caller
   that knows of its commit reads at or after T, and every reader at or after T first applies the queue.
6. In the background the parts are applied to their data shards.

A crash before 4 leaves orphaned parts; after 4, recovery applies the transaction. An unknown outcome of 4 is
settled by repeating the same entry until the shard answers. Meanwhile nothing else commits, T is not
complete, and callers that cannot wait longer get `CommitUnknown`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import Internal, LimitExceeded, TidemillError, Unavailable, UndefinedObject
from tidemill.persist.outcome import CommitFailed, CommitUnknown, Fenced
from tidemill.persist.part import Part, part_path
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard
from tidemill.persist.txns import record
from tidemill.persist.txns.marks import Marks, Moves
from tidemill.persist.txns.pending import PendingParts
from tidemill.persist.txns.record import Unapplied
from tidemill.persist.txns.request import (
    ShardId,
    TxnRequest,
    changed_meanwhile,
    check_updates,
    conflict,
    merge,
)
from tidemill.time.oracle import Oracle

log = logging.getLogger(__name__)

FP_PART_WRITTEN = failpoints.register("txns.part.written", "a group's parts are durable, no entry names them")
FP_BEFORE_PUT = failpoints.register(
    "txns.entry.before_put", "the entry's own part is durable, the entry is not put"
)
FP_PUT = failpoints.register("txns.entry.put", "the transaction is durable, nobody knows yet")
FP_RETRACT = failpoints.register("txns.retract.before", "applied parts are about to be retracted from txns")

# One group: bounds the memory of a merge (a few times this) and how long the first of a group waits for the
# last.
MAX_GROUP_BYTES = 64 << 20
# Waiting transactions. Each waits on its caller's thread or task, so this is a guard against a leak, not a
# tuning.
MAX_QUEUED = 20_000
# Committed and not yet applied parts of one shard, some 500 bytes each. One entry applies all pending parts,
# so only an unwritable shard reaches the limit. Only that shard is refused then.
MAX_UNAPPLIED = 10_000
# Rows retracted with one commit, 200 bytes each: keeps an entry small after a backlog.
MAX_RETRACT = 1_000
# The applier waits this long after a commit, so commits in quick succession share one entry per data shard.
# An earlier read applies the parts itself.
APPLY_DELAY_SECONDS = 0.1
RETRY_SECONDS = 0.5
# A group waits for callers of the last group and those queued behind it, because released callers usually
# return at once. Without the wait, fifty callers settle into small alternating groups, at half the rate. The
# wait continues while callers arrive, each within the pause after another, up to the limit. A lone caller
# never waits. The pause is a share of the duration of the last commit: where the store is slow, one group
# instead of two is worth more than the wait; where it is fast, an extra commit is cheap.
GATHER_SHARE = 0.5
MIN_PAUSE_SECONDS = 0.002
MAX_PAUSE_SECONDS = 0.02
GATHER_LIMIT_SECONDS = 0.04


class Txns:
    """One per environment and process; thread-safe. Call `start` first, and `close` at the end."""

    def __init__(
        self,
        shard: Shard,
        oracle: Oracle,
        open_shard: Callable[[ShardId], Shard],
        *,
        on_lost: Callable[[TidemillError], None] | None = None,
    ) -> None:
        self._shard = shard
        self._oracle = oracle
        self._open_shard = open_shard
        self._on_lost = on_lost
        self._job = f"txns-e{shard.epoch}"
        self.marks = Marks()
        self.pending = PendingParts(open_shard, self.marks)
        # All writes of earlier processes are before it: the shard was fenced there.
        self._start = upper_of(shard)
        # Shard -> the time of the last transaction that wrote it. Forgotten shards are removed.
        self._last_write: dict[ShardId, int] = {}
        self._registered: dict[ShardId, Shard] = {}
        self._forgotten: dict[ShardId, TidemillError] = {}
        # Held from the allocation of a time to its completion, by the committer and by `paused`. Commits
        # therefore happen in the order of their times, and catalog changes between groups, never inside one.
        self._serial = threading.Lock()
        self._cond = threading.Condition()
        self._queue: deque[TxnRequest] = deque()
        # Estimated number of active callers: the last group and the queue at its end.
        self._expected = 0
        # How long a group waits for the next of them.
        self._pause = MIN_PAUSE_SECONDS
        self._closing = False
        # Set together with `_closing`: for threads that wait for time to pass.
        self._hurry = threading.Event()
        self._apply_wake = threading.Event()
        self._writers = ThreadPoolExecutor(4, thread_name_prefix="txns-write")
        self._recover()
        self._committer = threading.Thread(target=self._run_commits, name="txns-commit", daemon=True)
        self._applier = threading.Thread(target=self._run_applies, name="txns-apply", daemon=True)

    def start(self) -> None:
        """Start the threads: commit, and apply the commits of the previous process. `open_shard` must
        work."""
        self._committer.start()
        self._applier.start()
        if len(self.pending):
            self._apply_wake.set()

    def _recover(self) -> None:
        upper = self._shard.upper
        if not upper:
            return
        with self._shard.snapshot(upper - 1) as snapshot:
            rows = snapshot.read()
        self.pending.add(record.unapplied(rows))
        self.marks.recover(record.marks(rows))

    # -- shards

    def register(self, shard: Shard) -> None:
        """Allow transactions to write to the shard."""
        with self._cond:
            self._registered[shard.id] = shard

    def forget(self, shard_id: ShardId, error: TidemillError | None = None) -> None:
        """The shard is dropped: later commits to it fail with `error`, and nothing is applied to it any
        more."""
        with self._cond:
            self._forgotten[shard_id] = error or UndefinedObject(
                f"shard {shard_id} does not exist", detail="It was dropped meanwhile.", sqlstate="42P01"
            )
            self._registered.pop(shard_id, None)
            self._last_write.pop(shard_id, None)
        self.pending.forget(shard_id)
        self.marks.forget(shard_id)

    def last_write(self, shard_id: ShardId) -> int:
        """The time of the last transaction that wrote to the shard; without one, a time before all commits
        of this process."""
        with self._cond:
            return self._last_write.get(shard_id, self._start - 1)

    # -- writing

    def commit(
        self,
        writes: Mapping[ShardId, pa.Table],
        reads: Mapping[ShardId, int] | None = None,
        guard: Callable[[], None] | None = None,
    ) -> Future[int]:
        """Commit the updates (physical columns and `mz_diff`, no time) of one transaction; the future returns
        its time. `reads` are the shards it depended on, with the time they were read at. `guard` runs right
        before the commit, when neither another transaction nor a catalog change can intervene, and raises to
        refuse. The future ends with: the time; a refusal (nothing happened: SerializationFailure,
        UndefinedObject, CommitFailed, Fenced, ...); or CommitUnknown."""
        request = TxnRequest(dict(writes), dict(reads or {}), guard)
        try:
            for shard_id, table in request.writes.items():
                check_updates(table, self._writable(shard_id).desc, shard_id)
        except TidemillError as e:
            request.future.set_exception(e)
            return request.future
        with self._cond:
            if self._closing:
                request.future.set_exception(Unavailable("the server is shutting down", sqlstate="57P01"))
            elif len(self._queue) >= MAX_QUEUED:
                error = LimitExceeded(
                    f"too many transactions are waiting to commit ({MAX_QUEUED})", sqlstate="53000"
                )
                request.future.set_exception(error)
            else:
                self._queue.append(request)
                if len(self._queue) == 1 or len(self._queue) >= self._expected:
                    self._cond.notify_all()
        return request.future

    def _writable(self, shard_id: ShardId) -> Shard:
        with self._cond:
            if (error := self._forgotten.get(shard_id)) is not None:
                raise error
            shard = self._registered.get(shard_id)
        if shard is None:
            raise Internal(f"a transaction writes to shard {shard_id}, which is not registered")
        return shard

    @contextmanager
    def paused(self) -> Generator[None]:
        """No transaction commits while this is held. For changes of the catalog, and other changes that must
        not happen inside a group. Keep it short."""
        with self._serial:
            yield

    def note(self, shards: Iterable[ShardId]) -> None:
        """Mark the current versions of the logs of these shards, for writes that bypass txns. Call it under
        `paused`, after the write. A failure is logged and a later entry writes the mark: the write remains
        valid."""
        self._reach(shards)
        try:
            self._retract_all()
        except (TidemillError, OSError) as e:
            log.warning("could not note how far the logs have come, trying again later: %s", e)

    def _reach(self, shards: Iterable[ShardId]) -> None:
        with self._cond:
            known = [shard for s in shards if (shard := self._registered.get(s)) is not None]
        for shard in known:
            self.marks.reach(shard.id, shard.version)

    def _retract_all(self) -> None:
        """Write the known applied parts and marks. The caller holds `_serial`."""
        while self.pending.applied_count() or self.marks.moves():
            self._commit_parts([], [])

    # -- reading

    def apply_until(self, shard_id: ShardId, time: int) -> None:
        """Everything committed to the shard at or before `time` is in it when this returns. `time` is a read
        time of the oracle, or earlier."""
        self.pending.apply(shard_id, time)

    def readable_upper(self, shard_id: ShardId) -> int:
        """The shard is complete before this time: no later commit writes below it. Taken from the log, or
        from the oracle if the shard is idle. Call `apply_until` before reading."""
        readable = self._oracle.read_ts() + 1
        upper = self._open_shard(shard_id).upper
        return readable if upper is None else max(readable, upper)

    # -- maintenance

    def maintain(self, finished: Callable[[str], bool] | None = None) -> None:
        """Apply and retract everything, and keep the txns shard small; `finished` is as in `Shard.maintain`.
        Raises the errors of the shards."""
        for shard_id in self.pending.shards():
            self.pending.apply(shard_id)
        with self._serial:
            self._retract_all()
        if self._shard.upper:
            self._shard.downgrade_since(self._shard.upper - 1)
        self._shard.maintain(finished)

    def close(self) -> None:
        """Commit the queue, try to apply all commits, mark the versions of all logs, stop the threads. The
        next server applies what could not be applied. Idempotent."""
        with self._cond:
            if self._closing:
                return
            self._closing = True
            self._cond.notify_all()
        self._hurry.set()
        self._committer.join()
        self._apply_wake.set()
        self._applier.join()
        with self._serial:
            with self._cond:
                shards = list(self._registered)
            self.note(shards)
        self._writers.shutdown()

    # -- the committer's thread

    def _run_commits(self) -> None:
        while (group := self._next_group()) is not None:
            began = time.monotonic()
            with self._serial:
                self._commit_group(group)
            took = time.monotonic() - began
            with self._cond:
                self._pause = min(max(MIN_PAUSE_SECONDS, GATHER_SHARE * took), MAX_PAUSE_SECONDS)
                self._expected = len(group) + len(self._queue) if len(group) > 1 else 0

    def _next_group(self) -> list[TxnRequest] | None:
        """The waiting requests, as many as fit into a group; None at the end."""
        with self._cond:
            self._cond.wait_for(lambda: self._queue or self._closing)
            self._gather()
            group: list[TxnRequest] = []
            size = 0
            while self._queue and (not group or size + self._queue[0].bytes <= MAX_GROUP_BYTES):
                request = self._queue.popleft()
                size += request.bytes
                # Skip a cancelled request; after this call it cannot be cancelled any more.
                if request.future.set_running_or_notify_cancel():
                    group.append(request)
            if not group and self._closing and not self._queue:
                return None
            return group

    def _gather(self) -> None:
        """Wait for the expected callers. The caller holds the condition."""
        deadline = time.monotonic() + GATHER_LIMIT_SECONDS
        while (come := len(self._queue)) < self._expected and not self._closing:
            self._cond.wait(self._pause)
            if len(self._queue) == come or time.monotonic() > deadline:
                return

    def _commit_group(self, group: list[TxnRequest]) -> None:
        try:
            if group:
                self._commit_parts(group, [r.future for r in group])
        except TidemillError as e:
            self._fail(group, e)
            if isinstance(e, Fenced):
                self._lost(e)
        except BaseException as e:
            # Nothing may kill this thread, or every later commit would hang.
            log.exception("a commit failed for an unforeseen reason")
            self._fail(
                group, Internal("a commit failed for an unforeseen reason", detail=f"{type(e).__name__}: {e}")
            )

    @staticmethod
    def _fail(group: Sequence[TxnRequest], error: BaseException) -> None:
        for request in group:
            _settle(request.future, error)

    def _commit_parts(self, group: Sequence[TxnRequest], futures: Sequence[Future[int]]) -> None:
        """Steps 1 to 5. Raises only if nothing of the group was committed."""
        ts = self._oracle.write_ts()
        retracting: list[Unapplied] = []
        unapplied: list[Unapplied] = []
        try:
            accepted, tables = self._admit(group, ts)
            unapplied = self._write_parts(tables, ts)
            retracting = self.pending.take_applied(MAX_RETRACT)
            # After `take_applied`: a part's mark is updated before the part counts as applied.
            moves = self.marks.moves()
            if unapplied or retracting or moves:
                failpoints.hit(FP_PART_WRITTEN)
                if retracting:
                    failpoints.hit(FP_RETRACT)
                self._put(unapplied, retracting, moves, ts, futures)
        except BaseException as e:
            self.pending.put_back(retracting)
            self._oracle.complete(ts)
            self._discard(unapplied)
            if isinstance(e, TidemillError):
                raise
            raise CommitFailed("could not commit", detail=f"{type(e).__name__}: {e}") from e
        self.marks.wrote(moves)
        self.pending.add(unapplied)
        with self._cond:
            for shard_id in tables:
                self._last_write[shard_id] = ts
        self._oracle.complete(ts)
        for request in accepted:
            _settle(request.future, ts)
        self._apply_wake.set()

    def _admit(
        self, group: Sequence[TxnRequest], ts: int
    ) -> tuple[list[TxnRequest], dict[ShardId, list[pa.Table]]]:
        """Refuse requests that must not commit. Returns the others, and their updates per shard."""
        accepted: list[TxnRequest] = []
        tables: dict[ShardId, list[pa.Table]] = {}
        # Read once per group: while `_serial` is held the columns of a shard cannot change.
        widths: dict[ShardId, int] = {}
        for request in group:
            try:
                for shard_id, read_at in request.reads.items():
                    changed_at = ts if shard_id in tables else self.last_write(shard_id)
                    if changed_at > read_at:
                        raise conflict(shard_id, read_at, changed_at)
                for shard_id, table in request.writes.items():
                    width = widths.get(shard_id)
                    if width is None:
                        width = widths[shard_id] = self._room(shard_id)
                    if table.num_columns != width:
                        raise changed_meanwhile(shard_id)
                if request.guard is not None:
                    request.guard()
            except Exception as e:
                _settle(request.future, e)
                continue
            accepted.append(request)
            for shard_id, table in request.writes.items():
                if table.num_rows:
                    tables.setdefault(shard_id, []).append(table)
        return accepted, tables

    def _room(self, shard_id: ShardId) -> int:
        """The number of columns of the shard's updates. Raises if the shard accepts none: it was dropped
        since a request was queued, or too many parts are unapplied."""
        width = len(self._writable(shard_id).desc.columns) + 1
        if self.pending.count(shard_id) >= MAX_UNAPPLIED:
            raise Unavailable(
                f"too many transactions wait to be applied to shard {shard_id} ({MAX_UNAPPLIED})",
                hint="Applying to it fails; the log tells why.",
                sqlstate="53000",
            )
        return width

    def _write_parts(self, tables: Mapping[ShardId, Sequence[pa.Table]], ts: int) -> list[Unapplied]:
        merged: dict[ShardId, pa.Table] = {}
        for shard_id, updates in tables.items():
            table = merge(updates, self._writable(shard_id).desc, ts)
            if table is not None:
                merged[shard_id] = table

        def write(shard_id: ShardId) -> Part:
            return self._writable(shard_id).write_part(merged[shard_id], job=self._job)

        if len(merged) <= 1:
            return [Unapplied.of(s, write(s)) for s in merged]
        futures = {s: self._writers.submit(write, s) for s in merged}
        written: list[Unapplied] = []
        error: BaseException | None = None
        # Wait for all of them, so that the written parts can be discarded if one fails.
        for shard_id, future in futures.items():
            try:
                written.append(Unapplied.of(shard_id, future.result()))
            except BaseException as e:
                error = error or e
        if error is not None:
            self._discard(written)
            raise error
        return written

    def _put(
        self,
        unapplied: Sequence[Unapplied],
        retracting: Sequence[Unapplied],
        moves: Moves,
        ts: int,
        futures: Sequence[Future[int]],
    ) -> None:
        """The commit point. Returns when the entry is durable, and raises only if it is not in the log."""
        rows = record.rows([*unapplied, *moves.added], [*retracting, *moves.retracted], ts)
        part = self._shard.write_part(rows, job=self._job)
        failpoints.hit(FP_BEFORE_PUT)

        def tell(unknown: CommitUnknown) -> None:
            for future in futures:
                _settle(future, unknown)

        append_settled(self._shard, part, upper_of(self._shard), ts + 1, after_put=FP_PUT, on_unknown=tell)

    def _discard(self, written: Sequence[Unapplied]) -> None:
        """Delete parts that no entry names. Best effort: the sweeper deletes the rest."""
        try:
            blobs = self._shard.blobs
            blobs.delete([part_path(u.shard_id, u.part) for u in written])
        except Exception as e:
            log.warning("parts of a failed commit are left to the sweeper: %s", e)

    def _lost(self, error: TidemillError) -> None:
        self._oracle.lose(error)
        if self._on_lost is not None:
            self._on_lost(error)

    # -- the applier's thread

    def _run_applies(self) -> None:
        while True:
            self._apply_wake.wait()
            self._apply_wake.clear()
            self._hurry.wait(APPLY_DELAY_SECONDS)
            failed = False
            for shard_id in self.pending.shards():
                try:
                    self.pending.apply(shard_id)
                except Fenced as e:
                    self._lost(e)
                    return
                except Exception as e:
                    failed = True
                    log.warning("could not apply transactions to shard %s, trying again: %s", shard_id, e)
            if self._closing and not self._committer.is_alive():
                # The next server applies the rest.
                return
            if failed:
                time.sleep(RETRY_SECONDS)
                self._apply_wake.set()


def _settle(future: Future[int], outcome: int | BaseException) -> None:
    """Set the outcome. A second one is ignored: a caller that got CommitUnknown gets no other result."""
    try:
        if isinstance(outcome, int):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:
        pass
