"""Compaction of large shards on Spark, in the background.

The maintenance loop calls `look` every round. At most one job runs at a time, in its own scheduling pool. Its
first stage has tasks of a fraction of a second and its second leaves a core free, so that ticks keep their
boundaries. A job reads plain parts. Its output is invisible until one commit replaces the inputs, which must
all be live then (`persist.compact`). So a job that is killed, fails or loses a race leaves only files for the
sweeper. A shard whose compaction failed is retried after a delay, which grows with each failure.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tidemill.errors import QueryCanceled, TidemillError
from tidemill.ingest import compact_task
from tidemill.ingest.compact_task import CompactionPiece, CompactionWork
from tidemill.persist.compact import Compacted, part_rows
from tidemill.persist.large_compaction import LargePlan
from tidemill.persist.maintain import POSTPONED_PARTS
from tidemill.persist.outcome import InputsReplaced
from tidemill.persist.part import Part, part_path
from tidemill.persist.shard import Shard
from tidemill.query.job import Job
from tidemill.query.spark import SparkHost

log = logging.getLogger(__name__)

POOL = "compact"
# Concurrent tasks of the second stage, or tasks that merge a group. Each holds about three times
# `part_target_bytes` and takes a second. At least one core is left to others.
MERGES_AT_ONCE = 2
# A job that takes longer hangs, and is cancelled.
JOB_SECONDS = 3600.0
# How long a shard rests after a failure (or a useless compaction). The time doubles with each failure.
FIRST_REST_SECONDS = 60.0
LAST_REST_SECONDS = 3600.0
# How long a stop waits for the job to end.
STOP_SECONDS = 5.0


class CompactionHome(Protocol):
    """The protocol of the compactor's environment."""

    def begin_job(self) -> str: ...

    def end_job(self, job: str) -> None: ...

    def open_shards(self) -> list[Shard]: ...


@dataclass(slots=True)
class CompactionCounts:
    """Counted from the start of the server."""

    done: int = 0
    failed: int = 0
    # Another compaction came first.
    lost: int = 0
    rows_read: int = 0
    rows_written: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Rest:
    """Why a shard is not checked before `until` (monotonic)."""

    failures: int
    until: float


class SparkCompactor:
    """Thread-safe: the maintenance thread calls `look` and `stop`; a separate thread does the work."""

    def __init__(self, home: CompactionHome, host: SparkHost) -> None:
        self._home = home
        self._host = host
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compact-spark")
        self.counts = CompactionCounts()
        # The current check, and its job while it has one.
        self._working: Future[None] | None = None
        self._job: Job | None = None
        # Set under the lock: no job begins afterwards.
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._rests: dict[str, _Rest] = {}
        # The shard that was compacted last: the others are next.
        self._last = ""

    @property
    def running(self) -> bool:
        return self._job is not None

    def look(self, hurried: Collection[str] = ()) -> None:
        """Begin a compaction if one is due. `hurried` shards are skipped while they can wait. Returns at
        once."""
        if not self._host.ready or (self._working is not None and not self._working.done()):
            return
        shards = self._due(hurried)
        with self._lock:
            if shards and not self._stopping.is_set():
                self._working = self._thread.submit(self._work, shards)

    def stop(self) -> None:
        """Cancel the running job, which leaves nothing behind. Idempotent."""
        with self._lock:
            self._stopping.set()
        job, working = self._job, self._working
        if job is not None:
            job.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if working is not None and not working.cancelled():
            try:
                working.result(STOP_SECONDS)
            except TimeoutError:
                log.warning("a compaction did not end in time; what it does is not committed")

    def _due(self, hurried: Collection[str]) -> list[Shard]:
        """The shards that are too large for memory; the one that was compacted last is at the end."""
        now = time.monotonic()
        shards = {s.id: s for s in self._home.open_shards() if s.state.weight > s.settings.compact_max_bytes}
        self._rests = {i: rest for i, rest in self._rests.items() if i in shards}
        for shard_id in shards.keys() & hurried:
            if len(shards[shard_id].state.parts) < POSTPONED_PARTS:
                del shards[shard_id]
        due = sorted(i for i in shards if i not in self._rests or self._rests[i].until <= now)
        return [shards[i] for i in sorted(due, key=lambda i: (i <= self._last, i))]

    def _work(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            if self._stopping.is_set() or self.compact(shard):
                return

    def compact(self, shard: Shard) -> bool:
        """Compact one shard if necessary. Returns whether it was necessary, even if the compaction failed.
        Never raises."""
        began = time.monotonic()
        job: list[str] = []

        def carry(plan: LargePlan) -> tuple[Part, ...]:
            self._last = shard.id
            job.append(self._home.begin_job())
            log.info("compaction of shard %s on Spark: %s", shard.id, _size(plan.plan.inputs))
            return self._carry(shard, plan, job[0])

        try:
            done = shard.compact_large(carry)
        except InputsReplaced as e:
            self.counts.lost += 1
            log.info("compaction of shard %s was for nothing: %s", shard.id, e.primary)
            return True
        except Exception as e:
            self._fail(shard, e)
            return True
        finally:
            for name in job:
                self._home.end_job(name)
        if done is None:
            return False
        self._note(shard, done, time.monotonic() - began)
        return True

    def _note(self, shard: Shard, done: Compacted, seconds: float) -> None:
        self.counts.done += 1
        self.counts.rows_read += done.rows_before
        self.counts.rows_written += done.rows_after
        self.counts.seconds += seconds
        log.info(
            "compaction of shard %s: %d parts to %d, %d updates to %d, in %.1f s",
            shard.id,
            done.inputs,
            done.outputs,
            done.rows_before,
            done.rows_after,
            seconds,
        )
        # It may be due again at once and be useless again: retractions of rows that never existed.
        gain = 1 - done.rows_after / done.rows_before
        if done.outputs >= done.inputs and gain < shard.settings.compact_min_gain / 2:
            self._rest(shard.id)
        else:
            self._rests.pop(shard.id, None)

    def _fail(self, shard: Shard, error: Exception) -> None:
        if self._stopping.is_set():
            return
        self.counts.failed += 1
        seconds = self._rest(shard.id)
        if isinstance(error, TidemillError):
            log.warning(
                "compaction of shard %s failed, it is tried again in %.0f s: %s", shard.id, seconds, error
            )
        else:
            log.exception("compaction of shard %s failed for an unforeseen reason", shard.id, exc_info=error)

    def _rest(self, shard_id: str) -> float:
        before = self._rests.get(shard_id)
        failures = 0 if before is None else before.failures
        seconds = min(FIRST_REST_SECONDS * 2**failures, LAST_REST_SECONDS)
        self._rests[shard_id] = _Rest(failures + 1, time.monotonic() + seconds)
        return seconds

    # -- the job

    def _carry(self, shard: Shard, plan: LargePlan, name: str) -> tuple[Part, ...]:
        inputs, settings = plan.plan.inputs, shard.settings
        work = CompactionWork(
            shard.blobs,
            shard.id,
            plan.plan.desc,
            plan.plan.since,
            name,
            part_rows(inputs, settings),
            plan.plan.forget,
        )
        job = Job(self._host, f"compaction of {shard.id}", pool=POOL)
        self._job = job
        late = threading.Timer(JOB_SECONDS, job.cancel)
        late.daemon = True
        late.start()
        parts: list[Part] = []
        try:
            if self._stopping.is_set():
                job.cancel()  # `stop` may have missed it
            with job.running() as session:
                ranges = compact_task.ranges(plan.groups[0], settings.part_target_bytes)
                if len(plan.groups) == 1 and ranges > 1:
                    tasks = _shuffled(session.sparkContext, work, plan.groups[0], ranges)
                else:
                    tasks = _grouped(session.sparkContext, work, plan.groups)
                at_once = min(MERGES_AT_ONCE, max(1, self._host.cores - 1))
                for wave in _waves(tasks.getNumPartitions(), at_once):
                    parts += session.sparkContext.runJob(tasks, list, wave)
        except BaseException as e:
            # The sweeper finds the files that other tasks wrote.
            _discard(shard, parts)
            if isinstance(e, QueryCanceled):
                raise TidemillError("the job was stopped") from None
            raise
        finally:
            late.cancel()
            self._job = None
        return tuple(parts)


def _shuffled(context: Any, work: CompactionWork, parts: Sequence[Part], ranges: int) -> Any:
    """Tasks that return the parts of one range each. The first stage runs with the first of them. Its output
    is kept for the others until the end of this function."""
    packed = pickle.dumps(work)
    shares = [pickle.dumps(share) for share in compact_task.shares(parts)]
    cut = context.parallelize(shares, len(shares)).mapPartitions(partial(_cut, packed, ranges))
    return cut.partitionBy(ranges, _itself).mapPartitions(partial(_merge_range, packed))


def _grouped(context: Any, work: CompactionWork, groups: Sequence[Sequence[Part]]) -> Any:
    """Tasks that return the parts of one group each."""
    payloads = [pickle.dumps(tuple(group)) for group in groups]
    return context.parallelize(payloads, len(payloads)).mapPartitions(
        partial(_merge_group, pickle.dumps(work))
    )


def _waves(count: int, at_once: int) -> list[list[int]]:
    return [list(range(first, min(first + at_once, count))) for first in range(0, count, at_once)]


def _cut(packed: bytes, ranges: int, payloads: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    work: CompactionWork = pickle.loads(packed)
    for payload in payloads:
        pieces: list[CompactionPiece] = pickle.loads(payload)
        yield from compact_task.cut(work, pieces, ranges)


def _merge_range(packed: bytes, slices: Iterator[tuple[int, bytes]]) -> Iterator[Part]:
    yield from compact_task.merge_range(pickle.loads(packed), (data for _, data in slices))


def _merge_group(packed: bytes, payloads: Iterator[bytes]) -> Iterator[Part]:
    work: CompactionWork = pickle.loads(packed)
    for payload in payloads:
        yield from compact_task.merge_group(work, pickle.loads(payload))


def _itself(number: int) -> int:
    return number


def _discard(shard: Shard, parts: Sequence[Part]) -> None:
    shard.blobs.delete([part_path(shard.id, part) for part in parts])


def _bytes(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def _size(parts: Sequence[Part]) -> str:
    return f"{len(parts)} parts, {sum(p.rows for p in parts)} updates, {_bytes(parts) / 1e6:.0f} MB"
