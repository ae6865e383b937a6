"""The live table of the blocking client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from tidemill.client.course import Course
from tidemill.client.driver import Driver
from tidemill.client.frames import Changes
from tidemill.client.live import LiveState
from tidemill.client.subscription import Following


class LiveTable(Following, LiveState):
    """A relation or query in memory, as it is at one complete time, and then at the next.

    Three ways to keep it going: iterate over it (each round is one time at which something changed), `run()`
    it with callbacks, or `start()` it on a thread of its own. Whichever it is, `on_snapshot(table)` is called
    when the first snapshot is complete, and `on_update(table, changes)` after each time at which something
    changed; never in between. All that reads (`arrow`, `rows()`, `get()`, `len()` ...) may be called from any
    thread.
    """

    def __init__(
        self,
        driver: Driver,
        course: Course,
        key: Sequence[str],
        on_snapshot: Callable[[LiveTable], object] | None,
        on_update: Callable[[LiveTable, Changes], object] | None,
    ) -> None:
        Following.__init__(self, driver, course)
        LiveState.__init__(self, key)
        self._on_snapshot = on_snapshot
        self._on_update = on_update
        self._thread: threading.Thread | None = None
        # The first snapshot is there, or it ended before.
        self._begun = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> LiveTable:
        return self

    def __iter__(self) -> Iterator[Changes]:
        """What changed, time by time, the snapshot first; callbacks are called before each round."""
        while (changes := self._next()) is not None:
            if changes.snapshot:
                self._begun.set()
                if self._on_snapshot is not None:
                    self._on_snapshot(self)
            elif self._on_update is not None:
                self._on_update(self, changes)
            yield changes

    def run(self) -> None:
        """Until it is closed, or ends by itself (a constant relation)."""
        for _ in self:
            pass

    def start(self) -> LiveTable:
        """Run on a thread of its own. What goes wrong there is raised by `wait()` and `join()`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidemill-live-table", daemon=True)
            self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether a thread that was started still follows."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the first snapshot is complete; whether it is. For a table that was started."""
        self._begun.wait(timeout)
        if self._error is not None:
            raise self._error
        return self.time is not None

    def join(self, timeout: float | None = None) -> None:
        """Until it has ended; raises what ended it."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as e:
            self._error = e
            self.close()
        finally:
            self._begun.set()

    def _next(self) -> Changes | None:
        with self._turn:
            while (changes := self._take_next(self._course.fields or ())) is None:
                news = self._news()
                if news is None:
                    return None
                self._put(news)
            return changes
