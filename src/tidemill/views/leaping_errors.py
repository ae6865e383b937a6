"""A view whose query has an error, at the cost of what changed since it began.

As `error_follower`, for followers that can leap (`subscribe.leaping`). The first evaluation is of the whole
query: its error is what readers are told, and a follower may fail where the query does not, because it
evaluates in another order. For the same reason the whole query is asked again now and then, but not at every
time.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidemill.inputs.data_errors import is_of_data
from tidemill.subscribe.leaping import CannotLeap, LeapingFollower, StillFailing
from tidemill.views.error_follower import Span, answered, error_text

# The whole query is asked at the first of so many times at which the follower fails.
ASKED_EVERY = 64


class LeapingErrors:
    def __init__(
        self, follower: LeapingFollower, answer: Callable[[int], pa.Table], error: str, empty: pa.Table
    ) -> None:
        """`error` is the whole query's at the follower's frontier, where this one begins; `answer` evaluates
        that. `empty` are no updates. The follower is closed with this one until it is `settled`."""
        self.frontier = follower.frontier
        self.error = error
        self.follower = follower
        # The query has had an answer again; the follower goes on.
        self.settled = False
        self._answer = answer
        self._empty = empty
        self._told = False
        self._failed = 0

    def advance(self) -> Span | None:
        """As that of `CarefulFollower`. Raises CannotLeap."""
        if not self._told:
            self._told = True
            at, self.frontier = self.frontier, self.frontier + 1
            return Span(self._empty, self.frontier, ((self.error, at, 1),))
        found = self.follower.leap()
        if found is None:
            return None
        self.frontier = found.upper
        if isinstance(found, StillFailing):
            return Span(self._empty, found.upper, self._changed(found))
        self.settled = True
        return Span(found.updates, found.upper, ((self.error, found.upper - 1, -1),))

    def _changed(self, found: StillFailing) -> tuple[tuple[str, int, int], ...]:
        if found.error is None:
            return ()
        if not is_of_data(found.error):
            raise found.error
        self._failed += 1
        text = error_text(found.error)
        if text != self.error or self._failed % ASKED_EVERY == 0:
            _, whole = answered(self._answer, found.lower)
            if whole is None:
                raise CannotLeap
            text = whole
        if text == self.error:
            return ()
        changed = ((self.error, found.lower, -1), (text, found.lower, 1))
        self.error = text
        return changed

    def close(self) -> None:
        """Idempotent."""
        self.follower.close()
