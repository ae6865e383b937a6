"""Followers go on behind errors in the data: at every time they have the error that SELECT has there, or its
answer."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

import pytest
import test_accumulating_follower as sums
from stage_world import Histories, StageWorld
from test_key_local_follower import DESCS, LAST, NAMES, rows, rows_in_order
from told_spans import Told, Update

from tidemill.errors import TidemillError
from tidemill.query.evaluations import Evaluations
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import BoundQuery, linearity
from tidemill.subscribe.leaping import CannotLeap, LeapingFollower, StillFailing
from tidemill.subscribe.linear import LinearFollower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

pytestmark = pytest.mark.spark

# Each fails in the rows, or in what is made of them.
LINEAR = ("SELECT a, 12 / b FROM t UNION ALL SELECT b, a FROM u",)
SUMS = ("SELECT a, sum(12 / b) / (count(*) - 2) FROM t GROUP BY a",)
KEYS = (
    "SELECT a, max(12 / b) FROM t GROUP BY a",
    "SELECT t.a, u.b, 12 / t.b FROM t LEFT JOIN u ON t.a = u.a",
    "SELECT 12 / m, count(*) FROM (SELECT a, max(b) AS m FROM t GROUP BY a) x GROUP BY m",
)
_SEEDS = [pytest.param(n, marks=[pytest.mark.chaos] if n else []) for n in range(20)]


def errors_come_and_go(dice: random.Random) -> list[Update]:
    """Rows whose b is 0 for some time, but not at the beginning."""
    here: list[tuple[int, int, str, Decimal]] = []
    updates: list[Update] = []
    for time in range(LAST + 1):
        for _ in range(dice.choice([1, 2, 3])):
            b = dice.choice([1, 1, 2, 3, 0]) if time else dice.choice([1, 2])
            row = (dice.choice([0, 1, 2]), b, "x", Decimal(1))
            here.append(row)
            updates.append((row, time, 1))
        for row in [r for r in here if dice.random() < (0.5 if r[1] == 0 else 0.2)]:
            here.remove(row)
            updates.append((row, time, -1))
    return updates


def opened(
    spark: SparkHost, bound: BoundQuery, query: str, found: Histories, uppers: list[int]
) -> LeapingFollower:
    if query in SUMS:
        return sums.follower(spark, bound, found, uppers)
    if query in KEYS:
        return StageWorld(spark, DESCS, found).follower(bound, uppers)
    told = {
        p: Told(DESCS[r], [u for u in found[r] if u[1] > 0], list(uppers)) for p, r in bound.inputs.items()
    }
    for each in told.values():
        each.frontier = 1
    return LinearFollower(Evaluations(spark), bound.columns, linearity(bound).branches, told, 1)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("query", [*LINEAR, *SUMS, *KEYS])
def test_the_error_is_there_when_select_has_it(spark: SparkHost, query: str, seed: int) -> None:
    dice = random.Random(f"{query} {seed}")
    found = {name: errors_come_and_go(dice) for name in DESCS if DESCS[name] is DESCS["t"]}
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 2))), LAST + 1]
    bound = NAMES.bind(query)
    wanted: dict[int, Counter[str] | str] = {}
    for at in range(LAST + 1):
        try:
            wanted[at] = rows(StageWorld(spark, DESCS, found).select(bound, bound.sql(), at))
        except TidemillError as e:
            wanted[at] = e.primary
    follow = opened(spark, bound, query, found, uppers)
    answer, failing = wanted[0], False
    assert isinstance(answer, Counter)
    while follow.frontier <= LAST:
        if not failing:
            try:
                changes = follow.advance()
            except TidemillError as e:
                assert wanted[follow.frontier] == e.primary
                failing = True
                continue
        else:
            changes = follow.leap()
            if changes is None:
                assert follow.frontier == LAST
                return
            if isinstance(changes, StillFailing):
                assert all(isinstance(wanted[t], str) for t in range(changes.lower, changes.upper))
                if changes.upper > LAST:
                    return
                continue
            failing = False
            assert changes is not None
            assert all(isinstance(wanted[t], str) for t in range(changes.lower, changes.upper - 1))
        assert changes is not None and changes.upper == follow.frontier
        updates = changes.updates.sort_by(TIME_COLUMN)
        times, diffs = (updates.column(n).to_pylist() for n in (TIME_COLUMN, DIFF_COLUMN))
        told = rows_in_order(updates.drop_columns([TIME_COLUMN, DIFF_COLUMN]))
        for at in range(changes.lower, changes.upper):
            for row, time, diff in zip(told, times, diffs, strict=True):
                answer[row] += diff if time == at else 0
            if at in times or at == changes.upper - 1:
                assert {r: n for r, n in answer.items() if n} == wanted[at], (
                    f"at {at} of {found}, in {uppers}"
                )


def test_it_does_not_leap_over_more_than_it_may_hold(
    spark: SparkHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    history: list[Update] = [
        ((0, b, "x", Decimal(1)), time, 1) for b, time in ((1, 0), (0, 1), (2, 2), (3, 3))
    ]
    bound = NAMES.bind(KEYS[0])
    follow = opened(spark, bound, KEYS[0], {"t": history}, [2, 3, 4])
    with pytest.raises(TidemillError, match="division by zero"):
        follow.advance()
    assert isinstance(follow.leap(), StillFailing)
    monkeypatch.setattr("tidemill.subscribe.key_local.MAX_LEAP_ROWS", 2)
    with pytest.raises(CannotLeap):
        follow.leap()
