"""The oracle against the promises of I6: random clock jumps, crashes and reopenings, failing stores, many
threads."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.clock import ManualClock
from tidemill.errors import Internal, LimitExceeded, Unavailable
from tidemill.time.bounds import MAX_TIME, MAX_UPPER
from tidemill.time.clock import SystemClock
from tidemill.time.oracle import LEASE_MS, LeaseLost, Oracle
from tidemill.time.steering import JUMP_US, Jump, Steering


class MemoryStore:
    """A lease that survives oracles. `fail` makes the next extension fail; `lost` every one."""

    def __init__(self, leased: int = 0) -> None:
        self.leased = leased
        self.fail = 0
        self.lost = False
        self.extensions = 0

    def extend(self, until: int) -> None:
        if self.lost:
            raise LeaseLost("taken over")
        if self.fail:
            self.fail -= 1
            raise OSError("no space")
        assert until > self.leased
        self.leased = until
        self.extensions += 1


class OracleMachine(RuleBasedStateMachine):
    """Every time ever handed out, over any number of lives of the process, obeys the promises."""

    @initialize(wall=st.integers(0, 10_000))
    def start(self, wall: int) -> None:
        self.clock = ManualClock(wall)
        self.store = MemoryStore()
        self.oracle = Oracle(self.store, self.clock)
        self.last_write = -1
        self.last_read = -1
        self.completed = -1
        self.in_flight: list[int] = []
        self.seen: set[int] = set()

    @rule(ms=st.integers(0, 30_000))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.one_of(st.integers(-10_000_000, 10_000_000), st.integers(-50, 50)))
    def jump(self, ms: int) -> None:
        self.clock.jump(ms)

    @rule()
    def crash(self) -> None:
        self.clock.restart()
        before = self.store.leased
        self.oracle = Oracle(self.store, self.clock)
        self.in_flight = []
        # Whatever the predecessor handed out is below everything from now on.
        assert self.oracle.read_ts() >= before - 1

    @rule(times=st.integers(1, 2))
    def store_fails(self, times: int) -> None:
        self.store.fail = times
        with contextlib.suppress(OSError):
            self.oracle.renew()
        self.store.fail = 0

    @rule()
    def renew(self) -> None:
        self.oracle.renew()

    @rule()
    def write(self) -> None:
        ts = self.oracle.write_ts()
        assert ts > self.last_write and ts > self.last_read
        assert ts < self.store.leased
        assert ts not in self.seen
        self.seen.add(ts)
        self.last_write = ts
        self.in_flight.append(ts)

    @rule()
    def complete_oldest(self) -> None:
        if self.in_flight:
            ts = self.in_flight.pop(0)
            self.oracle.complete(ts)
            self.completed = max(self.completed, ts)

    @rule()
    def read(self) -> None:
        ts = self.oracle.read_ts(timeout=0)
        assert ts >= self.last_read and ts >= self.completed
        assert ts < self.store.leased
        assert not self.in_flight or ts < min(self.in_flight)
        self.last_read = ts

    @rule(ms=st.integers(0, 100_000))
    def advance_to(self, ms: int) -> None:
        ts = self.oracle.now() + ms
        self.oracle.advance_to(ts)
        assert ts < self.store.leased
        self.last_write = max(self.last_write, ts)

    @invariant()
    def lease_covers(self) -> None:
        if hasattr(self, "store"):
            assert max(self.last_read, max(self.seen, default=-1)) < self.store.leased


TestOracleMachine = OracleMachine.TestCase
TestOracleMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_machine_catches_an_oracle_that_forgets_its_lease() -> None:
    """I6, broken on purpose: a successor that believes the wall clock alone hands out old times again."""
    clock, store = ManualClock(1_000_000), MemoryStore()
    first = Oracle(store, clock)
    clock.advance(3_000)
    used = first.write_ts()
    clock.jump(-2_000)
    forgetful = Oracle(MemoryStore(), clock)
    assert forgetful.write_ts() < used
    assert Oracle(store, clock).write_ts() > used


def test_reads_wait_for_an_older_write_in_flight() -> None:
    oracle = Oracle(MemoryStore(), ManualClock())
    older, newer = oracle.write_ts(), oracle.write_ts()
    assert oracle.read_ts() < older
    oracle.complete(newer)
    with pytest.raises(Unavailable, match="no time to read at"):
        oracle.read_ts(timeout=0.01)
    threading.Timer(0.05, oracle.complete, [older]).start()
    assert oracle.read_ts(timeout=120) >= newer
    with pytest.raises(Internal, match="completed twice"):
        oracle.complete(older)


def test_a_jump_forward_is_followed_slowly_and_reported() -> None:
    jumps: list[Jump] = []
    clock = ManualClock(1_000_000)
    steering = Steering(clock, on_jump=jumps.append)
    clock.jump(30_000)
    assert steering.now_ms() == 1_030_000 and not jumps
    clock.jump(3_600_000)
    assert steering.now_ms() == 1_030_000
    assert [j.by_ms for j in jumps] == [3_600_000]
    clock.advance(1_000)
    assert steering.now_ms() == 1_032_000  # double speed
    clock.jump(-3_600_000)  # somebody mended it
    assert steering.now_ms() == 1_032_000
    assert not steering.catching_up
    assert [j.by_ms for j in jumps] == [3_600_000, -3_600_000]
    clock.advance(800)
    assert steering.now_ms() == 1_032_400  # half speed until the wall clock (now 1,031,800) is level
    clock.advance(1_000)
    assert steering.now_ms() == 1_032_800
    clock.advance(200)
    assert steering.now_ms() == 1_033_000


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(-200_000, 200_000)), max_size=30))
def test_steering_is_steady(moves: list[tuple[int, int]]) -> None:
    clock = ManualClock(1_000_000)
    steering = Steering(clock)
    last = steering.now_ms()
    for passed, jump in moves:
        clock.advance(passed)
        clock.jump(jump)
        now = steering.now_ms()
        assert now >= last
        # Never faster than the wall clock's sane steps, nor twice real time.
        assert now <= last + max(2 * passed, passed + JUMP_US // 1000) + 1
        last = now


def test_a_crash_loop_does_not_drive_time_away() -> None:
    clock, store = ManualClock(1_000_000), MemoryStore()
    for _ in range(100):
        Oracle(store, clock)
        clock.advance(100)
    # 100 starts in ten seconds: about a second each beyond the first lease at most, not LEASE_MS each.
    assert store.leased - 1_010_000 < LEASE_MS + 100 * 1_100


def test_time_stays_in_range() -> None:
    oracle = Oracle(MemoryStore(MAX_UPPER - 3), ManualClock())
    assert oracle.write_ts() == MAX_TIME - 2
    assert oracle.write_ts() == MAX_TIME - 1
    assert oracle.write_ts() == MAX_TIME
    with pytest.raises(LimitExceeded, match="out of range"):
        oracle.write_ts()
    with pytest.raises(LimitExceeded, match="out of range"):
        Oracle(MemoryStore(), ManualClock()).advance_to(MAX_UPPER)


def test_a_failing_store_stops_writes_not_reads() -> None:
    clock, store = ManualClock(), MemoryStore()
    oracle = Oracle(store, clock)
    store.fail = 10**6
    clock.advance(LEASE_MS * 2)
    frozen = oracle.read_ts()
    assert frozen == store.leased - 1
    with pytest.raises(OSError, match="no space"):
        oracle.write_ts()
    assert oracle.read_ts() == frozen
    store.fail = 0
    assert oracle.write_ts() > frozen


def test_a_lost_lease_is_final() -> None:
    lost: list[Exception] = []
    clock, store = ManualClock(), MemoryStore()
    oracle = Oracle(store, clock, on_lost=lost.append)
    store.lost = True
    clock.advance(LEASE_MS)
    with pytest.raises(LeaseLost):
        oracle.renew()
    store.lost = False
    for call in (oracle.write_ts, oracle.read_ts, oracle.renew):
        with pytest.raises(LeaseLost):
            call()
    assert len(lost) == 1


def test_threads_get_distinct_times_and_the_background_renews() -> None:
    store = MemoryStore()
    oracle = Oracle(store, SystemClock())
    oracle.start()
    taken: list[list[int]] = [[] for _ in range(8)]

    def work(mine: list[int]) -> None:
        last_read = -1
        for _ in range(300):
            ts = oracle.write_ts()
            mine.append(ts)
            oracle.complete(ts)
            read = oracle.read_ts()
            assert read >= ts and read >= last_read
            last_read = read

    threads = [threading.Thread(target=work, args=(t,)) for t in taken]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    oracle.close()
    flat = [ts for t in taken for ts in t]
    assert len(flat) == len(set(flat)) == 2400
    assert all(t == sorted(t) for t in taken)
    assert store.leased > max(flat)
