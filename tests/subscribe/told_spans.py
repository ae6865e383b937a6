"""A relation's follower for tests of what is made of its changes: it tells the spans that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidemill.subscribe.changes import CollectionChanges
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

Update = tuple[tuple[Any, ...], int, int]  # row, time, diff


def updates_table(updates: Sequence[Update], desc: RelationDesc) -> pa.Table:
    """As a follower tells them: each row of a time once, in the order of time."""
    schema = arrow_schema(desc)
    arrays = [pa.array([row[i] for row, _, _ in updates]).cast(f.type) for i, f in enumerate(schema)]
    times = pa.array([t for _, t, _ in updates], pa.int64())
    diffs = pa.array([d for _, _, d in updates], pa.int64())
    made = pa.table([*arrays, times, diffs], names=[*schema.names, TIME_COLUMN, DIFF_COLUMN])
    return consolidate(made, RelationDesc()).sort_by(TIME_COLUMN)


class Told:
    """One span for each call; the last time stays complete."""

    relation = "told"

    def __init__(
        self,
        desc: RelationDesc,
        updates: Sequence[Update],
        uppers: Sequence[int],
        error: tuple[int, str] | None = None,
    ) -> None:
        self.frontier = 0
        self.closed = 0
        self._desc = desc
        self._updates = updates
        self._uppers = list(uppers)
        self._error = error

    def advance(self) -> CollectionChanges | None:
        if not self._uppers:
            return None
        lower, upper = self.frontier, self._uppers.pop(0)
        self.frontier = upper
        error = self._error if self._error is not None and lower <= self._error[0] < upper else None
        span = [u for u in self._updates if lower <= u[1] < (upper if error is None else error[0])]
        return CollectionChanges(updates_table(span, self._desc), lower, upper, error)

    def close(self) -> None:
        self.closed += 1
