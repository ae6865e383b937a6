"""Receiver: the subscription of a source, in a thread of the server.

It goes on from the cursor that the inbox has, and keeps what it receives in memory, up to a limit, until
`take` is called and the inbox has it. What is lost with the process is received again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from tidemill.errors import TidemillError
from tidemill.sources.contract import UpstreamError
from tidemill.sources.pubnub.catch_up import CatchUp, Known
from tidemill.sources.pubnub.messages import TICKS_PER_SECOND, Batch, Cursor, Gap, Received
from tidemill.sources.pubnub.service import Service

log = logging.getLogger(__name__)

# What waits for the inbox. While there is more, the service is not asked: it keeps messages for a while, and
# its history longer.
MAX_QUEUED_BYTES = 32 << 20
# Between attempts after a failure.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 10.0
# If the service has something behind a cursor, it says so at once. One that does not answer within this time
# has nothing.
QUIET_SECONDS = 1.0
# Clocks of the service's regions differ by less.
FUTURE_TICKS = 600 * TICKS_PER_SECOND


class Receiver:
    """Thread-safe but for `start`."""

    def __init__(
        self,
        service: Service,
        channels: Sequence[str],
        groups: Sequence[str],
        catch_up: CatchUp,
        cursor: Cursor,
        known: Known,
    ) -> None:
        self._service = service
        self._channels, self._groups = channels, groups
        self._catch_up = catch_up
        self._cursor = cursor
        self._known = known
        self._changed = threading.Condition()
        self._queue: deque[Batch] = deque()
        self._bytes = 0
        self._closed = False
        self._error: UpstreamError | None = None
        # When the present poll began; None while its answer is taken in, and between polls.
        self._asked: float | None = None
        self._answered = False
        self._thread = threading.Thread(target=self._run, name="pubnub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._service.close()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def take(self) -> list[Batch]:
        """What was received, in order; each batch once."""
        with self._changed:
            found = [*self._queue]
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()
            return found

    @property
    def error(self) -> UpstreamError | None:
        """To be raised: a new one with each call, since raising changes an error."""
        with self._changed:
            of = self._error
            if of is None:
                return None
            made = UpstreamError(of.primary, detail=of.detail, hint=of.hint, sqlstate=of.sqlstate)
            made.transient = of.transient
            return made

    def wait_settled(self, seconds: float) -> bool:
        """Wait until what the service has behind the cursor is here, or it is known that it has nothing, or
        there is an error."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._settled():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.05))
            return True

    def _settled(self) -> bool:
        quiet = self._asked is not None and time.monotonic() - self._asked >= QUIET_SECONDS
        return quiet or self._answered or self._error is not None

    # -- the thread

    def _run(self) -> None:
        wait = FIRST_RETRY_SECONDS
        checked = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._bytes < MAX_QUEUED_BYTES or self._closed)
                if self._closed:
                    return
            try:
                if not checked:
                    self._check_time()
                    checked = True
                self._poll()
                wait = FIRST_RETRY_SECONDS
            except Exception as e:
                checked = False
                if not self._failed(e):
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, wait)
                wait = min(2 * wait, LAST_RETRY_SECONDS)

    def _failed(self, error: Exception) -> bool:
        """Whether to go on."""
        if not isinstance(error, UpstreamError):
            if not isinstance(error, TidemillError):
                log.exception("the subscription failed for an unforeseen reason")
            error = UpstreamError(f"{type(error).__name__}: {error}")
        with self._changed:
            self._asked = None
            if self._closed:
                return False
            self._error = error
            self._changed.notify_all()
            return True

    def _check_time(self) -> None:
        """The service answers, and is not before the cursor: it would wait, and say nothing."""
        now = self._service.time()
        if self._cursor.token > now + FUTURE_TICKS:
            raise UpstreamError(
                f"the timetoken {self._cursor.token} is in the future",
                detail=f"The source goes on there; the service is at {now}.",
                hint="Messages before it would not be read. It goes on by itself when the time has come; or "
                "create the source again.",
            )
        with self._changed:
            self._error = None

    def _poll(self) -> None:
        cursor = self._cursor
        with self._changed:
            self._asked = time.monotonic()
        answer = self._service.subscribe(self._channels, self._groups, cursor)
        with self._changed:
            self._asked = None
        if cursor.token:
            for missed in self._catch_up.missed(cursor, answer, self._known):
                # After a failure, or in another process, it goes on behind this.
                self._cursor = Cursor(max(cursor.token, missed.upto), cursor.region)
                self._put(self._cursor, missed.messages, missed.gaps)
        self._cursor = answer.cursor
        self._put(answer.cursor, answer.messages)
        with self._changed:
            # Where there are messages, more may wait: the next answer comes at once.
            self._answered = self._answered or not answer.messages
            self._error = None
            self._changed.notify_all()

    def _put(self, cursor: Cursor, messages: Sequence[Received], gaps: Sequence[Gap] = ()) -> None:
        """Waits while there is no room."""
        new = tuple(message for message in messages if self._known.add(message))
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < MAX_QUEUED_BYTES or self._closed)
            self._queue.append(Batch(cursor, new, tuple(gaps)))
            self._bytes += sum(message.size for message in new) + 1000
            self._changed.notify_all()
