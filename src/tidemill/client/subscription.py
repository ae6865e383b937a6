"""Subscriptions of the blocking client: the follower of a course, and the iterator of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, cast

from tidemill.client.consume import Consuming
from tidemill.client.course import Course, News
from tidemill.client.driver import Driver
from tidemill.client.errors import Closed
from tidemill.client.following import BatchQueue, CourseState
from tidemill.client.frames import Batch


class Following(CourseState[Driver]):
    """A course, driven by the thread that waits for news; one thread at a time."""

    def __init__(self, driver: Driver, course: Course) -> None:
        CourseState.__init__(self, driver, course)
        # Held while a thread waits for news; `close` does not wait for it.
        self._turn = threading.Lock()
        self._ended = False

    def close(self) -> None:
        """End the course, from any thread. Waiting threads return."""
        self._driver.close()
        # Otherwise the thread that has the turn ends the course.
        if self._turn.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turn.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _news(self) -> News | None:
        """Return the next news; None at the end. The caller holds the turn."""
        news: News | None = None
        try:
            if not self._driver.closed:
                news = self._driver.next(self._steps)
        except Closed:
            pass
        except BaseException:
            self._end()
            raise
        if news is None:
            self._end()
        return news

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._steps.close()
            self._driver.release()


class Subscription(Following, BatchQueue, Iterator[Batch]):
    """An iterator over complete times. It ends at UP TO, if the relation is constant, and after `close()`."""

    def __init__(self, driver: Driver, course: Course, *, progress: bool) -> None:
        Following.__init__(self, driver, course)
        BatchQueue.__init__(self, progress=progress)

    def __enter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        with self._turn:
            while not self._waiting:
                self._time = self._after
                news = self._news()
                if news is None:
                    raise StopIteration
                self._put(news, self._course)
            if self._driver.closed and not self._ended:
                self._end()
            if self._driver.closed:
                raise StopIteration
            return self._pop()


class Consumer(Subscription):
    """A reader of a durable subscription: an iterator over complete times. The contents come first, as
    changes of an empty relation."""

    def __init__(
        self, driver: Driver, course: Consuming, *, progress: bool, execute: Callable[[str], str]
    ) -> None:
        super().__init__(driver, course, progress=progress)
        self._execute = execute

    @property
    def position(self) -> int | None:
        """Every change before it was returned. Store it together with the effects of these changes, and begin
        with it: `consume(name, position=...)`. None before the first batch."""
        return None if self.time is None else self.time + 1

    def acknowledge(self, position: int | None = None) -> None:
        """Everything before the position (None: all that was returned) is done with: the server may forget
        it. Durable when this returns."""
        done = self.position if position is None else position
        if done is not None:
            self._execute(cast("Consuming", self._course).acknowledge(done))
