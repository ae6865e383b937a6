"""Anybody's Delta reader can open a shard: deltalake, polars and Spark, with hidden columns, escaped names
and every type."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from support.shards import DESC, append
from tidemill.persist.blob import Blobs
from tidemill.persist.shard import Shard
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT8,
    INT8,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UINT8,
    UUID,
    Column,
    RelationDesc,
    array,
    map_,
    numeric,
    record,
)

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

UTC = datetime.UTC
WIDE = RelationDesc(
    (
        Column("id", INT8, nullable=False),
        Column("ID", TEXT),  # differs by case only
        Column("a b,c;{}()=%", TEXT),  # what Delta refuses
        Column("größe`", FLOAT8),
        Column("mz_diff", BOOL),  # the shard's own name
        Column("num", NUMERIC),
        Column("price", numeric(12, 2)),
        Column("big", UINT8),
        Column("day", DATE),
        Column("local", TIMESTAMP),
        Column("instant", TIMESTAMPTZ),
        Column("span", INTERVAL),
        Column("uid", UUID),
        Column("doc", JSONB),
        Column("raw", BYTEA),
        Column("tags", array(TEXT)),
        Column("attrs", map_(INT8)),
        Column("rec", record(Column("x", INT8), Column("y z", TEXT))),
    )
)
VALUES: list[Any] = [
    7,
    "seven",
    "odd",
    2.5,
    True,
    Decimal("1.5"),
    Decimal("9.99"),
    Decimal(2**64 - 1),
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 12, 30),
    datetime.datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    {"months": 1, "days": 2, "micros": 3},
    bytes(range(16)),
    '{"a":1}',
    b"\x00\xff",
    ["a", None],
    [("k", 1)],
    {"x": 1},
]


@pytest.fixture
def wide(blobs: Blobs) -> Shard:
    shard = Shard.create(blobs, "u1", WIDE, epoch=1)
    names = shard.schema.names
    VALUES[-1] = {shard.schema.field("rec").type.field(i).name: v for i, v in enumerate((1, "why"))}
    columns = [
        pa.array([value, None], field.type) for value, field in zip(VALUES, shard.schema, strict=False)
    ]
    columns += [
        pa.array([3, 4], pa.int64()),
        pa.array([1, 1], pa.int64()),
        pa.array([None, "broken"], pa.string()),
    ]
    table = pa.table(columns, names=names)
    shard.compare_and_append([shard.write_part(table, job="j")], 0, 5)
    return shard


def open_delta(shard: Shard) -> DeltaTable:
    uri, options = shard.blobs.table_uri("shards/u1")
    return DeltaTable(uri, storage_options=options or None)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_deltalake_and_polars(wide: Shard, checkpointed: bool) -> None:
    if checkpointed:
        wide.checkpoint()
    delta = open_delta(wide)
    read = pa.table(delta.to_pyarrow_table()).sort_by("mz_timestamp")
    assert read.schema.names == wide.schema.names
    with wide.snapshot(4) as snapshot:
        ours = snapshot.read_part(snapshot.parts[0])
    for name in wide.schema.names:
        assert read.column(name).to_pylist() == ours.column(name).to_pylist(), name
    uri, options = wide.blobs.table_uri("shards/u1")
    frame = pl.read_delta(uri, storage_options=options or None).sort("mz_timestamp")
    assert frame.columns == wide.schema.names
    for name in (
        "id",
        wide.schema.names[1],
        wide.schema.names[2],
        "price",
        "instant",
        "local",
        "mz_timestamp",
    ):
        assert frame[name].to_list() == ours.column(name).to_pylist(), name
    assert frame["mz_error"].to_list() == [None, "broken"]
    assert Shard.open(wide.blobs, "u1", epoch=1).desc == WIDE


def test_delta_sees_every_version_we_write(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    for t in range(20):
        append(shard, [((t, "x"), t, 1)], t + 1)
    shard.compact()
    shard.downgrade_since(5, record=True)
    shard.fence(2, upper=30)
    delta = open_delta(shard)
    assert delta.version() == shard.version
    assert delta.transaction_version("tidemill.upper") == 30
    assert delta.transaction_version("tidemill.since") == 5
    assert delta.transaction_version("tidemill.epoch") == 2
    assert delta.history(1)[0]["operation"] == "FENCE"
    assert sorted(delta.to_pyarrow_table().column("k").to_pylist()) == list(range(20))
    # Delta's own pruning works on our statistics.
    assert len(delta.to_pyarrow_table(filters=[("mz_timestamp", ">=", 18)])) == 2


@pytest.mark.spark
def test_spark(tmp_path: Path, folder: Blobs, spark: SparkHost) -> None:
    """Spark reads an explicit list of files; without delta-spark (none for this version) that is how
    anybody does."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [((1, "a"), 0, 1), ((2, "b"), 0, 1)], 1)
    append(shard, [((1, "a"), 1, -1), ((3, "c"), 1, 1)], 2)
    wider = RelationDesc((*DESC.columns, Column("a b", TIMESTAMP)))
    shard.evolve(wider)
    with shard.snapshot(1) as snapshot:
        files = [snapshot.locate(part) for part in snapshot.parts]
        frame = spark.session.read.schema(
            "k long, v string, `a%20b` timestamp_ntz, mz_timestamp long, mz_diff long, mz_error string"
        )
        rows = (
            frame.parquet(*files)
            .where("mz_timestamp <= 1")
            .groupBy("k", "v", "`a%20b`")
            .sum("mz_diff")
            .collect()
        )
    found = {(row[0], row[1], row[2]): row[3] for row in rows if row[3]}
    assert found == {(2, "b", None): 1, (3, "c", None): 1}


@pytest.mark.spark
def test_spark_reads_every_type(folder: Blobs, spark: SparkHost) -> None:
    shard = Shard.create(folder, "u1", WIDE, epoch=1)
    VALUES[-1] = {shard.schema.field("rec").type.field(i).name: v for i, v in enumerate((1, "why"))}
    columns = [pa.array([value], field.type) for value, field in zip(VALUES, shard.schema, strict=False)]
    columns += [pa.array([3], pa.int64()), pa.array([1], pa.int64()), pa.nulls(1, pa.string())]
    shard.compare_and_append([shard.write_part(pa.table(columns, names=shard.schema.names), job="j")], 0, 5)
    with shard.snapshot(4) as snapshot:
        frame = spark.session.read.parquet(*(snapshot.locate(part) for part in snapshot.parts))
        assert frame.columns == shard.schema.names
        row = frame.select("id", "price", "num", "big", "doc", "uid").collect()[0]
    assert list(row) == [
        7,
        Decimal("9.99"),
        Decimal("1.500000000000000000"),
        Decimal(2**64 - 1),
        '{"a":1}',
        bytes(range(16)),
    ]
