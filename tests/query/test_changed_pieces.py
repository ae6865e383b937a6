"""How pieces are put together, cut into jobs and taken apart again, without Spark: what stands for it here
reads the numbers of the formulas that it is asked for. (Their expressions: `test_linear_follower`.)"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.bound import Names
from tidemill.errors import InvalidValue, Unavailable
from tidemill.query import linear_changes
from tidemill.query.linear_changes import ChangePiece, Formula, evaluate
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import ROW, linearity
from tidemill.types.model import INT4, Column, RelationDesc

TABLE = RelationDesc((Column("a", INT4),))
NAMES = Names({"t": TABLE}, {"more": "SELECT a + 1 AS c FROM t"})
# A filter and a projection are a column of a projection; an expression under a filter is a side of a union.
FLAT, OTHER = "SELECT a FROM t WHERE a > 0", "SELECT c FROM more WHERE c > 0"
HOST = cast(SparkHost, None)

_SIDE = re.compile(r"CAST\((\d+) AS INT\) AS q.*?FROM `(tm_ch_\d+)`")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a formula makes here of the column: what is greater than `over`, times `factor`; `bad` cannot be
    evaluated."""

    over: int
    factor: int
    bad: int | None

    def rows(self, values: list[int]) -> list[tuple[int, int]]:
        """(value, row) of what is left of the values."""
        if self.bad in values:
            raise InvalidValue(f"cannot evaluate {self.bad}")
        return [(v * self.factor, n) for n, v in enumerate(values) if v > self.over]


@dataclass
class Pretended:
    """Stands for `changed._run`."""

    rules: dict[int, Rule] = field(default_factory=dict[int, Rule])
    jobs: int = 0
    away: bool = False

    def run(
        self, host: SparkHost, text: str, views: Mapping[str, pa.Table], schema: pa.Schema, *, folded: bool
    ) -> Iterator[pa.RecordBatch]:
        self.jobs += 1
        if self.away:
            raise Unavailable("Spark is gone")
        if schema.names[0] == ROW:
            yield from self._projected(views["tm_ch_0"], schema)
        else:
            yield from self._united(text, views, schema)

    def _projected(self, table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        values = table.column("a").to_pylist()
        columns: list[Any] = [table.column(ROW).combine_chunks()]
        for name in schema.names[1:]:
            found = {n: {"c0": v} for v, n in self.rules[int(name[1:])].rows(values)}
            columns.append(pa.array([found.get(n) for n in range(len(values))], schema.field(name).type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _united(
        self, text: str, views: Mapping[str, pa.Table], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for side, view in _SIDE.findall(text):
            numbers = views[view].column(ROW).to_pylist()
            found = self.rules[int(side)].rows(views[view].column("a").to_pylist())
            arrays = [
                pa.array([int(side)] * len(found), pa.int32()),
                pa.array([numbers[n] for _, n in found], pa.int64()),
                pa.array([{"c0": v} for v, _ in found], schema.field(2).type),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    made = Pretended()
    monkeypatch.setattr(linear_changes, "_run", made.run)
    return made


def piece(pretended: Pretended, sql: str, rule: Rule, values: list[int]) -> ChangePiece:
    bound = NAMES.bind(sql)
    (branch,) = linearity(bound).branches
    assert (branch.flat is not None) is (sql == FLAT)
    formula = Formula(branch, bound.columns)
    pretended.rules[formula.number] = rule
    return ChangePiece(formula, pa.table({"a": pa.array(values, pa.int32())}))


def check(pretended: Pretended, made: ChangePiece) -> None:
    rule = pretended.rules[made.formula.number]
    values: list[int] = made.table.column("a").to_pylist()
    if rule.bad in values:
        assert made.error is not None and made.error.primary == f"cannot evaluate {rule.bad}"
        return
    assert made.error is None
    found = zip(made.result.column(0).to_pylist(), made.result.column(ROW).to_pylist(), strict=True)
    assert sorted(found, key=lambda r: r[1]) == rule.rows(values)


RULES = st.builds(
    Rule, st.integers(-1, 3), st.integers(1, 3), st.one_of(st.none(), st.none(), st.integers(0, 4))
)


@given(
    tables=st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), min_size=1, max_size=3),
    asked=st.lists(
        st.tuples(st.sampled_from([FLAT, OTHER]), RULES, st.integers(0, 2)), min_size=1, max_size=7
    ),
    cells=st.sampled_from([1, 6, 10, 4_000_000]),
)
@settings(max_examples=100, deadline=None)
def test_each_piece_gets_its_own_rows_or_its_own_error(
    tables: list[list[int]], asked: list[tuple[str, Rule, int]], cells: int
) -> None:
    """Over tables of equal size, in however many jobs, whichever of them fail."""
    pretended = Pretended()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_changes, "_run", pretended.run)
        patch.setattr(linear_changes, "MAX_CELLS", cells)
        pieces = [piece(pretended, sql, rule, tables[n % len(tables)]) for sql, rule, n in asked]
        evaluate(HOST, pieces)
    for each in pieces:
        check(pretended, each)


def test_one_that_fails_late_leaves_nothing_of_the_others_twice(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first slice went well for both."""
    monkeypatch.setattr(linear_changes, "MAX_CELLS", 4)
    for sql in (FLAT, OTHER):
        good = piece(pretended, sql, Rule(0, 1, None), [1, 2, 3, 4])
        bad = piece(pretended, sql, Rule(0, 1, 4), [1, 2, 3, 4])
        evaluate(HOST, [good, bad])
        check(pretended, good)
        check(pretended, bad)
        assert bad.result.num_rows == 0


@pytest.mark.parametrize("sql", [FLAT, OTHER])
def test_equal_tables_share_a_job(pretended: Pretended, sql: str) -> None:
    pieces = [piece(pretended, sql, Rule(n, 1, None), [1, 2, 3]) for n in range(5)]
    evaluate(HOST, pieces)
    assert pretended.jobs == 1
    for each in pieces:
        check(pretended, each)


def test_a_spark_that_is_gone_is_nobodys_error(pretended: Pretended) -> None:
    pretended.away = True
    pieces = [piece(pretended, sql, Rule(0, 1, None), [1]) for sql in (FLAT, FLAT)]
    with pytest.raises(Unavailable):
        evaluate(HOST, pieces)
    assert [p.error for p in pieces] == [None, None] and pretended.jobs == 1
