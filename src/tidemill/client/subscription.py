"""Subscriptions of the blocking client: what follows a course, and the iterator of batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from tidemill.client.course import Course, News
from tidemill.client.driver import Driver
from tidemill.client.errors import ClientError, Closed
from tidemill.client.frames import Batch, batches


class Following:
    """A course, driven by whoever asks for news: one thread at a time."""

    def __init__(self, driver: Driver, course: Course) -> None:
        self._driver = driver
        self._course = course
        self._steps = course.steps()
        # Held while one asks for news; `close` does not wait for it.
        self._turn = threading.Lock()
        self._ended = False

    @property
    def reconnects(self) -> int:
        """How often the connection was made again."""
        return max(0, self._course.reconnects)

    @property
    def trouble(self) -> ClientError | None:
        """Why there is no connection now; None while all is well."""
        return self._driver.trouble

    @property
    def closed(self) -> bool:
        return self._driver.closed

    def close(self) -> None:
        """End it, from any thread. Whoever waits for it is let go."""
        self._driver.close()
        # Else whose turn it is ends it.
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
        """The next; None at the end. The caller holds the turn."""
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


class Subscription(Following, Iterator[Batch]):
    """An iterator of complete times. Ends at UP TO, where the relation is constant, and by `close()`."""

    def __init__(self, driver: Driver, course: Course, *, progress: bool) -> None:
        super().__init__(driver, course)
        self._progress = progress
        self._waiting: deque[Batch] = deque()
        # Complete up to here, once what waits is given out.
        self._after: int | None = None
        self._time: int | None = None

    @property
    def time(self) -> int | None:
        """Every change up to this time has been given out. To go on from there, in another process even:
        `subscribe(..., snapshot=False, as_of=time)`."""
        return self._time

    def __enter__(self) -> Subscription:
        return self

    def __next__(self) -> Batch:
        with self._turn:
            while not self._waiting:
                self._time = self._after
                news = self._news()
                if news is None:
                    raise StopIteration
                self._waiting.extend(batches(news, self._course.fields or (), progress=self._progress))
                self._after = news.after
            if self._driver.closed and not self._ended:
                self._end()
            if self._driver.closed:
                raise StopIteration
            batch = self._waiting.popleft()
            self._time = batch.time if self._waiting else self._after
            return batch
