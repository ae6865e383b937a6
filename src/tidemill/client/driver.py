"""The driver of step generators for blocking callers: waits on sockets; another thread can wake it."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from tidemill.client import target
from tidemill.client.course import Dial, News, Pause, Steps
from tidemill.client.errors import ClientError, Closed, ConnectionFailed
from tidemill.client.link import Ready, Waits

T = TypeVar("T")
Notices = Callable[[str], None]


class Driver:
    """Used by one thread at a time, except `close`, which any thread may call."""

    def __init__(self, conninfo: str, on_notice: Notices | None = None) -> None:
        self._conninfo = conninfo
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._closed = False
        # A byte in it wakes the waiting thread.
        self._wake, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._released = False
        # Why there is no connection now; None while connected.
        self.trouble: ClientError | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """All waits raise Closed, now and from now on."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake.send(b"\0")

    def release(self) -> None:
        """Release the resources of the operating system, when no thread waits any more."""
        self.close()
        with self._lock:
            if not self._released:
                self._released = True
                self._selector.close()
                self._wake.close()
                self._wakened.close()

    def dial(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise Closed("it is closed")
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.OperationalError as e:
            raise target.failed(self._conninfo, e) from e
        tell = self._on_notice
        if tell is not None:
            connection.add_notice_handler(lambda notice: tell(notice.message_primary or ""))
        return connection

    def run(self, work: Waits[T]) -> T:
        """Run a generator that only waits to its end."""
        try:
            while True:
                self._wait(next(work))
        except StopIteration as end:
            return end.value
        finally:
            work.close()

    def next(self, steps: Steps) -> News | None:
        """Return the next news; None at the end."""
        try:
            step = next(steps)
            while True:
                match step:
                    case News():
                        return step
                    case Ready():
                        self._wait(step)
                        step = next(steps)
                    case Dial():
                        try:
                            connection = self.dial()
                        except ConnectionFailed as e:
                            step = steps.throw(e)
                        else:
                            # The requested event may take long.
                            self.trouble = None
                            step = steps.send(connection)
                    case Pause():
                        self.trouble = step.error
                        self._pause(step.seconds)
                        step = next(steps)
        except StopIteration:
            return None

    def _wait(self, ready: Ready) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if ready.write else 0)
        self._check()
        self._selector.register(ready.fd, events)
        try:
            self._selector.select()
        finally:
            self._selector.unregister(ready.fd)
        self._check()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._selector.select(left)
            self._check()

    def _check(self) -> None:
        if self._closed:
            raise Closed("it is closed")
