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
    """A relation or query in memory, always as of one complete time.

    It can be driven in three ways: iterate over it (each round is one time with changes), call `run()` with
    callbacks, or call `start()` to use a separate thread. In each case `on_snapshot(table)` is called when
    the first snapshot is complete, and `on_update(table, changes)` after each time with changes, never
    between them. All methods that read (`arrow`, `rows()`, `get()`, `len()` ...) may be called from any
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
        # Set when the first snapshot is complete, or when the table ended earlier.
        self._begun = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> LiveTable:
        return self

    def __iter__(self) -> Iterator[Changes]:
        """Yield the changes of each time, the snapshot first. Callbacks are called before each round."""
        while (changes := self._next()) is not None:
            if changes.snapshot:
                self._begun.set()
                if self._on_snapshot is not None:
                    self._on_snapshot(self)
            elif self._on_update is not None:
                self._on_update(self, changes)
            yield changes

    def run(self) -> None:
        """Run until the table is closed, or ends because the relation is constant."""
        for _ in self:
            pass

    def start(self) -> LiveTable:
        """Run on a separate thread. `wait()` and `join()` raise its errors."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidemill-live-table", daemon=True)
            self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether the thread of `start()` is still running."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the first snapshot of a started table; return whether it is complete."""
        self._begun.wait(timeout)
        if self._error is not None:
            raise self._error
        return self.time is not None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread; raise the error that ended it."""
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
