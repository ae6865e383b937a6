"""Stages whose touched rows are too many are computed as a whole, and once per time. Without Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from key_index import ListedIndex
from told_spans import Told, Update, updates_table

from tidemill.query.multiset import add_up
from tidemill.sql.plan.versions import VERSION
from tidemill.subscribe import key_local_changes
from tidemill.subscribe.key_local import KeyLocalFollower
from tidemill.subscribe.key_local_changes import KeyedInput, RunningStage
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.model import INT4, INT8, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", INT4)))
ANSWER = RelationDesc((Column("a", INT4), Column("n", INT8)))
LAST = 8


class Groups:
    """SELECT a, count(*) FROM t GROUP BY a, by hand."""

    def __init__(self, found: Sequence[Update]) -> None:
        self.found = found
        self.asked: list[int] = []
        self.evaluated = 0

    def counts(self, at: int) -> Counter[int]:
        sums: Counter[int] = Counter()
        for (a, _), time, diff in self.found:
            if time <= at:
                sums[a] += diff
        return Counter({a: n for a, n in sums.items() if n})

    def whole(self, at: int) -> pa.Table:
        self.asked.append(at)
        rows = list(self.counts(at).items())
        made = pa.table([[a for a, _ in rows], [n for _, n in rows]], schema=arrow_schema(ANSWER))
        return add_up([made.append_column(DIFF_COLUMN, pa.array(np.ones(len(rows), np.int64)))])

    def evaluate(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        self.evaluated += 1
        sums: Counter[tuple[int, int]] = Counter()
        for row in tables["i"].to_pylist():
            sums[row["a"], row[VERSION]] += row[DIFF_COLUMN]
        schema = arrow_schema(ANSWER).append(pa.field(VERSION, pa.int32()))
        columns = [[a for a, _ in sums], list(sums.values()), [v for _, v in sums]]
        return pa.table(columns, schema=schema)


def history(dice: random.Random) -> list[Update]:
    """Three groups, one of them large; some times change only the small ones."""
    here = [(0, n) for n in range(20)]
    found: list[Update] = [(row, 0, 1) for row in here]
    for time in range(1, LAST + 1):
        groups = dice.choice([(1, 2), (0, 1), (0, 1, 2), ()])
        for a in groups:
            found.append(((a, dice.randint(0, 9)), time, 1))
            mine = [row for row in here if row[0] == a]
            if mine and dice.random() < 0.5:
                here.remove(row := dice.choice(mine))
                found.append((row, time, -1))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_stage_at_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(key_local_changes, "MAX_VERSION_ROWS", 15)
    dice = random.Random(seed)
    found = history(dice)
    groups = Groups(found)
    first = add_up([updates_table([u for u in found if u[1] < 1], DESC).drop_columns([TIME_COLUMN])])
    index = ListedIndex(first, ("a",), 1)
    given = KeyedInput("i", "t", arrow_schema(DESC), ("a",), index)
    more = [pa.field(TIME_COLUMN, pa.int64()), pa.field(DIFF_COLUMN, pa.int64())]
    empty = pa.schema([*arrow_schema(ANSWER), *more]).empty_table()
    stage = RunningStage("s", (given,), frozenset(), groups.evaluate, groups.whole, ("a", "n"), empty)
    told = Told(DESC, [u for u in found if u[1] > 0], [*sorted(dice.sample(range(2, LAST + 1), 3)), LAST + 1])
    told.frontier = 1
    follow = KeyLocalFollower(lambda _: [stage], {"t": told}, {"t": ["a", "b"]}, 1, ["a", "n"])
    answer = Counter(groups.counts(0).items())
    at_each: dict[int, list[tuple[int, int, int]]] = {}
    while follow.frontier <= LAST:
        changes = follow.advance()
        assert changes is not None
        for a, n, time, diff in zip(*(c.to_pylist() for c in changes.updates.columns), strict=True):
            at_each.setdefault(time, []).append((a, n, diff))
    for at in range(1, LAST + 1):
        for a, n, diff in at_each.get(at, []):
            answer[a, n] += diff
        assert {r: c for r, c in answer.items() if c} == Counter(groups.counts(at).items()), f"at {at}"
    # No answer is computed twice.
    assert len(groups.asked) == len(set(groups.asked)), groups.asked
    assert groups.evaluated or groups.asked
