"""The steps of one subscription: connect, read, and reconnect after a lost connection.

A generator without I/O. It yields its requests (`Dial` a connection, wait until a socket is `Ready`,
`Pause`) and its results (`News`). `driver` and `aio_driver` run it, for `sync` and `aio`. Promises: every
complete time is returned once, in order, without gaps, however often the connection is lost. If the server no
longer has the history for a reconnect, the subscription raises `HistoryGone`, or starts again with a new
snapshot if `renew` is set. If reconnecting fails for too long, it raises `GaveUp`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from tidemill.client.assemble import MAX_BYTES, Assembler, CompleteTime
from tidemill.client.copy_rows import rows_of
from tidemill.client.errors import ClientError, ColumnsChanged, ConnectionLost, GaveUp, HistoryGone
from tidemill.client.forms import ClientField
from tidemill.client.link import Connection, Link, Ready
from tidemill.client.request import SubscriptionRequest
from tidemill.client.retry import Pauses, Retry


@dataclass(frozen=True, slots=True)
class Dial:
    """Request to connect; the driver sends the connection, or throws ConnectionFailed."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Request to wait this many seconds before the next attempt; `error` is why the last one failed."""

    seconds: float
    error: ClientError


@dataclass(frozen=True, slots=True)
class News:
    """Times that have become complete, in order, and the time up to which everything is complete."""

    complete: list[CompleteTime]
    after: int


Step = Dial | Ready | Pause
Steps = Generator[Step | News, Connection | None, None]


class Course:
    def __init__(
        self,
        request: SubscriptionRequest,
        retry: Retry,
        *,
        renew: bool = False,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._retry = retry
        self._renew = renew
        self._pauses = Pauses(retry, clock)
        self._assembler = Assembler(snapshot=request.snapshot, max_bytes=max_bytes)
        # The columns after time and progress, once known: they must not change.
        self.fields: tuple[ClientField, ...] | None = None
        # The number of reconnects; -1 before the first connection.
        self.reconnects = -1

    def steps(self) -> Steps:
        while True:
            try:
                conn = yield Dial()
                if conn is None:
                    raise ConnectionLost("no connection was made")
                self.reconnects += 1
                link = Link(conn)
                try:
                    yield from self._follow(link)
                finally:
                    link.close()
                return
            except HistoryGone as e:
                self._begin_anew(e)
            except ClientError as e:
                if not e.transient:
                    raise
                self._assembler.cut()
                seconds = self._pauses.failed()
                if seconds is None:
                    raise GaveUp(
                        f"no connection for {self._retry.give_up_after:g} seconds", detail=e.primary
                    ) from e
                yield Pause(seconds, e)

    def _follow(self, link: Link) -> Steps:
        """Read one connection to the end of the stream. Only subscriptions with UP TO and of relations that
        can no longer change end."""
        resume = self._assembler.resume
        fields = yield from link.describe(self._request.sql(resume))
        self._check(fields)
        rows = rows_of(fields)
        yield from link.copy(self._request.copy(resume, rows.options))
        # No rows can be returned before a progress row arrives, so blocks end there. Decoding one large block
        # costs a tenth of decoding many small ones.
        while block := (yield from link.block(rows.progressed)):
            yield from self._news(self._assembler.feed(rows.decode(block)))
        yield from self._news(self._assembler.finish())

    def _check(self, fields: tuple[ClientField, ...]) -> None:
        if self.fields is not None and fields[2:] != self.fields:
            raise ColumnsChanged(
                "the columns are not those of before the reconnect",
                detail=f"They were ({_names(self.fields)}) and are ({_names(fields[2:])}).",
                hint="Subscribe again.",
            )
        self.fields = fields[2:]

    def _news(self, complete: list[CompleteTime]) -> Generator[News, Connection | None, None]:
        after = self._assembler.after
        if after is not None and (complete or after != self._told):
            self._told = after
            self._pauses.arrived()
            yield News(complete, after)

    # The `after` of the last `News`.
    _told: int | None = None

    def _begin_anew(self, error: HistoryGone) -> None:
        resume = self._assembler.resume
        if resume is None:
            raise error  # the application's own AS OF
        if not self._renew:
            raise HistoryGone(
                f"the subscription cannot go on from {resume.after}: the server no longer knows what changed",
                detail=error.detail,
                hint="Subscribe anew with a snapshot, or use live_table(), which does so by itself. "
                "How long history is kept: RETAIN HISTORY FOR, --retain-history.",
            ) from error
        self._assembler.begin_anew()
        self._request = replace(self._request, as_of=None, snapshot=True)


def _names(fields: tuple[ClientField, ...]) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in fields)
