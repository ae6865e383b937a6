"""The scheduler that moves all sources along the clock.

At each boundary the ticker queries the positions of all due sources and binds them together. Small units
share one Spark job; each source is committed separately. A source that has much to read, or was in a job that
failed, continues alone, in its own jobs, while the others keep their boundaries (I5). A failure affects only
its source: its status shows the error, and it is retried after a delay.

One thread watches the clock and never blocks; the steps run on a pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from tidemill.errors import TidemillError
from tidemill.ingest.runner import JobFailed, Runner
from tidemill.ingest.slot import SourceSlot
from tidemill.ingest.status import RunState, TickTimes
from tidemill.ingest.task import TooSlow
from tidemill.ingest.task_packing import key_shares
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure
from tidemill.persist.outcome import Fenced
from tidemill.sources.contract import Forgotten
from tidemill.time.oracle import Oracle

log = logging.getLogger(__name__)

# Threads, separated by what they wait for, so that one kind never waits for another: rounds and shared jobs,
# sources that run alone (more of them take turns), upstreams, and the store. An upstream that does not
# respond keeps its thread for seconds (`sources.kafka.source.LOOK_SECONDS`). There are as many threads as a
# server may have sources over one broker, so that sources of other brokers still find one.
JOB_THREADS = 64
ALONE_THREADS = 64
BIND_THREADS = 128
COMMIT_THREADS = 16
# The largest binding for the shared job: about 50 ms of a core.
SHARED_RECORDS = 50_000
# Concurrent rounds and shared jobs. Sources that become due meanwhile wait and share the next job. With many
# different intervals, or on a slow machine, this gives few large jobs instead of many small ones.
SHARED_JOBS = 4
# How long a boundary waits for the positions of slow upstreams, which then join a later round.
GATHER_SECONDS = 0.1
# A unit in a shared job gives up after this time, and continues alone. Several such units may be in one task.
SHARED_UNIT_SECONDS = 1.0
# A shared job that takes longer than this plus the time of its units is stopped, because a reader in it
# hangs.
SHARED_JOB_SECONDS = 30.0
# The same for a source that runs alone. A binding is at most `ReadLimits.records`, seconds of work.
ALONE_SECONDS = 300.0
# A tick that takes longer is logged, with its slowest phase.
SLOW_SECONDS = 1.0
# How long `stop` waits for running steps.
STOP_SECONDS = 5.0
# The maximum sleep of the clock's thread, and so the delay until it notices a new source.
LOOK_SECONDS = 0.5

SHARED_LANE = "tick"
ALONE_LANE = "alone"


class Ticker:
    """Thread-safe. `start` begins; `stop` ends after the running steps."""

    def __init__(
        self,
        oracle: Oracle,
        runner: Runner,
        *,
        on_lost: Callable[[TidemillError], None] | None = None,
        on_moved: Callable[[SourceSlot], None] | None = None,
    ) -> None:
        self._oracle = oracle
        self._runner = runner
        self._on_lost = on_lost
        # Called when a source's collections have new updates, or are complete up to a later time.
        self._on_moved = on_moved
        # Guards `_slots` and `busy` of each; notified when a slot is released.
        self._changed = threading.Condition()
        self._slots: dict[str, SourceSlot] = {}
        # The number of running `SHARED_JOBS`, and whether anything has changed since the clock's thread last
        # checked; guarded, too.
        self._sharing = 0
        self._news = False
        self._stopping = threading.Event()
        self._jobs = ThreadPoolExecutor(JOB_THREADS, thread_name_prefix="tick-job")
        self._alones = ThreadPoolExecutor(ALONE_THREADS, thread_name_prefix="tick-alone")
        self._binds = ThreadPoolExecutor(BIND_THREADS, thread_name_prefix="tick-bind")
        self._commits = ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="tick-commit")
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Start no new steps. Running ones finish, unless that takes longer than `seconds`; then they have
        the same effect as those of a killed process."""
        self._stopping.set()
        with self._changed:
            self._tell()
        if self._thread.is_alive():
            self._thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not any(s.busy for s in self._slots.values()), seconds)
        for pool in (self._jobs, self._alones, self._binds, self._commits):
            pool.shutdown(wait=False, cancel_futures=True)

    def add(self, slot: SourceSlot) -> None:
        with self._changed:
            self._slots[slot.id] = slot
            self._tell()

    def remove(self, source_id: str) -> SourceSlot | None:
        """Stop stepping the source; its running work is not committed. The caller may drop its shards."""
        with self._changed:
            slot = self._slots.pop(source_id, None)
            if slot is not None:
                slot.removed = True
            return slot

    def slot(self, source_id: str) -> SourceSlot | None:
        with self._changed:
            return self._slots.get(source_id)

    def slots(self) -> list[SourceSlot]:
        with self._changed:
            return list(self._slots.values())

    def when_free(self, slot: SourceSlot, step: Callable[[], None]) -> None:
        """Run `step` while no other thread steps the slot's machine: at once, or when the current step has
        ended. Returns before that."""
        with self._changed:
            slot.waiting.append(step)
            if slot.busy:
                return
            slot.busy = True
        self._free(slot)

    def _free(self, slot: SourceSlot) -> None:
        """Release a slot that this thread holds."""
        with self._changed:
            if not slot.waiting or self._stopping.is_set():
                slot.busy = False
                self._tell()
                return
            steps, slot.waiting = slot.waiting, []
            # It is checked again at once, because the steps may have changed its state.
            slot.due = 0
        self._commits.submit(self._take_steps, slot, steps)

    def _take_steps(self, slot: SourceSlot, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("source %s could not be changed for an unforeseen reason", slot.name)
        self._free(slot)

    def wait_for(self, what: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until `what` holds, which is checked whenever a source has advanced. Returns False at the
        (monotonic) deadline, or when the ticker stops."""
        with self._changed:
            while not what():
                left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - time.monotonic())
                if left <= 0 or self._stopping.is_set():
                    return False
                self._changed.wait(left)
            return True

    # -- the clock

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._look()
            except TidemillError as e:
                log.warning("the ticker stumbled, it goes on: %s", e)
                pause = LOOK_SECONDS
            with self._changed:
                if not self._news:
                    self._changed.wait(pause)

    def _tell(self) -> None:
        """Wake the clock's thread. The caller holds the lock."""
        self._news = True
        self._changed.notify_all()

    def _share(self, by: int) -> None:
        with self._changed:
            self._sharing += by
            self._tell()

    def _look(self) -> float:
        """Take the due sources. Returns the time until the next one is due."""
        now = self._oracle.now()
        with self._changed:
            self._news = False
            room = self._sharing < SHARED_JOBS
            ready = self._runner.ready
            due = [s for s in self._slots.values() if ready and (room or s.alone) and s.ready(now)]
            for slot in due:
                slot.busy = True
            waiting = [s.due for s in self._slots.values() if not s.busy]
        if due:
            self._share(1)
            self._jobs.submit(self._guarded, due, self._round, now)
        return min([LOOK_SECONDS, *(max(0.0, at - now) / 1000 for at in waiting if at > now)])

    def _guarded(
        self, slots: Sequence[SourceSlot], step: Callable[[Sequence[SourceSlot], int], None], now: int
    ) -> None:
        """A bug in a step must not leave slots busy forever."""
        try:
            step(slots, now)
        except BaseException as e:
            log.exception("a tick failed for an unforeseen reason")
            for slot in slots:
                if slot.busy:
                    slot.failed(e if isinstance(e, TidemillError) else TidemillError(str(e)))
                    self._release(slot)

    def _release(self, slot: SourceSlot) -> None:
        slot.next_due(self._oracle.now())
        self._free(slot)

    # -- a round: everything that is due at one boundary

    def _round(self, slots: Sequence[SourceSlot], now: int) -> None:
        try:
            self._bind_all(slots, now)
        finally:
            self._share(-1)

    def _bind_all(self, slots: Sequence[SourceSlot], now: int) -> None:
        binding = {self._binds.submit(self._bind, slot, now): slot for slot in slots}
        done, late = wait(binding, GATHER_SECONDS)
        for future in late:
            future.add_done_callback(lambda f, s=binding[future]: self._came_late(f, s))
        together: list[SourceSlot] = []
        seconds: dict[str, float] = {}
        for future in done:
            slot = binding[future]
            found = future.result()
            if found is None:
                self._release(slot)
            elif slot.alone or slot.machine.delayed or slot.machine.pending_rows > SHARED_RECORDS:
                self._go_alone(slot)
            else:
                seconds[slot.id] = found
                together.append(slot)
        if together:
            self._shared(together, seconds)

    def _bind(self, slot: SourceSlot, now: int) -> float | None:
        """Bind one source. Returns the duration, or None if there is nothing to read, or it failed."""
        began = time.monotonic()
        try:
            binding = slot.machine.bind(now)
        except Exception as e:
            slot.trace.phase("bind", began)
            self._fail(slot, e)
            return None
        if binding is None:
            slot.report.slow = None
            self._succeeded(slot)
            return None
        slot.trace.phase("bind", began)
        return time.monotonic() - began

    def _came_late(self, future: Future[float | None], slot: SourceSlot) -> None:
        """Its position arrived late. If it has new records they are bound now, and the next round includes it
        at once."""
        if future.cancelled() or future.exception() is not None or future.result() is None:
            self._release(slot)
        else:
            self._release_now(slot)

    def _shared(self, slots: Sequence[SourceSlot], bind_seconds: dict[str, float]) -> None:
        work: list[tuple[SourceSlot, Unit]] = []
        for slot in slots:
            try:
                work.append((slot, slot.machine.unit(1, SHARED_UNIT_SECONDS)))
            except Exception as e:
                self._fail(slot, e)
                self._release(slot)
        # Units without keys need one stage, others two. They run in separate jobs, so that neither waits for
        # the other.
        for keyed in (False, True):
            group = [(slot, unit) for slot, unit in work if unit.keyed is keyed]
            if group:
                self._share(1)
                self._jobs.submit(self._shared_job, group, bind_seconds)

    def _shared_job(self, group: Sequence[tuple[SourceSlot, Unit]], bind_seconds: dict[str, float]) -> None:
        def work(slots: Sequence[SourceSlot], _: int) -> None:
            began = time.monotonic()
            try:
                units = [unit for _, unit in group]
                seconds = SHARED_JOB_SECONDS + len(units) * SHARED_UNIT_SECONDS
                found = self._runner.run(units, lane=SHARED_LANE, seconds=seconds)
            except Exception as e:
                if not isinstance(e, JobFailed):
                    log.exception("a shared job failed for an unforeseen reason")
                    e = JobFailed(f"{type(e).__name__}: {e}")
                for slot in slots:
                    slot.trace.phase("job", began)
                self._blame(group, e)
                return
            job_seconds = time.monotonic() - began
            for slot in slots:
                slot.trace.phase("job", began)
            commits = [
                self._commits.submit(
                    self._finish_shared, slot, unit, facts, bind_seconds[slot.id], job_seconds
                )
                for (slot, unit), facts in zip(group, found, strict=True)
            ]
            wait(commits)
            for slot in slots:
                if slot.alone and not slot.failures:
                    self._go_alone(slot)
                else:
                    self._release(slot)

        try:
            self._guarded([slot for slot, _ in group], work, 0)
        finally:
            self._share(-1)

    def _blame(self, group: Sequence[tuple[SourceSlot, Unit]], error: JobFailed) -> None:
        """A job failed as a whole. If Spark itself is available, one of its units may be the cause: each is
        tried alone, at once."""
        for slot, unit in group:
            slot.machine.abandon(unit)
            if self._runner.ready and len(group) > 1:
                slot.alone = True
                slot.report.statistics.jobs_failed += 1
            else:
                slot.failed(error)
                slot.alone = True
            self._release_now(slot)

    def _release_now(self, slot: SourceSlot) -> None:
        """Release the slot, due at once, except for the delay after a failure."""
        slot.due = 0
        self._free(slot)

    # -- a source that runs alone

    def _go_alone(self, slot: SourceSlot) -> None:
        slot.alone = True
        self._alones.submit(self._guarded, [slot], self._alone, 0)

    def _alone(self, slots: Sequence[SourceSlot], _: int) -> None:
        """Bind, read and commit until it has caught up, or another thread waits for the slot. The first
        binding exists already."""
        (slot,) = slots
        bind_seconds: float | None = 0.0
        while bind_seconds is not None and not (self._stopping.is_set() or slot.removed or slot.waiting):
            machine = slot.machine
            records = machine.pending_rows
            cores = self._runner.cores
            shares = key_shares(records, cores, at_hand=slot.at_hand)
            try:
                unit = machine.unit(machine.pace.ways(records, cores), ALONE_SECONDS, shares)
            except Exception as e:
                self._fail(slot, e)
                break
            began = time.monotonic()
            unit = replace(unit, seconds=machine.unit_seconds(unit.seconds))
            try:
                (facts,) = self._runner.run([unit], lane=ALONE_LANE, seconds=unit.seconds)
            except Exception as e:
                slot.trace.phase("job", began)
                machine.abandon(unit)
                self._fail(slot, e)
                break
            job_seconds = time.monotonic() - began
            slot.trace.phase("job", began)
            if self._again(slot, unit, facts):
                continue
            if not self._finish(slot, unit, facts, bind_seconds, job_seconds):
                break
            machine.pace.learn(facts, job_seconds, machine.weight)
            if not machine.catching_up:
                slot.alone = False
                break
            bind_seconds = self._bind(slot, self._oracle.now())
        self._release(slot)

    # -- the end of a tick

    def _finish_shared(self, slot: SourceSlot, unit: Unit, facts: UnitFacts, bind: float, job: float) -> None:
        if self._again(slot, unit, facts):
            # In a job of its own, at once.
            slot.alone = True
        else:
            self._finish(slot, unit, facts, bind, job)

    def _again(self, slot: SourceSlot, unit: Unit, facts: UnitFacts) -> bool:
        """Whether the unit must be read again. What is wrong with it becomes its failure."""
        if slot.removed or facts.failure is not None:
            return False
        try:
            again = slot.machine.review(unit, facts)
        except TidemillError as e:
            facts.failure = UnitFailure.of(e)
            return False
        if again:
            slot.machine.abandon(unit)
        return again

    def _finish(self, slot: SourceSlot, unit: Unit, facts: UnitFacts, bind: float, job: float) -> bool:
        """Commit, or record the failure. Returns True if it is committed."""
        if slot.removed:
            slot.machine.abandon(unit)
            return False
        if facts.failure is not None:
            instead = self._instead(slot, unit, facts.failure)
            if instead is not None:
                return self._finish(slot, unit, instead, bind, job)
            slot.machine.abandon(unit)
            error = facts.failure.error()
            if facts.failure.sqlstate == TooSlow.sqlstate and unit.shares == 1:
                # Not a failure: it continues alone, divided among tasks.
                slot.alone, slot.at_hand = True, False
                log.info("source %s goes on in jobs of its own: %s", slot.name, error.primary)
            else:
                self._fail(slot, error)
            return False
        began = time.monotonic()
        statistics = slot.report.statistics
        statistics.messages_received += facts.records
        statistics.bytes_received += facts.bytes
        statistics.updates_staged += facts.updates
        statistics.state_hits += facts.hits
        statistics.state_misses += facts.misses
        if unit.upserts:
            statistics.state_bytes = facts.state_bytes
        elif statistics.state_bytes is not None:
            # Changes that are no longer upserts have none.
            statistics.state_bytes = 0
        try:
            slot.machine.commit(unit, facts)
        except Exception as e:
            self._fail(slot, e)
            return False
        slot.at_hand = True
        statistics.updates_committed += facts.updates
        statistics.ticks += 1
        times = TickTimes(bind, job, time.monotonic() - began)
        slot.trace.phase("commit", began)
        slot.trace.end(
            {
                "tidemill.time": unit.time,
                "tidemill.records": facts.records,
                "tidemill.bytes": facts.bytes,
                "tidemill.updates": facts.updates,
                "tidemill.alone": slot.alone,
            }
        )
        slot.report.last = times
        slot.report.histogram.add(times)
        slot.report.slow = times.all if times.all * 1000 > slot.machine.timing.interval else None
        self._succeeded(slot)
        if times.all > SLOW_SECONDS and slot.report.status.state is RunState.RUNNING and not slot.alone:
            log.warning(
                "slow tick of source %s: %.0f ms, most of it in %s (bind %.0f, job %.0f, commit %.0f)",
                slot.name,
                times.all * 1000,
                times.slowest,
                bind * 1000,
                job * 1000,
                times.commit * 1000,
            )
        return True

    def _instead(self, slot: SourceSlot, unit: Unit, failure: UnitFailure) -> UnitFacts | None:
        """Facts to commit instead: the error of a table that cannot begin where its source does."""
        if failure.sqlstate != Forgotten.sqlstate:
            return None
        try:
            facts = slot.machine.instead(unit, failure)
        except TidemillError as e:
            log.warning("an error of source %s could not be written, it is tried again: %s", slot.name, e)
            return None
        if facts is not None:
            log.warning("a table of source %s cannot begin where it does: %s", slot.name, failure.primary)
        return facts

    def _succeeded(self, slot: SourceSlot) -> None:
        slot.succeeded()
        if self._on_moved is not None:
            self._on_moved(slot)

    def _fail(self, slot: SourceSlot, error: Exception) -> None:
        if isinstance(error, Fenced) and self._on_lost is not None:
            self._on_lost(error)
        if not isinstance(error, TidemillError):
            log.exception("source %s failed for an unforeseen reason", slot.name, exc_info=error)
            error = TidemillError(f"{type(error).__name__}: {error}")
        elif slot.news(error):
            log.warning("source %s is stalled: %s", slot.name, error)
        slot.failed(error)
