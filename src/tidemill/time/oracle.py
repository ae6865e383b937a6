"""Timestamp oracle: hands out the times of reads and writes on the one timeline of an environment.

Called by readers and committers (`persist.txns`, the catalog, sessions). Promises (I6), across crashes and
whatever the wall clock does:
- Write times strictly increase, each greater than every read time handed out before.
- A read time is at or after every completed write, and every write at or before it is complete: the contents
  at that time are final.
- Read times never go back.
- No time beyond the durable lease is handed out, so a successor that starts after the lease starts after
  every time.

The lease is renewed in the background well in advance: in steady state no call waits for the store. When the
store fails (a full disk), reads continue at a fixed time, and writes fail until the store recovers. When
another server took over the environment (`LeaseLost`), every later call raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from tidemill.errors import Internal, TidemillError, Unavailable
from tidemill.time.bounds import MAX_UPPER, check_time
from tidemill.time.clock import Clock
from tidemill.time.steering import Jump, Steering

log = logging.getLogger(__name__)

# How far ahead of the wall clock time is leased. A crash costs a successor at most this much of being ahead;
# each renewal is one commit to the clock shard, at half this interval: 17,280 a day.
LEASE_MS = 10_000
# What is leased ahead while our time is ahead of the wall clock anyway (after a crash, or a clock set back),
# so that a process that crashes in a loop does not drive time away by LEASE_MS each round.
LEASE_AHEAD_MS = 1_000
# A failed renewal is tried again after this long: ten times within what is left of a lease at half.
RETRY_SECONDS = 0.5


class LeaseLost(TidemillError):
    """Another process holds the environment now; nothing handed out from here on would be safe."""

    sqlstate = "57P01"


class LeaseStore(Protocol):
    """Where the lease is kept. Called by one thread at a time."""

    @property
    def leased(self) -> int:
        """The end of all leases of all processes: times below it may have been used."""
        ...

    def extend(self, until: int) -> None:
        """Lease the times before `until`, durably before it returns. Raises `LeaseLost` if another process
        holds the environment; after any other error, the caller may retry."""
        ...


class Oracle:
    """Thread-safe. `on_jump` is called with the oracle's lock held and must be quick; `on_lost` is called
    once, without it. `start` runs the background renewal; without it (tests with a settable clock) call
    `renew`."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        *,
        on_jump: Callable[[Jump], None] | None = None,
        on_lost: Callable[[TidemillError], None] | None = None,
    ) -> None:
        self._store = store
        self._on_jump = on_jump
        self._on_lost = on_lost
        # Guards everything below it; also the condition that readers wait on for writes in flight.
        self._cond = threading.Condition()
        # One extension at a time, and never under `_cond`: the store may take long.
        self._extending = threading.Lock()
        # Times < _leased are ours to hand out.
        self._leased = store.leased
        self._steering = Steering(clock, self._leased, self._jumped)
        # The greatest times handed out. They start at the end of the old lease: a predecessor may have used
        # all of it.
        self._last_write = self._leased - 1
        self._last_read = self._leased - 1
        # The greatest write time that was completed; a read is never below it.
        self._completed = self._leased - 1
        # Write times that were issued and not yet completed. Few: one per independent writer.
        self._in_flight: set[int] = set()
        # Set for good once the lease is lost.
        self._lost: TidemillError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._extend(self._last_write + 1)

    # -- handing out -----------------------------------------------------------------------------------------

    def write_ts(self) -> int:
        """A time for a write. The caller must `complete` it, whether the write succeeds or not."""
        while True:
            with self._cond:
                self._check()
                ts = check_time(max(self._steering.now_ms(), self._last_write + 1, self._last_read + 1))
                if ts < self._leased:
                    self._last_write = ts
                    self._in_flight.add(ts)
                    return ts
            self._extend(ts)

    def complete(self, ts: int) -> None:
        """The write at `ts` is visible to every reader, or certainly never will be."""
        with self._cond:
            if ts not in self._in_flight:
                raise Internal(f"write time {ts} completed twice or never handed out")
            self._in_flight.remove(ts)
            self._completed = max(self._completed, ts)
            self._cond.notify_all()

    def read_ts(self, timeout: float | None = None) -> int:
        """A time to read at. Waits only while a write older than a completed one is in flight (two writers
        that commit apart from each other): then no time would be both final and late enough."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._cond:
            self._check()
            while self._in_flight and (oldest := min(self._in_flight)) <= self._completed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Unavailable(
                        "no time to read at",
                        detail=f"The write at {oldest} is not finished, one at {self._completed} is.",
                    )
                self._cond.wait(left)
                self._check()
            ts = max(min(self._steering.now_ms(), self._leased - 1), self._completed, self._last_read)
            if self._in_flight:
                ts = min(ts, min(self._in_flight) - 1)
            if ts < self._last_read:
                raise Internal(f"read time would go back from {self._last_read} to {ts}")
            self._last_read = ts
            return ts

    def advance_to(self, ts: int) -> None:
        """A time from elsewhere (a source, a restored shard): from here on all times handed out are
        greater."""
        check_time(ts + 1)
        if ts >= self.leased:
            self._extend(ts + 1)
        with self._cond:
            self._check()
            self._last_write = max(self._last_write, ts)
            self._steering.raise_to(ts)

    def now(self) -> int:
        """The steady time in milliseconds; hands nothing out."""
        with self._cond:
            return self._steering.now_ms()

    @property
    def leased(self) -> int:
        """Times below it are durably ours."""
        with self._cond:
            return self._leased

    # -- the lease -------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Extend the lease if half of it is used up."""
        with self._cond:
            self._check()
            now = self._steering.now_ms()
            if self._leased - now > self._ahead(now) // 2:
                return
        self._extend(now)

    def start(self) -> None:
        """Renew in the background from here on."""
        if self._thread is not None:
            raise Internal("the oracle was started twice")
        self._thread = threading.Thread(target=self._run, name="oracle-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop renewing. Times already handed out stay good."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """Nothing is leased meanwhile: for others who write to where the lease is kept."""
        with self._extending:
            yield

    def lose(self, error: TidemillError) -> None:
        """The environment is no longer ours: every later call raises `error`."""
        with self._cond:
            if self._lost is not None:
                return
            self._lost = error
            self._cond.notify_all()
        self._stop.set()
        if self._on_lost is not None:
            self._on_lost(error)

    def _ahead(self, now: int) -> int:
        """How far beyond `now` to lease; `_cond` is held."""
        return max(LEASE_AHEAD_MS, LEASE_MS - max(0, now - self._steering.wall_ms))

    def _extend(self, needed: int) -> None:
        """Lease so that `needed` is covered, and some more."""
        with self._extending:
            with self._cond:
                self._check()
                until = min(max(needed, self._steering.now_ms()) + self._ahead(needed), MAX_UPPER)
                if until <= self._leased:
                    if needed < self._leased:
                        return  # another caller extended meanwhile
                    check_time(needed)
            try:
                self._store.extend(until)
            except LeaseLost as e:
                self.lose(e)
                raise
            with self._cond:
                self._leased = until
                self._cond.notify_all()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.renew()
                with self._cond:
                    now = self._steering.now_ms()
                    left = self._leased - now - self._ahead(now) // 2
                # Never longer than a second: a jump of the clock must be seen when it happens.
                self._stop.wait(min(1.0, max(0.01, left / 1000)))
            except LeaseLost:
                return
            except Exception as e:
                log.warning("the lease on time could not be renewed, trying again: %s", e)
                self._stop.wait(RETRY_SECONDS)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _jumped(self, jump: Jump) -> None:
        log.warning(
            "the wall clock jumped by %.1f s; time goes on steadily from %d%s",
            jump.by_ms / 1000,
            jump.at_ms,
            " and follows at double speed" if jump.by_ms > 0 else "",
        )
        if self._on_jump is not None:
            self._on_jump(jump)
