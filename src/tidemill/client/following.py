"""The common parts of subscriptions and live tables in both clients: the course and its batches.

`subscription` and `live_table` wait on sockets and threads, `aio_following` on an event loop. Nothing
here waits.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from tidemill.client.aio_driver import AsyncDriver
from tidemill.client.course import Course, News
from tidemill.client.driver import Driver
from tidemill.client.errors import ClientError
from tidemill.client.frames import Batch, batches

D = TypeVar("D", bound=Driver | AsyncDriver)


class CourseState(Generic[D]):
    """The state of the connection."""

    def __init__(self, driver: D, course: Course) -> None:
        self._driver = driver
        self._course = course
        self._steps = course.steps()

    @property
    def reconnects(self) -> int:
        """The number of reconnects."""
        return max(0, self._course.reconnects)

    @property
    def trouble(self) -> ClientError | None:
        """Why there is no connection now; None while connected."""
        return self._driver.trouble

    @property
    def closed(self) -> bool:
        return self._driver.closed


class BatchQueue:
    """The batches that a subscription has not yet returned."""

    def __init__(self, *, progress: bool) -> None:
        self._progress = progress
        self._waiting: deque[Batch] = deque()
        # The time that is complete once all waiting batches are returned.
        self._after: int | None = None
        self._time: int | None = None

    @property
    def time(self) -> int | None:
        """Every change up to this time was returned. To continue from there, even in another process:
        `subscribe(..., snapshot=False, as_of=time)`."""
        return self._time

    def _put(self, news: News, course: Course) -> None:
        self._waiting.extend(batches(news, course.fields or (), progress=self._progress))
        self._after = news.after

    def _pop(self) -> Batch:
        batch = self._waiting.popleft()
        self._time = batch.time if self._waiting else self._after
        return batch
