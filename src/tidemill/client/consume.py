"""The steps of a reader of a durable subscription: connect, FETCH, and reconnect after a lost connection.

A `Course` like that of `subscribe`, for the same drivers. Its place is on the server, and in `position` here:
after a lost connection it continues with what it has not returned. Promises: every complete time is returned
once to this reader, in order, without gaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.client.assemble import CompleteTime, by_time
from tidemill.client.copy_rows import text_rows
from tidemill.client.course import Course, News, Steps
from tidemill.client.errors import NoRows
from tidemill.client.link import Link
from tidemill.client.request import SubscriptionRequest, relation_name
from tidemill.client.retry import Retry
from tidemill.client.statements import texts
from tidemill.types.columns import contiguous, numbers

# About how many rows one FETCH returns, if they are there.
FETCH_ROWS = 10_000


class Consuming(Course):
    def __init__(
        self,
        name: str,
        position: int | None,
        retry: Retry,
        *,
        share: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` as in SQL; `position` as the application has stored it, None for that of the server."""
        self.name = relation_name(name)
        super().__init__(SubscriptionRequest(self.name), retry, clock=clock)
        self.position = position
        self._share = share

    def acknowledge(self, position: int) -> str:
        """The statement."""
        share = "" if self._share is None else f" SHARE {self._share}"
        return f"ACKNOWLEDGE SUBSCRIPTION {self.name}{share} TO {position}"

    def _fetch(self) -> str:
        options = [
            *([] if self.position is None else [f"POSITION = {self.position}"]),
            *([] if self._share is None else [f"SHARE = {self._share}"]),
        ]
        said = f" WITH ({', '.join(options)})" if options else ""
        return f"FETCH {FETCH_ROWS} FROM SUBSCRIPTION {self.name}{said}"

    def _follow(self, link: Link) -> Steps:
        fields = yield from link.describe(self._fetch())
        self._check(fields)
        while True:
            results = yield from link.run(self._fetch())
            if not results:
                raise NoRows("FETCH gave no result")
            rows = text_rows(texts(results[-1], fields), fields)
            self._pauses.arrived()
            if rows.num_rows:
                complete, self.position = _complete(rows)
                yield News(complete, self.position - 1)


def _complete(rows: pa.Table) -> tuple[list[CompleteTime], int]:
    """The times of the rows of a FETCH, and the position after them: that of the last row."""
    progressed = contiguous(rows.column(1)).to_numpy(zero_copy_only=False).astype(np.bool_)
    times = numbers(contiguous(rows.column(0)), np.int64)
    changes = rows.filter(pa.array(~progressed))
    return by_time(changes, times[~progressed], None), int(times[-1])
