"""Stages that wait together are evaluated together, and each has its own answer or error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from support.bound import Names
from tidemill.errors import TidemillError, Unavailable
from tidemill.query.keyed_changes import evaluate_keys
from tidemill.query.spark import SparkHost
from tidemill.query.stage_jobs import StagePiece, evaluate
from tidemill.query.stage_queue import SHARED_ROWS, StageQueue
from tidemill.sql.bind.incremental import keyed_stages
from tidemill.sql.plan.versions import VERSION
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT)))
NAMES = Names({"t": DESC, "u": DESC})
# Of one input and of two.
QUERIES = (
    "SELECT a, max(b) FROM t GROUP BY a",
    "SELECT a, string_agg(s, ',' ORDER BY s, b), count(DISTINCT b) FROM t GROUP BY a",
    "SELECT t.a, t.s, u.b FROM t LEFT JOIN u ON t.a = u.a",
    "SELECT DISTINCT b FROM t",
)
FAILS = "SELECT a, max(12 / b) FROM t GROUP BY a"


def rows(found: pa.Table | None) -> list[str]:
    assert found is not None
    return sorted(map(str, zip(*(column.to_pylist() for column in found.columns), strict=True)))


def piece(sql: str, seed: int) -> StagePiece:
    """Over inputs that have rows of some versions, the last of which may have none."""
    (keyed,) = keyed_stages(NAMES.bind(sql))
    dice = np.random.default_rng(seed)
    tables: dict[str, pa.Table] = {}
    for each in keyed.stage.inputs:
        count = int(dice.integers(0, 30))
        tables[each.name] = pa.table(
            {
                "a": pa.array(dice.integers(0, 3, count).astype(np.int32)),
                "b": pa.array(dice.integers(0, 4, count).astype(np.int32)),
                "s": pa.array([str(n) for n in dice.integers(0, 3, count)], pa.string()),
                VERSION: pa.array(dice.integers(0, 5, count).astype(np.int32)),
                DIFF_COLUMN: pa.array(dice.integers(1, 3, count)),
            }
        )
    return StagePiece(keyed.text, tables, keyed.schema)


@pytest.mark.spark
def test_together_each_has_the_answer_that_it_has_alone(spark: SparkHost) -> None:
    pieces = [[piece(sql, seed) for seed in range(3)] for sql in QUERIES]
    for some in pieces:
        evaluate(spark, some)
    for each in [each for some in pieces for each in some]:
        alone = evaluate_keys(spark, each.text, each.tables, each.schema)
        assert each.error is None and rows(each.result) == rows(alone), each.text
        assert each.result is not None and each.result.schema == each.schema


@pytest.mark.spark
def test_an_error_is_that_of_its_piece_alone(spark: SparkHost) -> None:
    good, bad, other = (piece(FAILS, seed) for seed in (3, 4, 5))
    for each in (good, other):
        tables = {n: t.filter(pa.array(t.column("b").to_numpy() > 0)) for n, t in each.tables.items()}
        each.tables = tables
    evaluate(spark, [good, bad, other])
    assert bad.error is not None and bad.error.primary == "division by zero"
    for each in (good, other):
        assert each.error is None
        assert rows(each.result) == rows(evaluate_keys(spark, each.text, each.tables, each.schema))


# -- the queue, without Spark


class Run:
    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.sizes: list[int] = []
        self._then = then

    def __call__(self, _: SparkHost, pieces: Sequence[StagePiece]) -> None:
        self.sizes.append(len(pieces))
        self._then()
        for each in pieces:
            if each.text == "bad" and next(iter(each.tables.values())).column(0)[0].as_py() % 2:
                each.error = TidemillError("bad")
            each.result = next(iter(each.tables.values()))


def table(number: int) -> dict[str, pa.Table]:
    return {"t": pa.table({"n": [number]})}


def ask(queue: StageQueue, number: int, text: str = "good") -> int:
    return queue.evaluate(text, table(number), pa.schema([]), of=number).column(0)[0].as_py()


def test_those_who_come_during_a_turn_have_the_next_one() -> None:
    running, go = threading.Event(), threading.Event()

    def then() -> None:
        running.set()
        assert go.wait(60)

    run = Run(then)
    queue = StageQueue(cast(Any, None), run)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ask, queue, 0)
        assert running.wait(60)
        others = [pool.submit(ask, queue, n) for n in range(1, 9)]
        (line,) = cast(Any, queue)._lines.values()
        while len(line.waiting) < len(others):
            pass
        go.set()
        assert [f.result(60) for f in (first, *others)] == list(range(9))
    assert run.sizes == [1, 8] and (queue.pieces, queue.turns) == (9, 2)


def test_other_texts_do_not_wait() -> None:
    running, go = threading.Event(), threading.Event()

    def then() -> None:
        if not running.is_set():
            running.set()
            assert go.wait(60)

    queue = StageQueue(cast(Any, None), Run(then))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, queue, 0)
        assert running.wait(60)
        assert ask(queue, 1, "another") == 1
        go.set()
        assert first.result(60) == 0


def test_errors_are_their_own() -> None:
    queue = StageQueue(cast(Any, None), Run())

    def told(n: int) -> int | str:
        try:
            return ask(queue, n, "bad")
        except TidemillError as e:
            return e.primary

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(told, range(6))) == [0, "bad", 2, "bad", 4, "bad"]


@pytest.mark.parametrize("error", [Unavailable("Spark is gone"), ValueError("unforeseen")])
def test_a_turn_that_fails_fails_its_own_and_the_next_one_runs(error: Exception) -> None:
    failing = [True]

    def then() -> None:
        if failing.pop():
            raise error

    queue = StageQueue(cast(Any, None), Run(then))
    with pytest.raises(type(error)):
        ask(queue, 1)
    failing.append(False)
    assert ask(queue, 2) == 2


def test_what_holds_others_up_is_evaluated_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows; and for a while a stage that has failed."""
    asked: list[int] = []

    def alone(_: object, text: str, tables: dict[str, pa.Table], *args: object, **more: object) -> pa.Table:
        asked.append(tables["t"].num_rows)
        return tables["t"]

    monkeypatch.setattr("tidemill.query.stage_queue.evaluate_keys", alone)
    run = Run()
    queue = StageQueue(cast(Any, None), run)
    large = {"t": pa.table({"n": np.zeros(SHARED_ROWS + 1)})}
    queue.evaluate("good", large, pa.schema([]), of=1)
    assert asked == [SHARED_ROWS + 1] and not run.sizes
    with pytest.raises(TidemillError, match="bad"):
        ask(queue, 3, "bad")
    for number in (1, 3, 3):
        ask(queue, number)
    assert run.sizes == [1, 1] and asked == [SHARED_ROWS + 1, 1, 1]
    monkeypatch.setattr("tidemill.query.stage_queue.time.monotonic", lambda: float("inf"))
    ask(queue, 3)
    assert run.sizes == [1, 1, 1]


def test_versions_of_each_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: the stage gives its rows as they are, but fails over a 7."""
    sizes: list[int] = []

    def alone(_: object, text: str, tables: dict[str, pa.Table], *args: object, **more: object) -> pa.Table:
        sizes.append(tables["t"].num_rows)
        if 7 in tables["t"].column("n").to_pylist():
            raise TidemillError("seven")
        return tables["t"].select(["n", VERSION]).take(pa.array(range(tables["t"].num_rows))[::-1])

    monkeypatch.setattr("tidemill.query.stage_jobs.evaluate_keys", alone)

    def of(*rows: tuple[int, int]) -> StagePiece:
        numbers, versions = (pa.array([r[i] for r in rows], pa.int32()) for i in range(2))
        tables = {"t": pa.table({"n": numbers, VERSION: versions, DIFF_COLUMN: versions.cast(pa.int64())})}
        return StagePiece("text", tables, pa.schema([("n", pa.int32()), (VERSION, pa.int32())]))

    some = [of((1, 0), (2, 3)), of(), of((3, 1)), of((7, 0)), of((4, 0), (4, 5))]
    evaluate(cast(Any, None), some)
    assert [p.error and p.error.primary for p in some] == [None, None, None, "seven", None]
    assert [rows(p.result) for p in some if p.error is None] == [
        ["(1, 0)", "(2, 3)"],
        [],
        ["(3, 1)"],
        ["(4, 0)", "(4, 5)"],
    ]
    assert sizes[0] == 6
