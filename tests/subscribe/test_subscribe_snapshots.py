"""Snapshots of subscriptions: the ways of large ones tell what the way of small ones tells, in its order."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import QueryCanceled
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.shard import Shard
from tidemill.query import ranged
from tidemill.query.duplicate_rows import find_repeats
from tidemill.query.job import Job
from tidemill.query.multiset import SourceError
from tidemill.query.read import Limits
from tidemill.query.spark import SparkHost
from tidemill.subscribe.gather import Gathering
from tidemill.subscribe.snapshot import SnapshotLimits, SnapshotRows
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types import model
from tidemill.types.arrow import shard_schema
from tidemill.types.model import Column, RelationDesc
from tidemill.types.names import physical_names

COLUMNS = (
    Column("id", model.INT8),
    Column("odd name", model.TEXT),
    Column("c", model.char(4)),
    Column("f", model.FLOAT8),
    Column("i", model.INTERVAL),
    Column("y", model.BYTEA),
    Column("n", model.numeric(10, 2)),
    Column("l", model.list_(model.INT4)),
    Column("ok", model.BOOL),
)
DESC = RelationDesc(COLUMNS)
NAMES = physical_names(DESC)
Row = tuple[Any, ...]
Updates = list[tuple[Row, int, int, str | None]]


def some_row(rng: random.Random) -> Row:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    return (
        maybe(rng.randrange(40)),
        maybe(rng.choice(["", "a", "aa", "b", "ä", "a" * 60, "a" * 60 + "b", "😀"])),
        maybe(rng.choice(["a   ", "a\t  ", "a!  ", "aa  "])),
        maybe(rng.choice([0.0, -0.0, -1.5, float("nan"), float("inf"), 2.5])),
        maybe({"months": rng.randrange(-1, 2), "days": rng.choice([0, 30]), "micros": rng.choice([-1, 0])}),
        maybe(rng.choice([b"", b"\0", b"\x7f", b"\x80", b"\xff"])),
        maybe(Decimal(rng.randrange(-300, 300)) / 100),
        maybe(rng.choice([[], [1], [1, None], [2]])),
        maybe(rng.random() < 0.5),
    )


def table(updates: Updates) -> pa.Table:
    schema = shard_schema(DESC)
    columns = [[row[i] for row, *_ in updates] for i in range(len(COLUMNS))]
    for at in (1, 2, 3):
        columns.append([update[at] for update in updates])
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def shard_of(folder: Path, *parts: Updates) -> Shard:
    blobs = open_blobs(str(folder))
    shard = Shard.create(blobs, f"u{uuid.uuid4().hex}", DESC, epoch=1, cache=PartCache(max_bytes=0))
    for part in parts:
        upper = max(time for _, time, _, _ in part) + 1
        shard.compare_and_append([shard.write_part(table(part), job="test")], shard.upper, upper)
    return shard


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """Rows that are there once, copies within a part and across parts, retractions, and what comes later."""
    rng = random.Random(7)
    rows = [some_row(rng) for _ in range(700)]
    first: Updates = [(row, 10, 1, None) for row in rows]
    second: Updates = [(row, 20, rng.choice([1, 1, 2, -1]), None) for row in rng.sample(rows, 200)]
    third: Updates = [(some_row(rng), rng.choice([30, 50]), 1, None) for _ in range(200)]
    return shard_of(tmp_path_factory.mktemp("shard"), first, second, sorted(third, key=lambda u: u[1]))


@pytest.fixture(autouse=True)
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "RANGE_ROWS", 60)


def shown(value: Any) -> str:
    """NaN is NaN, and zero has no sign: which of two equal spellings is told is not promised."""
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def told(spark: SparkHost, shard: Shard, spec: Spec, limits: SnapshotLimits) -> Iterator[Row]:
    rows = SnapshotRows(spark, shard.snapshot(40, readable=41), NAMES, spec, Job(spark), limits)
    batches = 0
    while (batch := rows.next()) is not None:
        batches += 1
        yield from (tuple(map(shown, row.values())) for row in batch.to_pylist())
    rows.close()
    assert limits.small_rows or batches > 1


SMALL = SnapshotLimits()
LARGE = SnapshotLimits(small_rows=0)
# From the parts, and not what the server has summed of a few rows.
PARTS = SnapshotLimits(small_rows=0, read=Limits(small_rows=0))
# Too many retractions for the server: Spark sums all.
SUMMED = SnapshotLimits(small_rows=0, read=Limits(small_rows=0, driver_rows=0, retractions=0))
# Everything may be repeated: all is dealt out.
DEALT = SnapshotLimits(small_rows=0, kept_rows=0)

SPECS = [
    Spec(COLUMNS, OutputShape.UPSERT, keys=(0,)),
    Spec(COLUMNS, OutputShape.DEBEZIUM, keys=(1, 0)),
    Spec(COLUMNS, OutputShape.UPSERT, keys=(3, 2, 5)),
    Spec(COLUMNS, OutputShape.UPSERT, keys=(4, 6), progress=True),
    Spec(COLUMNS, OutputShape.DEBEZIUM, keys=tuple(reversed(range(7)))),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(3, True, True), SortItem(0))),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(4, False, True), SortItem(1, True))),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(None, True), SortItem(6, True, False))),
    Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(2), SortItem(8, True, True), SortItem(None))),
]


@pytest.mark.spark
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_in_order(spark: SparkHost, shard: Shard, spec: Spec) -> None:
    expected = list(told(spark, shard, spec, SMALL))
    assert len(expected) > 30
    assert list(told(spark, shard, spec, LARGE)) == expected


@pytest.mark.spark
@pytest.mark.parametrize(
    "limits", [LARGE, PARTS, SUMMED, DEALT], ids=["as they come", "from parts", "by Spark", "dealt out"]
)
def test_without_an_order(spark: SparkHost, shard: Shard, limits: SnapshotLimits) -> None:
    spec = Spec(COLUMNS)
    expected = Counter(told(spark, shard, spec, SMALL))
    assert max(int(row[1]) for row in expected) > 1
    assert Counter(told(spark, shard, spec, limits)) == expected


@pytest.mark.spark
def test_by_what_has_no_order(spark: SparkHost, shard: Shard) -> None:
    spec = Spec(COLUMNS, OutputShape.UPSERT, keys=(7,))
    assert Counter(told(spark, shard, spec, LARGE)) == Counter(told(spark, shard, spec, SMALL))


@pytest.mark.spark
@pytest.mark.parametrize("output", [OutputShape.PLAIN, OutputShape.UPSERT])
def test_an_error_of_the_relation(spark: SparkHost, tmp_path: Path, output: OutputShape) -> None:
    rng = random.Random(8)
    rows: Updates = [(some_row(rng), 10, 1, None) for _ in range(50)]
    shard = shard_of(tmp_path, [*rows, ((None,) * len(COLUMNS), 10, 1, "it broke")])
    spec = Spec(COLUMNS, output, keys=(0,) if output is OutputShape.UPSERT else ())
    for limits in (SMALL, LARGE):
        with pytest.raises(SourceError, match="it broke"):
            list(told(spark, shard, spec, limits))


@pytest.mark.spark
@pytest.mark.parametrize("spec", [SPECS[0], Spec(COLUMNS)], ids=["dealt out", "from parts"])
def test_a_cancelled_one_stops(spark: SparkHost, shard: Shard, spec: Spec) -> None:
    rows = SnapshotRows(spark, shard.snapshot(40, readable=41), NAMES, spec, Job(spark), PARTS)
    assert rows.next() is not None
    rows.cancel()
    with pytest.raises(QueryCanceled):
        while rows.next() is not None:
            pass
    rows.close()
    rows.close()


# -- how much at a time


def test_ranges_are_planned_by_what_rows_take_in_memory(tmp_path: Path) -> None:
    """Long rows that resemble each other: some kilobytes of Parquet, megabytes in memory."""
    long: Row = (1, "x" * 20_000, *[None] * (len(COLUMNS) - 2))
    shard = shard_of(tmp_path, [(long, 10, 1, None)] * 400)
    with shard.snapshot(10) as snapshot, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranged, "RANGE_ROWS", 128 * 1024)
        patch.setattr(ranged, "RANGE_BYTES", 1 << 20)
        assert snapshot.bytes < 1 << 18
        assert ranged.ranges_of(snapshot) == 7
        # And so is what is read whole.
        assert not SnapshotLimits(small_memory=4 << 20).small(snapshot)
        assert SnapshotLimits(small_memory=16 << 20).small(snapshot)


# -- what may be there more than once


def test_repeats_are_never_missed(shard: Shard) -> None:
    with shard.snapshot(40, readable=41) as snapshot:
        whole = snapshot.read(NAMES)
        repeats = find_repeats(snapshot, NAMES, threads=2, limit=10_000, check=lambda: None)
        assert repeats is not None
        (batch,) = whole.combine_chunks().to_batches()
        mask = repeats.mask(batch)
        assert mask is not None and 0 < mask.sum() < len(mask)
        for row, flagged in zip(whole.to_pylist(), mask.tolist(), strict=True):
            assert row["mz_diff"] == 1 or flagged, row
        assert find_repeats(snapshot, NAMES, threads=2, limit=10, check=lambda: None) is None


def test_a_collection_without_copies_has_none(tmp_path: Path) -> None:
    rng = random.Random(9)
    # Two columns hardly tell them apart, the whole rows do.
    rows = [(n % 3, "a", *some_row(rng)[2:6], Decimal(n), *some_row(rng)[7:]) for n in range(500)]
    shard = shard_of(tmp_path, [(row, 10, 1, None) for row in rows])
    with shard.snapshot(10) as snapshot:
        few = find_repeats(snapshot, ["id", "odd%20name", "ok"], threads=2, limit=1000, check=lambda: None)
        assert few is not None and few.keys.size
        all_ = find_repeats(snapshot, NAMES, threads=2, limit=0, check=lambda: None)
        assert all_ is not None and not all_.keys.size


# -- what is gathered


def gathered(spec: Spec, rows: list[tuple[int, int, int]], reduce_bytes: int) -> list[Row]:
    gathering = Gathering(spec, 5, reduce_bytes)
    for at in range(0, len(rows), 10):
        some = rows[at : at + 10]
        columns = [pa.array([row[i] for row in some], pa.int64()) for i in range(3)]
        gathering.add(pa.RecordBatch.from_arrays(columns, ["k", "v", "mz_diff"]))
    batch = gathering.take()
    assert gathering.take() is None
    return [] if batch is None else [tuple(row.values()) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "spec",
    [
        Spec((Column("k", model.INT8), Column("v", model.INT8)), output, keys=keys, order=order)
        for output, keys, order in [
            (OutputShape.UPSERT, (0,), ()),
            (OutputShape.DEBEZIUM, (1,), ()),
            (OutputShape.WITHIN_TIMESTAMP, (), (SortItem(None), SortItem(1, True, True))),
        ]
    ],
    ids=lambda spec: spec.output.value,
)
def test_reducing_changes_nothing(spec: Spec) -> None:
    rng = random.Random(3)
    rows = [(rng.randrange(20), rng.choice([1, 1, 1, n]), 1) for n in range(300)]
    whole = gathered(spec, rows, 1 << 30)
    assert len(whole) > 3
    assert gathered(spec, rows, 1) == whole
    assert gathered(spec, [], 1) == []
