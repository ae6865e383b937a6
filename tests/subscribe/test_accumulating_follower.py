"""Groups that are kept as sums: at every time the changes so far are what SELECT answers there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from key_index import ListedIndex
from stage_world import Histories, StageWorld
from test_key_local_follower import DESCS, LAST, NAMES, history, rows, rows_in_order
from told_spans import Told, Update

from tidemill.errors import InvalidValue, TidemillError
from tidemill.query.evaluations import Evaluations
from tidemill.query.keyed_changes import evaluate_keys
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import BoundQuery, linearity
from tidemill.sql.bind.accumulated import STATE, accumulated
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.sql.plan.versions import VERSION
from tidemill.subscribe import accumulating
from tidemill.subscribe.accumulating import AccumulatingFollower
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.leaping import StillFailing
from tidemill.subscribe.linear import LinearFollower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import RelationDesc

_WIDE = Context(prec=60)
_SEEDS = [pytest.param(n, marks=[pytest.mark.chaos] if n else []) for n in range(20)]

QUERIES = """
SELECT a, count(*), count(b), sum(b), avg(b), sum(n), avg(n), count(s) FROM t GROUP BY a;
SELECT count(*), count(b), sum(b), avg(n), sum(n) + 1 FROM t;
SELECT s, a + 1 AS x, sum(n) FILTER (WHERE b > 0) AS p, avg(b) FILTER (WHERE b = 1),
  count(*) FILTER (WHERE a > 0) FROM t WHERE b IS NOT NULL GROUP BY s, a + 1 HAVING count(*) > 1 ORDER BY p;
SELECT c - 1, m * 2 FROM (SELECT k, count(*) AS c, sum(x) AS m FROM g GROUP BY k) q WHERE c > 1;
SELECT d, sum(y), avg(y), count(k) FROM (SELECT d, y, k FROM h UNION ALL SELECT d, 7, id FROM g) q GROUP BY d;
SELECT sum(y) FROM h HAVING count(*) > 2
"""


def follower(
    spark: SparkHost, bound: BoundQuery, found: Histories, uppers: list[int]
) -> AccumulatingFollower:
    query, world = accumulated(bound), StageWorld(spark, DESCS, found)
    inputs = {p: world.input(relation, 0) for p, relation in bound.inputs.items()}
    first = collect(spark, query.first, inputs, query.first_columns).rename_columns(query.state.names)
    first = first.append_column(DIFF_COLUMN, pa.array(np.ones(first.num_rows, np.int64)))
    told = {
        p: Told(DESCS[r], [u for u in found[r] if u[1] > 0], list(uppers)) for p, r in bound.inputs.items()
    }
    for each in told.values():
        each.frontier = 1
    changes = LinearFollower(
        Evaluations(spark), query.changes.columns, linearity(query.changes).branches, told, 1
    )
    names = [f"c{i}" for i in range(len(bound.columns))]

    def evaluate(state: pa.Table) -> pa.Table:
        return evaluate_keys(spark, query.text, {STATE: state}, query.schema)

    return AccumulatingFollower(query, changes, ListedIndex(first, query.keys, 1), evaluate, names)


@pytest.mark.spark
@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("text", [q.strip() for q in QUERIES.split(";")])
def test_sums_follow_the_answer(spark: SparkHost, text: str, seed: int) -> None:
    dice = random.Random(f"{text} {seed}")
    found = {name: history(dice, desc) for name, desc in DESCS.items()}
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 2))), LAST + 1]
    bound, world = NAMES.bind(text), StageWorld(spark, DESCS, found)
    follow = follower(spark, bound, found, uppers)
    at_each: dict[int, Counter[str]] = {}
    while follow.frontier <= LAST:
        lower = follow.frontier
        changes = follow.advance()
        assert changes is not None and (changes.lower, changes.upper) == (lower, follow.frontier)
        *_, times, diffs = (c.to_pylist() for c in changes.updates.columns)
        told = rows_in_order(changes.updates.drop_columns([TIME_COLUMN, DIFF_COLUMN]))
        for row, time, diff in zip(told, times, diffs, strict=True):
            assert changes.lower <= time < changes.upper
            at_each.setdefault(time, Counter())[row] += diff
    answer = rows(world.select(bound, bound.sql(), 0))
    for at in range(1, LAST + 1):
        for row, diff in at_each.get(at, Counter[str]()).items():
            answer[row] += diff
        if at in (2, LAST):
            expected = rows(world.select(bound, bound.sql(), at))
            assert {r: n for r, n in answer.items() if n} == expected, f"at {at} of {found}, in {uppers}"


def by_hand(found: Sequence[Update], at: int, *, keyed: bool) -> dict[tuple[int | None, ...], list[Any]]:
    """By group: count(*), count(b), sum(b), count(n), sum(n)."""
    sums: dict[tuple[int | None, ...], list[Any]] = {} if keyed else {(): [0, 0, None, 0, None]}
    for (a, b, _, n), time, diff in found:
        if time <= at:
            group = sums.setdefault((a,) if keyed else (), [0, 0, None, 0, None])
            group[0] += diff
            for i, value in ((1, b), (3, n)):
                if value is not None:
                    group[i] += diff
                    group[i + 1] = (group[i + 1] or 0) + value * diff
    return {
        key: [s[0], s[1], s[2] if s[1] else None, s[3], s[4] if s[3] else None]
        for key, s in sums.items()
        if s[0] or not keyed
    }


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_sums_without_spark(keyed: bool, fails: bool) -> None:
    """The same with the rows and the answer made by hand, for many histories; also of an answer that is an
    error for a group of three values, behind which it goes on. What was told before is not told again."""
    text = "SELECT count(*), count(b), sum(b), sum(n) FROM t"
    query = accumulated(NAMES.bind(text.replace("SELECT", "SELECT a,") + " GROUP BY a" if keyed else text))
    values = RelationDesc(query.changes.columns)

    def shown(found: Sequence[Update], at: int) -> Counter[tuple[Any, ...]]:
        sums = by_hand(found, at, keyed=keyed)
        return Counter([(*key, s[0], s[1], s[2], s[4]) for key, s in sums.items()])

    def has_error(sums: dict[tuple[int | None, ...], list[Any]]) -> bool:
        return fails and any(s[1] == 3 for s in sums.values())

    def evaluate(state: pa.Table) -> pa.Table:
        if fails and 3 in state.column("n0").to_pylist():
            raise InvalidValue("three")
        chosen = state.select([*query.keys, "n", "n0", "s1", "s2", VERSION])
        return chosen.rename_columns(query.schema.names)

    for seed in range(40):
        dice = random.Random(seed)
        found = history(dice, DESCS["t"])
        changes = [
            ((*((row[0],) if keyed else ()), None if row[1] is None else 1, row[1], row[3]), time, diff)
            for row, time, diff in found
            if time > 0
        ]
        before = by_hand(found, 0, keyed=keyed)
        if has_error(before):
            continue
        begin = 1 if fails or seed % 3 else 3
        kept = [(*key, s[0], s[1], s[1], s[2], s[3], s[4]) for key, s in before.items()]
        fields = list(query.state)
        state = pa.table(
            [pa.array([row[i] for row in kept], f.type) for i, f in enumerate(fields)],
            names=query.state.names,
        )
        state = state.append_column(DIFF_COLUMN, pa.array(np.ones(len(kept), np.int64)))
        told = Told(values, changes, [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 2))), LAST + 1])
        told.frontier = 1
        names = [f"c{i}" for i in range(len(query.schema) - 1)]
        follow = AccumulatingFollower(query, told, ListedIndex(state, query.keys, 1), evaluate, names, begin)
        answer, at_each = shown(found, begin - 1), dict[int, list[tuple[Any, ...]]]()
        failing: set[int] = set()
        while follow.frontier <= LAST and max(failing, default=0) < LAST:
            made = _gone_on(follow, failing)
            if made is None:
                continue
            for row in zip(*(c.to_pylist() for c in made.updates.columns), strict=True):
                at_each.setdefault(row[-2], []).append(row)
        for at in range(begin, LAST + 1):
            assert (at in failing) == has_error(by_hand(found, at, keyed=keyed)), f"seed {seed}, at {at}"
            for row in at_each.get(at, []):
                answer[row[:-2]] += row[-1]
            if at not in failing:
                assert {r: n for r, n in answer.items() if n} == shown(found, at), f"seed {seed}, at {at}"


def _gone_on(follow: AccumulatingFollower, failing: set[int]) -> CollectionChanges | None:
    """Its next changes; adds the times at which there is an error."""
    if follow.frontier not in failing:
        try:
            return follow.advance()
        except InvalidValue:
            failing.add(follow.frontier)
    found = follow.leap()
    if found is None:
        assert max(failing) == LAST
        return None
    gone = not isinstance(found, StillFailing)
    failing.update(range(max(failing) + 1, found.upper - gone))
    return None if isinstance(found, StillFailing) else found


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, max(b) FROM t GROUP BY a",
        "SELECT a, count(DISTINCT b) FROM t GROUP BY a",
        "SELECT a, sum(b::float8) FROM t GROUP BY a",
        "SELECT b::float8, count(*) FROM t GROUP BY b::float8",
        "SELECT a, sum(b) FROM t GROUP BY ROLLUP (a)",
        "SELECT t.a, sum(t.b) FROM t JOIN u ON t.a = u.a GROUP BY t.a",
        "SELECT a, sum(b), rank() OVER (ORDER BY a) FROM t GROUP BY a",
        "SELECT a FROM t",
        "SELECT a, sum(b) FROM t WHERE random() < 0.5 GROUP BY a",
    ],
)
def test_other_queries_are_not_sums(text: str) -> None:
    with pytest.raises(NotIncremental):
        accumulated(NAMES.bind(text))


def test_a_count_of_all_rows_has_values_too() -> None:
    """Spark has no values without fields: such a query broke the job that it shared with others."""
    query = accumulated(NAMES.bind("SELECT count(*) FROM t"))
    assert len(query.changes.columns) == 1 and not query.keys and not query.sums


def test_totals_are_exact() -> None:
    dice = random.Random(3)
    bound = NAMES.bind("SELECT sum(n) FROM t")
    query = accumulated(bound)
    (each,) = query.sums
    values = [Decimal(dice.randint(-(10**37), 10**37)).scaleb(-18, _WIDE) for _ in range(200)]
    limbs = accumulating._limbs(pa.array(values, pa.decimal128(38, 18)))  # pyright: ignore[reportPrivateUsage]
    diffs = np.array([dice.choice([-3, -1, 1, 2]) for _ in values])
    total = accumulating._carried((limbs * diffs[:, None]).sum(axis=0)[None, :])  # pyright: ignore[reportPrivateUsage]
    exact = sum(int(v.scaleb(18, _WIDE)) * int(d) for v, d in zip(values, diffs, strict=True))
    if abs(exact) < 10**38:
        made = accumulating._total(total, np.array([1]), query.state, each)  # pyright: ignore[reportPrivateUsage]
        assert made.to_pylist() == [Decimal(exact).scaleb(-18, _WIDE)]


@pytest.mark.parametrize(
    ("text", "fits", "exceeds"),
    [
        ("SELECT sum(n) FROM t", 10**38 - 1, 10**38),
        ("SELECT sum(n) FROM t", -(10**38) + 1, -(10**38)),
        ("SELECT sum(n) FROM t", 2**126, 2**127),
        ("SELECT sum(b) FROM t", 2**63 - 1, 2**63),
        ("SELECT sum(b) FROM t", -(2**63), -(2**63) - 1),
        ("SELECT avg(b) FROM t", 10**30 - 1, 10**30),
    ],
)
def test_a_total_that_does_not_fit_is_an_error(text: str, fits: int, exceeds: int) -> None:
    query = accumulated(NAMES.bind(text))
    (each,) = query.sums

    def made(value: int) -> pa.Array:
        parts = [[(value >> (32 * i)) & 0xFFFFFFFF for i in range(3)] + [value >> 96]]
        return accumulating._total(  # pyright: ignore[reportPrivateUsage]
            np.array(parts, np.int64), np.array([1]), query.state, each
        )

    (shown,) = made(fits).to_pylist()
    scale = 18 if "sum(n)" in text else 0
    assert Decimal(shown) == Decimal(fits).scaleb(-scale, _WIDE)
    with pytest.raises(TidemillError) as error:
        made(exceeds)
    assert error.value.sqlstate == "22003"
