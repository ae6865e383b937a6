"""Spark gives the same row hash as numpy for every type, over the files that both read; and reads the storage
forms."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden import GOLDEN
from hypothesis import Phase, given, settings
from hypothesis import seed as seeded
from pyspark.sql.functions import expr
from strategies import TYPES, columns
from test_types_wire import column_of

from tidemill.query.spark import SparkHost
from tidemill.types.arrow import storage_schema
from tidemill.types.identity import row_hash
from tidemill.types.model import Column, RelationDesc, SqlType
from tidemill.types.names import physical_names
from tidemill.types.spark import spark_schema, spark_type
from tidemill.types.spark_hash import row_hash_sql
from tidemill.types.wire import decode_text

pytestmark = pytest.mark.spark

ROWS = 40


def made_up(t: SqlType, seed: int) -> pa.Array:
    """A column of ROWS values, the same in every run."""
    found: list[object] = []

    @seeded(seed)
    @settings(max_examples=12, database=None, phases=[Phase.generate], deadline=None)
    @given(columns(t, max_size=8))
    def collect(rows: list[object]) -> None:
        found.extend(rows)

    collect()
    random.Random(seed).shuffle(found)
    return column_of((found + [None] * ROWS)[:ROWS], t)


def test_spark_hashes_every_type_alike(spark: SparkHost, tmp_path: Path) -> None:
    goldens: dict[SqlType, list[str | None]] = {}
    for t, text, _ in GOLDEN:
        goldens.setdefault(t, []).append(text)
    named = [(t, made_up(t, i)) for i, t in enumerate(TYPES)]
    for t, texts in goldens.items():
        named.append((t, decode_text(pa.array((texts + [None] * ROWS)[:ROWS], pa.string()), t)))
    desc = RelationDesc(tuple(Column(f"c {i}", t) for i, (t, _) in enumerate(named)))
    table = pa.table([column for _, column in named], schema=storage_schema(desc))
    pq.write_table(table, tmp_path / "part.parquet")
    names = physical_names(desc)
    frame = spark.session.read.schema(spark_schema(desc, names)).parquet(str(tmp_path / "part.parquet"))
    single = [RelationDesc((column,)) for column in desc.columns]
    hashes = [
        expr(row_hash_sql(d, [n])).alias(f"h{i}") for i, (d, n) in enumerate(zip(single, names, strict=True))
    ]
    rows = frame.select(*hashes, expr(row_hash_sql(desc)).alias("whole")).collect()
    assert len(rows) == ROWS
    for i, (t, column) in enumerate(named):
        ours = row_hash(pa.table([column], names=["c"]), single[i], ["c"]).tolist()
        assert [row[i] for row in rows] == ours, f"hash of {t}"
    assert [row["whole"] for row in rows] == row_hash(table, desc).tolist()


def test_the_text_forms_are_sparks(spark: SparkHost) -> None:
    """Every DDL spelling parses, to the type that the StructType says."""
    desc = RelationDesc(tuple(Column(f"c {i}", t) for i, t in enumerate(TYPES)))
    names = physical_names(desc)
    ddl = ", ".join(f"`{n}` {spark_type(t)}" for t, n in zip(TYPES, names, strict=True))
    schema = spark.session.createDataFrame([], ddl).schema
    assert schema == spark_schema(desc, names)
    nulls = ", ".join(f"CAST(NULL AS {spark_type(t)}) AS `{n}`" for t, n in zip(TYPES, names, strict=True))
    row = spark.session.sql(f"SELECT {row_hash_sql(desc, names)} AS h FROM (SELECT {nulls})").collect()[0]
    ours = row_hash(pa.table([pa.nulls(1, f.type) for f in storage_schema(desc)], names=names), desc)
    assert row["h"] == ours[0]
