"""The scheduler of independent state machines, shared by materialized views and sinks.

`views.service` and `sinks.service` add their machines and implement a step. One thread finds the
machines that are due and never blocks. Steps run on a pool, one at a time per machine. A machine is
stepped when it was woken, when its last step reported more work, and about once a second. A machine
whose step fails is retried with growing delays; the others are not affected.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

# How often a machine is stepped without an event, because its inputs advance with time.
IDLE_SECONDS = 1.0
# After a failure a machine waits so long, twice as long after the next, and so on.
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
# Steps that are under way when the server stops are given so long to end.
STOP_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class Stepped:
    """A machine's place among the others. Guarded by the stepper's lock."""

    busy: bool = False
    woken: bool = True
    # When (monotonic) it is next stepped, and not before when it failed.
    due: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    # It was dropped. The thread that steps it closes it.
    gone: bool = False

    def ready(self, now: float) -> bool:
        return not self.busy and (self.woken or now >= self.due) and now >= self.retry_at

    def next_look(self) -> float:
        return max(0.0 if self.woken else self.due, self.retry_at)


T = TypeVar("T", bound=Stepped)


class Stepper(ABC, Generic[T]):
    """Thread-safe. A subclass puts machines into `_all` and takes them out, under `_changed`."""

    def __init__(self, name: str, threads: int) -> None:
        # Guards all below, and what a subclass has; notified when a machine may be due, and when a step ends.
        self._changed = threading.Condition()
        self._all: dict[str, T] = {}
        self._stopping = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-step")
        self._thread = threading.Thread(target=self._run, name=f"{name}s", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        with self._changed:
            self._stopping = True
            for each in self._all.values():
                self._cancel(each)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(e.busy for e in self._all.values()), STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what a machine is

    @abstractmethod
    def _step(self, each: T) -> bool:
        """Take a step; whether there may be more at once. May block, and raise."""

    @abstractmethod
    def _failed(self, each: T, error: Exception) -> None:
        """Its step raised; it will be tried again."""

    @abstractmethod
    def _close(self, each: T) -> None:
        """Close a dropped machine that no thread steps. Called under the lock, so it does not wait."""

    def _cancel(self, each: T) -> None:
        """The step under way should end soon. Under the lock."""

    def _stepped(self, each: T) -> None:
        """A step has ended, well or not. Not under the lock."""

    # -- for subclasses

    def _drop(self, item_id: str) -> T:
        """Under the lock."""
        each = self._all.pop(item_id)
        each.gone = True
        self._cancel(each)
        if not each.busy:
            self._close(each)
        return each

    def _wake(self, some: Iterable[T]) -> None:
        """Under the lock."""
        woken = False
        for each in some:
            each.woken = woken = True
        if woken:
            self._changed.notify_all()

    # -- stepping

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                now = time.monotonic()
                for each in self._all.values():
                    if each.ready(now):
                        each.busy, each.woken, each.due = True, False, now + IDLE_SECONDS
                        self._pool.submit(self._take, each)
                looks = [e.next_look() for e in self._all.values() if not e.busy]
                self._changed.wait(max(0.0, min(looks, default=now + IDLE_SECONDS) - now))

    def _take(self, each: T) -> None:
        more = False
        try:
            more = self._step(each)
            each.failures = 0
        except Exception as e:
            each.retry_at = time.monotonic() + min(FIRST_RETRY_SECONDS * 2**each.failures, LAST_RETRY_SECONDS)
            each.failures += 1
            self._failed(each, e)
        finally:
            with self._changed:
                each.busy = False
                each.woken = each.woken or more
                if each.gone:
                    self._close(each)
                self._changed.notify_all()
            self._stepped(each)
