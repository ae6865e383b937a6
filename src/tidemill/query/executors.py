"""The executors of a session whose tasks run in separate processes.

`SparkHost` asks how many tasks they run at once, waits for the first executor before it warms up, and checks
whether the cluster still has the application. A master that is unreachable, or that gave up the application,
ends the session although the driver's process is still alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tidemill.errors import Unavailable

log = logging.getLogger(__name__)

# How long an answer about the number of cores counts: executors come and go in seconds.
CACHE_SECONDS = 5.0
# Interval of the checks whether executors exist, or the session ended.
LOOK_SECONDS = 0.1
# After the first executor, others are waited for as long as more arrive: the warm-up is for them.
SETTLE_SECONDS = 1.0
# How often the log reports that no executor exists.
TELL_SECONDS = 30.0
# Between two looks whether the cluster still has us.
WATCH_SECONDS = 2.0
# The session is restarted when all executors have been gone for this long: a standalone master that was
# restarted has forgotten the application, and does not report it. (The first ones may take longer: the
# cluster may be full, and a new application is last in the queue.)
LOST_SECONDS = 120.0
FIRST_SECONDS = 900.0


class Executors:
    """Of one SparkContext. Thread-safe."""

    def __init__(self, context: Any, master: str) -> None:
        self._scala: Any = context._jsc.sc()
        self._master = master
        self._lock = threading.Lock()
        self._cores = 0
        self._asked = float("-inf")
        # Since when there has been none.
        self._empty = time.monotonic()

    def cores(self) -> int:
        """How many tasks run at once; 0 without executors."""
        now = time.monotonic()
        with self._lock:
            if now - self._asked < CACHE_SECONDS:
                return self._cores
        return self._ask()

    def _ask(self) -> int:
        profile = self._scala.resourceProfileManager().defaultResourceProfile()
        found = int(self._scala.maxNumConcurrentTasks(profile))
        with self._lock:
            self._cores, self._asked = found, time.monotonic()
            if found:
                self._empty = self._asked
        return found

    @property
    def missing(self) -> float:
        """For how many seconds there have been no executors; 0 if there are some."""
        if self.cores():
            return 0.0
        with self._lock:
            return time.monotonic() - self._empty

    @property
    def ended(self) -> bool:
        """The session is over, though its process lives."""
        return bool(self._scala.isStopped())

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait until executors exist and no more arrive for a moment, or until it is `over`. Raises
        Unavailable if none arrive."""
        began = told = time.monotonic()
        seen, since = 0, began
        while not over() and not self.ended:
            found, now = self._ask(), time.monotonic()
            if found != seen:
                seen, since = found, now
            elif found and now - since >= SETTLE_SECONDS:
                return
            if not found and now - told >= TELL_SECONDS:
                told = now
                self._tell(now - began)
            if not found and now - began >= FIRST_SECONDS:
                raise Unavailable(f"no executor of Spark has come in {FIRST_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)

    def watch(self, over: Callable[[], bool]) -> str | None:
        """Until the session is of no use any more, and why; or until it is `over`. Says in the log when all
        executors are gone, and when they are back."""
        told = 0.0
        while not over():
            time.sleep(WATCH_SECONDS)
            if self.ended:
                return None if over() else "the cluster ended the application"
            self._ask()
            missing = self.missing
            if missing >= LOST_SECONDS:
                return f"there has been no executor for {missing:.0f} s"
            if not missing and told:
                log.info("Spark has executors again, with %d cores", self._cores)
                told = 0.0
            elif missing - told >= TELL_SECONDS:
                told = missing
                self._tell(missing)
        return None

    def _tell(self, seconds: float) -> None:
        log.warning(
            "there has been no executor of Spark from %s for %.0f s: are there workers with free cores and "
            "memory, and can they reach this machine?",
            self._master,
            seconds,
        )
