"""Rows that come and leave by themselves, against a model: at each time the fold of all changes is the filter
at that time, whatever is changed when, and after a restart at any time."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import LimitExceeded
from tidemill.subscribe import temporal
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.temporal import TemporalFollower, validity
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

END = 40
SYMBOLS = ("<", "<=", ">", ">=", "=")

# A row: its content and two thresholds in microseconds, so that most are between milliseconds.
_threshold = st.one_of(st.none(), st.integers(-3_000, (END + 3) * 1000).map(lambda v: v - v % 250))
Row = tuple[int, int | None, int | None]
Change = tuple[Row, int, int]
_changes = st.lists(
    st.tuples(st.tuples(st.integers(0, 1), _threshold, _threshold), st.integers(1, END), st.integers(1, 2)),
    max_size=12,
)


def holds(symbol: str, now: int, value: int | None) -> bool:
    """`now`, in milliseconds, compared with microseconds."""
    if value is None:
        return False
    n = now * 1000
    return {"<": n < value, "<=": n <= value, ">": n > value, ">=": n >= value, "=": n == value}[symbol]


def table_of(changes: list[Change], *, timed: bool = True) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "c": pa.array([row[0] for row, _, _ in changes], pa.int32()),
        "x": pa.array([row[1] for row, _, _ in changes], pa.timestamp("us", "UTC")),
        "y": pa.array([row[2] for row, _, _ in changes], pa.timestamp("us")),
    }
    if timed:
        columns[TIME_COLUMN] = pa.array([at for _, at, _ in changes], pa.int64())
    columns[DIFF_COLUMN] = pa.array([diff for _, _, diff in changes], pa.int64())
    return pa.table(columns)


class Told:
    """An inner follower of spans."""

    def __init__(self, changes: list[Change], from_: int, ends: list[int]) -> None:
        self.frontier = from_
        self._changes = changes
        self._ends = sorted({e for e in ends if e > from_} | {END + 1})

    def advance(self) -> CollectionChanges | None:
        if not self._ends:
            return None
        lower, self.frontier = self.frontier, self._ends.pop(0)
        rows = [c for c in self._changes if lower <= c[1] < self.frontier]
        return CollectionChanges(table_of(rows).sort_by(TIME_COLUMN), lower, self.frontier)

    def close(self) -> None:
        pass


@settings(max_examples=300, deadline=None)
@given(
    changes=_changes,
    taken=st.lists(st.integers(0, 11), max_size=6),
    symbols=st.tuples(st.sampled_from(SYMBOLS), st.sampled_from(SYMBOLS)),
    starts=st.lists(st.integers(1, END), max_size=2),
    ends=st.lists(st.integers(2, END), max_size=6),
)
def test_at_each_time_the_filter(
    changes: list[Change],
    taken: list[int],
    symbols: tuple[str, str],
    starts: list[int],
    ends: list[int],
) -> None:
    # Some of the rows are taken away later.
    for i in sorted(set(taken)):
        if i < len(changes):
            row, at, diff = changes[i]
            changes.append((row, min(END, at + 7 * i), -diff))
    told: Counter[tuple[int, int]] = Counter()
    lives = [1, *sorted(starts), END + 1]
    for from_, until in itertools.pairwise(lives):
        if from_ == until:
            continue
        before = Counter[Row]()
        for row, at, diff in changes:
            before[row] += diff if at < from_ else 0
        known = table_of([(row, 0, n) for row, n in before.items() if n], timed=False)
        follower = TemporalFollower(Told(changes, from_, [*ends, until]), symbols, known)
        while follower.frontier < until:
            span = follower.advance()
            assert span is not None
            stamps = span.updates.column(TIME_COLUMN).to_pylist()
            assert stamps == sorted(stamps) and all(span.lower <= t < span.upper for t in stamps)
            rows = span.updates.column(0).to_pylist()
            for c, at, diff in zip(rows, stamps, span.updates.column(DIFF_COLUMN).to_pylist(), strict=True):
                if at < until:
                    told[c, at] += diff
    # The first life begins with what was there, which is nothing.
    for now in range(1, END + 1):
        wanted: Counter[int] = Counter()
        for (c, x, y), at, diff in changes:
            if at <= now and holds(symbols[0], now, x) and holds(symbols[1], now, y):
                wanted[c] += diff
        found: Counter[int] = Counter()
        for (c, at), diff in told.items():
            found[c] += diff if at <= now else 0
        assert {k: n for k, n in found.items() if n} == {k: n for k, n in wanted.items() if n}, now


def test_the_last_times_are_no_overflow() -> None:
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    column = pa.chunked_array([pa.array([most, least, None, 5], pa.int64())])
    first, end = validity([column], ["<="], 4)
    assert end.tolist() == [most, least + 1, least, 6] and set(first.tolist()) == {least}
    days = pa.chunked_array([pa.array([1, -1], pa.date32())])
    first, end = validity([days], [">"], 2)
    assert first.tolist() == [86_400_001, -86_399_999] and set(end.tolist()) == {most}


def test_what_waits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal, "MAX_WAITING_BYTES", 10_000)
    rows: list[Change] = [((n, 30_000 + n, None), 1, 1) for n in range(1000)]
    table = table_of(rows).drop_columns(["y"])

    class Once(Told):
        def advance(self) -> CollectionChanges | None:
            return CollectionChanges(table, 1, 2)

    follower = TemporalFollower(Once([], 1, []), ["<"], table.slice(0, 0).drop_columns([TIME_COLUMN]))
    with pytest.raises(LimitExceeded, match="wait for their time"):
        follower.advance()


def test_rows_without_columns_come_and_leave() -> None:
    """Of a filter whose times alone are asked for."""
    rows: list[Change] = [((0, 7_000, None), 1, 1), ((1, 9_500, None), 1, 2)]
    table = table_of(rows).drop_columns(["c", "y"])
    found = temporal.comings_and_goings(table, ["<"])
    assert found.column_names == [TIME_COLUMN, DIFF_COLUMN]
    assert found.to_pylist() == [
        {TIME_COLUMN: 1, DIFF_COLUMN: 1},
        {TIME_COLUMN: 1, DIFF_COLUMN: 2},
        {TIME_COLUMN: 7, DIFF_COLUMN: -1},
        {TIME_COLUMN: 10, DIFF_COLUMN: -2},
    ]
