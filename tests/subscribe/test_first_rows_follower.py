"""The first rows in an order: what was told is at every time an answer of ORDER BY ... LIMIT."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from told_spans import Told, Update, updates_table

from support.bound import Names
from tidemill.query.multiset import NegativeMultiplicity, add_up
from tidemill.sql.plan.explain import explain_order
from tidemill.sql.plan.expressions import Ref, SortKey
from tidemill.sql.plan.first_rows import first_rows
from tidemill.subscribe import first_rows as kept
from tidemill.subscribe.first_rows import FirstRowsFollower, Wanted
from tidemill.types.arrow import TIME_COLUMN
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("c0", INT4), Column("c1", TEXT), Column("h0", INT4)))
LAST = 8
Row = tuple[int | None, str | None, int | None]


class Rows:
    """All rows, of which a SELECT is made by hand."""

    def __init__(self, dice: random.Random, wanted: Wanted) -> None:
        self.wanted = wanted
        self.updates: list[Update] = []
        self.reread = 0
        here: list[Row] = []
        for time in range(LAST + 1):
            share = 0.9 if time and dice.random() < 0.5 else 0.2
            for _ in range(dice.choice([0, 2, 5, 12]) if time else 20):
                if here and dice.random() < share:
                    # Mostly the first ones.
                    gone = sorted(here, key=self.place)[0] if dice.random() < 0.8 else dice.choice(here)
                    here.remove(gone)
                    self.updates.append((gone, time, -1))
                else:
                    row = (
                        dice.choice([None, 1, 2]),
                        dice.choice([None, "", "a"]),
                        dice.choice([None, *range(9)]),
                    )
                    here.append(row)
                    self.updates.append((row, time, 1))

    def place(self, row: Row) -> tuple[tuple[bool, int], ...]:
        """By h0 descending, its nulls first, then by c0."""
        by_h0 = (row[2] is not None, -(row[2] or 0))
        return by_h0, (row[0] is None, row[0] or 0)

    def at(self, time: int) -> list[Row]:
        counts: Counter[Row] = Counter()
        for row, when, diff in self.updates:
            if when <= time:
                counts[row] += diff
        return sorted(counts.elements(), key=self.place)

    def best(self, time: int, count: int) -> pa.Table:
        self.reread += 1
        return self._table(self.at(time)[:count])

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        return add_up([updates_table([(r, 0, 1) for r in rows], DESC).drop_columns([TIME_COLUMN])])

    def span(self, time: int) -> tuple[list[Row], list[Row], int]:
        """The rows that are in all answers; those of which the others are; how many an answer has."""
        rows, wanted = self.at(time), self.wanted
        places = [self.place(r) for r in rows]
        last = wanted.skipped + wanted.count
        if wanted.ties and 0 < last <= len(rows) and wanted.count:
            last = max(i for i, p in enumerate(places) if p == places[last - 1]) + 1
        chosen = rows[wanted.skipped : last]
        edges = {places[wanted.skipped]} if wanted.skipped < len(rows) else set()
        edges |= {places[last]} if last < len(rows) else set()
        sure = [r for r in chosen if self.place(r) not in edges]
        return sure, [r for r in rows if self.place(r) in edges], len(chosen)

    def answer(self, time: int) -> pa.Table:
        rows = self.at(time)
        sure, others, size = self.span(time)
        return self._table([*sure, *others][:size]).select(["c0", "c1", "mz_diff"]) if rows else self._none()

    def _none(self) -> pa.Table:
        return self._table([]).select(["c0", "c1", "mz_diff"])


def order() -> tuple[SortKey, ...]:
    return SortKey(Ref(INT4, "", "h0"), True, True), SortKey(Ref(INT4, "", "c0"), False, False)


@pytest.mark.parametrize("seed", range(60))
def test_first_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(kept, "MARGIN", dice.choice([1, 3, 1000]))
    monkeypatch.setattr(kept, "MAX_KEPT", dice.choice([0, 8, 1000]))
    count, skipped = dice.choice([0, 1, 3]), dice.choice([0, 0, 2])
    wanted = Wanted(DESC.columns, order(), ("c0", "c1"), count, skipped, dice.random() < 0.3)
    rows = Rows(dice, wanted)
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 3))), LAST + 1]
    inner = Told(DESC, [u for u in rows.updates if u[1] >= 1], uppers)
    inner.frontier = 1
    first = add_up([rows.answer(0)])
    follow = FirstRowsFollower(
        wanted, inner, rows.best, lambda at: add_up([rows.answer(at)]), first, ["x", "y"]
    )
    told: Counter[tuple[int, tuple[object, ...]]] = Counter()
    while follow.frontier <= LAST:
        changes = follow.advance()
        assert changes is not None
        for x, y, time, diff in zip(*(c.to_pylist() for c in changes.updates.columns), strict=True):
            assert changes.lower <= time < changes.upper and (time, (x, y)) not in told
            told[time, (x, y)] = diff
    seen: Counter[tuple[object, ...]] = Counter()
    for x, y, n in zip(*(c.to_pylist() for c in first.columns), strict=True):
        seen[x, y] += n
    for time in range(1, LAST + 1):
        for (when, row), diff in told.items():
            if when == time:
                seen[row] += diff
        assert min(seen.values(), default=0) >= 0
        sure, others, size = rows.span(time)
        rest = Counter(seen)
        rest.subtract(Counter[tuple[object, ...]](r[:2] for r in sure))
        assert seen.total() == size and min(rest.values(), default=0) >= 0, f"at {time}"
        assert rest <= Counter[tuple[object, ...]](r[:2] for r in others), f"at {time}"


def test_changes_behind_them_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MARGIN", 2)
    wanted = Wanted(DESC.columns, order(), ("c0",), 1, 0, False)
    rows = Rows(random.Random(0), wanted)
    rows.updates = [((1, "", n), 0, 1) for n in range(20)]
    rows.updates += [((1, "", 0), 1, -1), ((1, "", 19), 2, -1), ((1, "", -5), 3, 1)]
    inner = Told(DESC, [u for u in rows.updates if u[1] >= 1], [2, 3, 4])
    inner.frontier = 1
    first = rows.answer(0).select(["c0", "mz_diff"])
    follow = FirstRowsFollower(wanted, inner, rows.best, rows.answer, first, ["x"])
    read: list[int] = []
    for _ in range(3):
        follow.advance()
        read.append(rows.reread)
    assert read == [1, 1, 1]


def test_a_row_that_is_not_there() -> None:
    wanted = Wanted(DESC.columns, order(), ("c0",), 1, 0, False)
    rows = Rows(random.Random(0), wanted)
    rows.updates = [((1, "", 1), 0, 1)]
    inner = Told(DESC, [((1, "", 1), 1, 1), ((1, "", 7), 2, -1)], [2, 3])
    inner.frontier = 1
    follow = FirstRowsFollower(
        wanted, inner, rows.best, rows.answer, rows.answer(0).select(["c0", "mz_diff"]), ["x"]
    )
    follow.advance()
    with pytest.raises(NegativeMultiplicity):
        follow.advance()


PLANS = """
SELECT a, s FROM t ORDER BY b DESC, a LIMIT 3 OFFSET 2 -> h0 desc, c0: ('c0', 'c1') 3 after 2
SELECT a, count(*) AS c FROM t GROUP BY a ORDER BY c LIMIT 5 -> c1: None 5 after 0
SELECT a FROM t ORDER BY b FETCH FIRST 2 ROWS WITH TIES -> h0: ('c0',) 2 after 0 with ties
SELECT a FROM t LIMIT 3 -> None
SELECT a FROM t ORDER BY a -> None
SELECT a FROM t ORDER BY a OFFSET 3 -> None
SELECT * FROM (SELECT a FROM t ORDER BY a LIMIT 3) x -> None
"""


@pytest.mark.parametrize("line", PLANS.strip().splitlines())
def test_plans(line: str) -> None:
    query, _, expected = line.partition(" -> ")
    names = Names({"t": RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT)))}, {})
    found = first_rows(names.bind(query).plan)
    shown = "None"
    if found is not None:
        shown = f"{explain_order(found.order)}: {found.shown} {found.count} after {found.skipped}"
        shown += " with ties" if found.ties else ""
    assert shown == expected
