"""Who asks together is answered together; nobody waits for ever, and no error is another's. (Without Spark:
the evaluation is the test's own.)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tidemill.errors import TidemillError, Unavailable
from tidemill.query import evaluations as module
from tidemill.query.evaluations import MAX_PIECES, Evaluations, Member
from tidemill.query.linear_changes import ChangePiece

ALONE = Member(frozenset())


class Fake:
    """Stands for a piece."""

    def __init__(self, error: TidemillError | None = None) -> None:
        self.error: TidemillError | None = None
        self.fails_with = error
        self.done = False


def pieces(*fakes: Fake) -> Sequence[ChangePiece]:
    return cast(Any, list(fakes))


def evaluating(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[list[Fake]], None] = lambda _: None
) -> tuple[Evaluations, list[int]]:
    """Evaluations whose jobs call `run`, and the sizes of the jobs."""
    sizes: list[int] = []

    def evaluate(_host: object, given: Sequence[Any]) -> None:
        sizes.append(len(given))
        run(list(given))
        for fake in given:
            fake.done = True
            fake.error = fake.fails_with

    monkeypatch.setattr(module, "evaluate", evaluate)
    return Evaluations(cast(Any, None)), sizes


def test_one_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations, sizes = evaluating(monkeypatch)
    fake = Fake()
    evaluations.evaluate(evaluations.join(["t"]), pieces(fake))
    evaluations.evaluate(ALONE, [])
    assert fake.done and sizes == [1] and evaluations.jobs == 1


def test_what_may_fail_is_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations, sizes = evaluating(monkeypatch)
    member, fake = evaluations.join(["t"]), Fake(TidemillError("no"))
    # Another that would be waited for.
    evaluations.join(["t"])
    with pytest.raises(TidemillError, match="no"):
        evaluations.evaluate(member, pieces(fake), apart=True)
    assert sizes == [1] and evaluations.jobs == 0


def test_those_who_come_while_a_job_runs_are_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    running, go = threading.Event(), threading.Event()

    def run(_: list[Fake]) -> None:
        running.set()
        assert go.wait(30)

    evaluations, sizes = evaluating(monkeypatch, run)
    fakes = [Fake() for _ in range(9)]
    with ThreadPoolExecutor(len(fakes)) as pool:
        first = pool.submit(evaluations.evaluate, ALONE, pieces(fakes[0]))
        assert running.wait(30)
        others = [pool.submit(evaluations.evaluate, ALONE, pieces(fake)) for fake in fakes[1:]]
        while waiting(evaluations) < len(others):
            pass
        go.set()
        for each in (first, *others):
            each.result(30)
    assert sizes == [1, 8] and all(fake.done for fake in fakes)


def waiting(evaluations: Evaluations) -> int:
    return len(cast(Any, evaluations)._waiting)


def test_an_error_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations, _ = evaluating(monkeypatch)
    fakes = [Fake(TidemillError(f"no {n}") if n % 2 else None) for n in range(6)]

    def ask(fake: Fake) -> str | None:
        try:
            evaluations.evaluate(ALONE, pieces(fake))
        except TidemillError as e:
            return e.primary
        return None

    with ThreadPoolExecutor(len(fakes)) as pool:
        assert list(pool.map(ask, fakes)) == [None, "no 1", None, "no 3", None, "no 5"]


@pytest.mark.parametrize("error", [Unavailable("Spark is gone"), ValueError("unforeseen")])
def test_a_job_that_fails_fails_all_and_the_next_runs(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing = [True]

    def run(_: list[Fake]) -> None:
        if failing[0]:
            raise error

    evaluations, _ = evaluating(monkeypatch, run)
    with pytest.raises(type(error)):
        evaluations.evaluate(ALONE, pieces(Fake()))
    failing[0] = False
    fake = Fake()
    evaluations.evaluate(ALONE, pieces(fake))
    assert fake.done


def test_a_job_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations, sizes = evaluating(monkeypatch)
    fakes = [[Fake() for _ in range(100)] for _ in range(6)]
    with ThreadPoolExecutor(len(fakes)) as pool:
        list(pool.map(lambda f: evaluations.evaluate(ALONE, pieces(*f)), fakes))
    assert sum(sizes) == 600 and max(sizes) <= MAX_PIECES
    large = [Fake() for _ in range(MAX_PIECES + 1)]
    evaluations.evaluate(ALONE, pieces(*large))
    assert sizes[-1] == MAX_PIECES + 1


def test_queries_over_the_same_relations_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others; nor those who have left."""
    monkeypatch.setattr(module, "GATHER_GAP", 60.0)
    monkeypatch.setattr(module, "GATHER_SECONDS", 60.0)
    evaluations, sizes = evaluating(monkeypatch)
    members = [evaluations.join(names) for names in (["a"], ["a", "b"], ["b"])]
    evaluations.leave(evaluations.join(["a"]))
    evaluations.join(["other"])
    with ThreadPoolExecutor(len(members)) as pool:
        asked = [pool.submit(evaluations.evaluate, member, pieces(Fake())) for member in members]
        for each in asked:
            each.result(30)
    assert sizes == [3]
