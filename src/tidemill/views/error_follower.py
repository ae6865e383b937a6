"""A follower of a query that has an error: which errors are data, and when they appear and disappear.

An ordinary follower ends with the first error; a view does not. From then on its query is evaluated at every
time at which an input changed. While the evaluation fails, the view holds the error of its latest evaluation.
The rows stay unchanged meanwhile: no one can read them, and fewer updates are written. Always right, at the
cost of the whole query at each time. When the error is gone, `machine` returns to the query's own follower.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.inputs.data_errors import is_of_data
from tidemill.persist.listen import Listen
from tidemill.query.multiset import SourceError, add_up, negated
from tidemill.subscribe.follower import Follower
from tidemill.types.arrow import TIME_COLUMN
from tidemill.views.program import ProgramInput, ViewQuery

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """The changes at times before `upper`: rows (`mz_timestamp` and `mz_diff` follow the columns), and errors
    that appear (+1) or disappear (-1)."""

    updates: pa.Table
    upper: int
    errors: tuple[tuple[str, int, int], ...] = ()  # text, time, diff


class CarefulFollower:
    def __init__(self, program: ViewQuery, from_: int, before: pa.Table, error: str | None) -> None:
        """`before` and `error` are the view's contents at `from_ - 1`."""
        self.frontier = from_
        # The view's contents before the frontier.
        self.error = error
        self.rows = before
        # The query has had an answer again.
        self.settled = False
        self._program = program
        self._inputs: list[_Times] = []
        # Future times at which an input changed; a heap. All before `_until` are known.
        self._times: list[int] = []
        self._until = from_
        # Of a query that changes by itself; None while their query has an error too, and until an input
        # changes.
        self._due: list[Follower] | None = []
        try:
            for each in program.inputs:
                self._inputs.append(_Times(each, from_))
            self._due = self._open_due(from_)
        except BaseException:
            self.close()
            raise

    def advance(self) -> Span | None:
        """The changes up to the next time at which an input changed, or up to where they are complete; None
        if nothing more is. Raises errors that are not of the data; the caller may retry then."""
        for each in self._inputs:
            self._note(each.advance())
        until = min(i.frontier for i in self._inputs) if self._inputs else self._program.now()
        until = min([until, *self._advance_due()])
        self._until = until
        while self._times and self._times[0] < until:
            at = self._times[0]
            span = self._at(at) if at >= self.frontier else None
            heapq.heappop(self._times)
            if span is not None:
                return span
        if until <= self.frontier:
            return None
        self.frontier = until
        return Span(stamped(self.rows.slice(0, 0), until - 1), until)

    def _note(self, times: Sequence[int]) -> None:
        known = set(self._times)
        for at in times:
            if at not in known:
                heapq.heappush(self._times, at)

    def _open_due(self, from_: int) -> list[Follower] | None:
        try:
            return list(self._program.due(from_))
        except TidemillError as e:
            if not is_of_data(e):
                raise
            return None

    def _advance_due(self) -> list[int]:
        """Up to where the times at which the result changes by itself are known."""
        try:
            for each in self._due or ():
                while (changes := each.advance()) is not None and not changes.idle:
                    self._note(np.unique(changes.updates.column(TIME_COLUMN).to_numpy()).tolist())
        except TidemillError as e:
            if not is_of_data(e):
                raise
            self._close_due()
            self._due = None
        return [each.frontier for each in self._due or ()]

    def _close_due(self) -> None:
        for each in self._due or ():
            each.close()

    @property
    def behind(self) -> bool:
        """More can be returned at once."""
        return self.frontier < self._until

    def _at(self, at: int) -> Span:
        answer, error = answered(self._program.answer, at)
        errors: list[tuple[str, int, int]] = []
        updates = self.rows.slice(0, 0)
        if answer is not None:
            updates = add_up([answer, negated(self.rows)])
            self.rows = answer
            if self.error is not None:
                errors.append((self.error, at, -1))
            self.error = None
            self.settled = True
        elif error is not None and error != self.error:
            if self.error is not None:
                errors.append((self.error, at, -1))
            errors.append((error, at, 1))
            self.error = error
            self.settled = False
        self.frontier = at + 1
        if self._due is None:
            self._due = self._open_due(self.frontier)
        return Span(stamped(updates, at), at + 1, tuple(errors))

    def close(self) -> None:
        """Idempotent."""
        for each in self._inputs:
            each.close()
        self._close_due()


def answered(answer: Callable[[int], T], at: int) -> tuple[T | None, str | None]:
    """The answer, or the text of the error that it is."""
    try:
        return answer(at), None
    except TidemillError as e:
        if not is_of_data(e):
            raise
        return None, error_text(e)


def error_text(e: TidemillError) -> str:
    """As `types.arrow.error_parts` reads it."""
    if isinstance(e, SourceError):
        return e.text
    return e.primary if e.detail is None else f"{e.primary}\n{e.detail}"


class _Times:
    """The times at which an input changes: rows, errors, and changes that no query sees in the same way."""

    def __init__(self, given: ProgramInput, from_: int) -> None:
        self._complete = given.complete
        self._listen: Listen = given.shard.listen(from_)
        self.frontier = from_

    def advance(self) -> Sequence[int]:
        # In this order: all that is complete by then is in the log, and the log is read after that.
        complete = self._complete()
        times: list[int] = []
        while (got := self._listen.next(timeout=0)) is not None:
            table, upper = got
            times += np.unique(table.column(TIME_COLUMN).to_numpy()).tolist()
            self.frontier = max(self.frontier, complete if upper is None else upper)
        self.frontier = max(self.frontier, complete)
        return times

    def close(self) -> None:
        self._listen.close()


def stamped(rows: pa.Table, at: int) -> pa.Table:
    """Rows (the diff last) as updates of one time."""
    times = pa.array(np.full(rows.num_rows, at, np.int64))
    return rows.add_column(rows.num_columns - 1, TIME_COLUMN, times)
