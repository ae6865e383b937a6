"""Followers of a query: its changes from a time on.

Made by `queries.follow_query`. A `QueryFollower` subtracts the previous result from the result at each time
at which an input changed: always right, at the cost of the whole query. A `PolledFollower` polls relations
that show only the current state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.persist.holds import Hold
from tidemill.query.multiset import add_up, negated
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

# The answer of a query at a time: its columns, and the count of each row (`mz_diff`); no row occurs twice.
Evaluate: TypeAlias = Callable[[int], pa.Table]


class QueryFollower:
    """The changes of a query's answer."""

    def __init__(
        self,
        inputs: Sequence[Follower],
        evaluate: Evaluate,
        from_: int,
        before: pa.Table,
        now: Callable[[], int],
        holds: Sequence[Hold] = (),
    ) -> None:
        """`before`: the result at `from_ - 1`. `now`: a query without inputs is complete before it. `holds`
        are on the inputs, just before `from_`: their followers run ahead of the times that are still to be
        evaluated, and release them."""
        self.frontier = from_
        self._holds = holds
        self._inputs = inputs
        self._evaluate = evaluate
        self._before = before
        self._now = now
        # Future times at which an input changed; a heap.
        self._times: list[int] = []

    def advance(self) -> CollectionChanges | None:
        for follower in self._inputs:
            while (changes := follower.advance()) is not None and not changes.idle:
                self._note(changes)
            # (Time advances without end, and by more the longer a poll takes.)
        until = min(f.frontier for f in self._inputs) if self._inputs else self._now()
        while self._times and self._times[0] < until:
            at = heapq.heappop(self._times)
            if at >= self.frontier:
                return self._at(at)
        if until <= self.frontier:
            return None
        lower = self._advanced(until)
        return CollectionChanges(stamped(self._before.slice(0, 0), lower), lower, until)

    def _advanced(self, to: int) -> int:
        """The frontier before. Just before the new one is held, because a follower that continues from there
        needs it."""
        lower, self.frontier = self.frontier, to
        for hold in self._holds:
            hold.advance(max(hold.at, to - 1))
        return lower

    def _note(self, changes: CollectionChanges) -> None:
        known = set(self._times)
        times = np.unique(changes.updates.column(TIME_COLUMN).to_numpy()).tolist()
        if changes.error is not None:
            times.append(changes.error[0])
        for at in times:
            if at not in known:
                heapq.heappush(self._times, at)

    def _at(self, at: int) -> CollectionChanges:
        answer = self._evaluate(at)
        updates = add_up([answer, negated(self._before)])
        self._before = answer
        return CollectionChanges(stamped(updates, at), self._advanced(at + 1), at + 1)

    def close(self) -> None:
        for follower in self._inputs:
            follower.close()
        for hold in self._holds:
            hold.release()


class PolledFollower:
    """A query over current state: its result is computed at each poll, and changes at that time."""

    def __init__(
        self, now: Callable[[], int], evaluate: Evaluate, from_: int, before: pa.Table, every: int
    ) -> None:
        """`every`: milliseconds between two looks."""
        self.frontier = from_
        self._now = now
        self._evaluate = evaluate
        self._before = before
        self._every = every

    def advance(self) -> CollectionChanges | None:
        at = self._now()
        if at < self.frontier + self._every:
            return None
        answer = self._evaluate(at)
        updates = add_up([answer, negated(self._before)])
        self._before = answer
        lower, self.frontier = self.frontier, at + 1
        return CollectionChanges(stamped(updates, at), lower, at + 1)

    def close(self) -> None:
        pass


def counted(rows: pa.Table) -> pa.Table:
    """Rows as an answer: each distinct row with its count."""
    return add_up([rows.append_column(DIFF_COLUMN, pa.array(np.ones(rows.num_rows, np.int64)))])


def stamped(updates: pa.Table, at: int) -> pa.Table:
    """Updates (the diff last) as those of one time."""
    columns = updates.num_columns - 1
    times = pa.array(np.full(updates.num_rows, at, np.int64))
    return updates.add_column(columns, TIME_COLUMN, times)
