"""First rows of linear queries: what is dealt out tells what is gathered whole, in its order; and answers
that the tasks of Spark write are the answers."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.bound import Names
from tidemill.errors import QueryCanceled, TidemillError
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.shard import Shard
from tidemill.query import ranged, write
from tidemill.query.job import Job
from tidemill.query.multiset import add_up, expand
from tidemill.query.read import ConstantInput
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.query.write import Destination, write_rows
from tidemill.subscribe.query_rows import WHOLE_BYTES, Asked, QueryRows
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import (
    BOOL,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    Column,
    RelationDesc,
)
from tidemill.types.model import list_ as list_of
from tidemill.types.names import physical_names

pytestmark = pytest.mark.spark

DESC = RelationDesc(
    (
        Column("id", INT8),
        Column("s", TEXT),
        Column("f", FLOAT8),
        Column("n", NUMERIC),
        Column("l", list_of(INT4)),
        Column("ok", BOOL),
        Column("i", INTERVAL),
    )
)
SQL = """
    SELECT id % 40 AS k, upper(s) AS s, -f AS f, n * 2 AS n, l, i, f AS g FROM t WHERE ok
    UNION ALL SELECT id % 7, s, f, n, l, i, 1 FROM t WHERE id % 3 = 0
"""
AT = 40


def some_rows(count: int) -> pa.Table:
    rng = random.Random(5)

    def column(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else rng.choice(values) for _ in range(count)]

    interval = {"months": 0, "days": 1, "micros": -1}
    given = [
        column(list(range(200))),
        column(["", "a", "A", "ä", "b" * 60, "b" * 60 + "c"]),
        column([0.0, -0.0, float("nan"), 1.5, -2.5]),
        column(["0", "1.5", "-2.25"]),
        column([[], [1], [1, None]]),
        [rng.random() < 0.6 for _ in range(count)],
        column([interval, {**interval, "days": 30}]),
    ]
    schema = arrow_schema(DESC)
    return pa.table([pa.array(c).cast(f.type) for c, f in zip(given, schema, strict=True)], schema=schema)


BOUND = Names({"t": DESC}).bind(SQL)
COLUMNS = BOUND.columns
ROWS = some_rows(900)


class Watched:
    """The query; whether its inputs were let go."""

    def __init__(self, text: str = BOUND.sql(), rows: pa.Table = ROWS) -> None:
        self.closed = 0
        inputs = {placeholder: ConstantInput(rows) for placeholder in BOUND.inputs}
        self.asked = Asked(text, inputs, 2 * rows.num_rows, self._close)

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "RANGE_ROWS", 200)


def shown(value: Any) -> str:
    """Which spelling of a zero is told is not promised."""
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def told(spark: SparkHost, spec: Spec, whole_bytes: int = WHOLE_BYTES) -> Iterator[tuple[str, ...]]:
    watched = Watched()
    rows = QueryRows(spark, watched.asked, spec, AT, Job(spark), whole_bytes)
    batches = 0
    while (batch := rows.next()) is not None:
        batches += 1
        yield from (tuple(map(shown, c)) for c in zip(*(c.to_pylist() for c in batch.columns), strict=True))
    rows.close()
    assert watched.closed and (batches > 1) == (whole_bytes == 0)


SPECS = [
    Spec(COLUMNS, OutputShape.UPSERT, keys=(0,)),
    Spec(COLUMNS, OutputShape.DEBEZIUM, keys=(2, 1, 0), progress=True),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(2, True, True), SortItem(0), SortItem(None))),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(None, True), SortItem(5), SortItem(3))),
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_in_order(spark: SparkHost, spec: Spec) -> None:
    expected = list(told(spark, spec))
    assert len(expected) > 20
    assert list(told(spark, spec, 0)) == expected


def test_without_an_order(spark: SparkHost) -> None:
    spec = Spec(COLUMNS)
    expected = Counter(told(spark, spec))
    assert set(expected.values()) == {1} and max(int(row[1]) for row in expected) > 1
    assert Counter(told(spark, spec, 0)) == expected


def test_no_rows_are_none(spark: SparkHost) -> None:
    watched = Watched(rows=ROWS.slice(0, 0))
    rows = QueryRows(spark, watched.asked, Spec(COLUMNS), AT, Job(spark))
    assert rows.next() is None and watched.closed


def test_a_cancelled_one_stops(spark: SparkHost) -> None:
    watched = Watched()
    rows = QueryRows(spark, watched.asked, SPECS[0], AT, Job(spark), 0)
    assert rows.next() is not None
    rows.cancel()
    with pytest.raises(QueryCanceled):
        while rows.next() is not None:
            pass
    rows.close()
    assert watched.closed


def test_what_fails_lets_go(spark: SparkHost) -> None:
    (placeholder,) = BOUND.inputs
    watched = Watched(f"SELECT *, 1 div (id - id) AS bad FROM {placeholder}")
    columns = (*DESC.columns, Column("bad", INT8))
    with pytest.raises(TidemillError, match="division by zero"):
        QueryRows(spark, watched.asked, Spec(columns), AT, Job(spark))
    assert watched.closed


# -- answers that tasks write


def shard_for(folder: Path, desc: RelationDesc) -> Shard:
    blobs = open_blobs(str(folder))
    return Shard.create(blobs, f"u{uuid.uuid4().hex}", desc, epoch=1, cache=PartCache(max_bytes=0))


def test_what_tasks_write_is_the_answer(spark: SparkHost, tmp_path: Path) -> None:
    desc = RelationDesc(tuple(Column(f"c{i}", c.type) for i, c in enumerate(COLUMNS)))
    shard = shard_for(tmp_path, desc)
    inputs: Mapping[str, ConstantInput] = {placeholder: ConstantInput(ROWS) for placeholder in BOUND.inputs}
    to = Destination(shard.blobs, shard.id, desc, AT, "job-1")
    parts = write_rows(spark, BOUND.sql(), inputs, COLUMNS, to, job=Job(spark))
    assert parts and not shard.state.parts
    shard.compare_and_append(parts, 0, AT + 1)
    with shard.snapshot(AT) as snapshot:
        held = expand(add_up([snapshot.read(physical_names(desc))]), physical_names(desc))
    answer = collect(spark, BOUND.sql(), inputs, COLUMNS)
    assert bag(held) == bag(answer)


def test_parts_are_written_as_rows_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "PART_ROWS", 100)
    desc = RelationDesc((Column("a", INT8),))
    shard = shard_for(tmp_path, desc)
    to = Destination(shard.blobs, shard.id, desc, AT, "job-1")
    batches = [pa.RecordBatch.from_arrays([pa.array([n % 60] * 60)], ["c0"]) for n in range(7)]
    tell = write._write(to, iter([*batches, batches[0].slice(0, 0)]))  # pyright: ignore[reportPrivateUsage]
    assert [b.num_rows for b in tell] == [1, 1, 1, 1]


def test_an_error_of_the_query_is_told_by_its_text(spark: SparkHost, tmp_path: Path) -> None:
    bound = Names({"t": DESC}).bind("SELECT 1 / (id - id) FROM t")
    desc = RelationDesc((Column("c0", INT8),))
    shard = shard_for(tmp_path, desc)
    to = Destination(shard.blobs, shard.id, desc, AT, "job-1")
    inputs: Mapping[str, ConstantInput] = {placeholder: ConstantInput(ROWS) for placeholder in bound.inputs}
    with pytest.raises(TidemillError, match="division by zero") as caught:
        write_rows(spark, bound.sql(), inputs, bound.columns, to, job=Job(spark))
    assert caught.value.sqlstate == "22012"


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(
        tuple(map(shown, row)) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    )
