"""The tester is tested: each of these bugs, planted on purpose, must be found by the comparison with the
oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from cdcv2_oracle import stream
from test_cdcv2_recovery import SIDES, follow

from tidemill.cdcv2.coverage import LineCoverage, ProductCoverage
from tidemill.cdcv2.row_stash import RowStash
from tidemill.cdcv2.tally import Tally
from tidemill.cdcv2.times import beyond, join, minimal
from tidemill.errors import TidemillError

Plant = Callable[[pytest.MonkeyPatch], None]


def _repetitions_count(patch: pytest.MonkeyPatch) -> None:
    real = RowStash.add

    def add(self: RowStash, *update: Any) -> None:
        real(self, *update)

    patch.setattr(RowStash, "add", add)


def _missing_updates_do_not_hold(patch: pytest.MonkeyPatch) -> None:
    def blocked(self: Tally, time: Any) -> bool:
        return False

    patch.setattr(Tally, "_blocked", blocked)


def _gaps_are_jumped(patch: pytest.MonkeyPatch) -> None:
    def extend(self: LineCoverage, frontier: Any, statement: Any) -> Any:
        return max(frontier, statement.upper) if statement.upper else ()

    patch.setattr(LineCoverage, "extend", extend)


def _old_news_is_news(patch: pytest.MonkeyPatch) -> None:
    def news(self: Tally, times: Any) -> list[bool]:
        self.open(times)
        return [True] * len(times)

    patch.setattr(Tally, "news", news)


def _the_whole_frontier_must_be_beyond_lower(patch: pytest.MonkeyPatch) -> None:
    """The well-known implementation's rule."""

    def extend(self: ProductCoverage, frontier: Any, statement: Any) -> Any:
        moved = True
        while moved:
            moved = False
            for s in self.statements():
                further = minimal(join(p, u) for p in frontier for u in s.upper)
                if all(beyond(s.lower, p) for p in frontier) and further != frontier:
                    frontier, moved = further, True
        return frontier

    patch.setattr(ProductCoverage, "extend", extend)


def _nothing_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forget(self: LineCoverage, reported: Any) -> None:
        pass

    patch.setattr(LineCoverage, "forget", forget)


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        (0, _repetitions_count),
        (2, _repetitions_count),
        (0, _missing_updates_do_not_hold),
        (3, _missing_updates_do_not_hold),
        (0, _gaps_are_jumped),
        (0, _old_news_is_news),
        (2, _the_whole_frontier_must_be_beyond_lower),
        (3, _the_whole_frontier_must_be_beyond_lower),
        (0, _nothing_is_forgotten),
    ],
)
def test_planted_bugs_are_found(kind: int, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TidemillError)):
        for n in range(200):
            follow(stream(Random(f"planted {n}"), kind, SIDES[kind]), kind, SIDES[kind])
