"""The examples of docs/delta.md find the rows that the updates of a shard add up to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from support.duck import duckdb_with_delta
from tidemill.persist.blob import Blobs
from tidemill.persist.shard import Shard
from tidemill.types.model import FLOAT8, TEXT, Column, RelationDesc

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "delta.md").read_text()
POLARS, SPARK = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(DUCKDB,) = re.findall(r"^```sql duckdb\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DESC = RelationDesc((Column("device", TEXT), Column("value", FLOAT8)))
# At 1 four rows, two of them equal, and an error; at 2 one changes, one goes, and the error does.
UPDATES: list[tuple[str | None, float | None, int, int, str | None]] = [
    ("a", 1.0, 1, 1, None),
    ("b", 2.5, 1, 2, None),
    ("c", 3.5, 1, 1, None),
    (None, None, 1, 1, "division by zero"),
    ("a", 1.0, 2, -1, None),
    ("a", 1.5, 2, 1, None),
    ("c", 3.5, 2, -1, None),
    (None, None, 2, -1, "division by zero"),
]
NOW = [("a", 1.5, 1), ("b", 2.5, 2)]
AT_1 = [("a", 1.0, 1), ("b", 2.5, 2), ("c", 3.5, 1)]


@pytest.fixture
def path(folder: Blobs) -> str:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    for at in (1, 2):
        columns = zip(*(u for u in UPDATES if u[2] == at), strict=True)
        table = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, shard.schema, strict=True)], shard.schema
        )
        shard.compare_and_append([shard.write_part(table, job="j")], shard.upper, at + 1)
    uri, _ = folder.table_uri("shards/u1")
    return uri


def run(code: str, **names: Any) -> Any:
    exec(code, names)
    return names["rows"]


def in_order(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows)


def test_polars(path: str) -> None:
    assert in_order(run(POLARS, path=path).rows()) == NOW


@pytest.mark.parametrize(("time", "rows"), [(1, AT_1), (2, NOW)])
def test_polars_at_a_time(path: str, time: int, rows: list[Any]) -> None:
    (at_a_time,) = re.findall(r"^At a time: `updates(.*?)` first", PAGE, re.MULTILINE)
    code = POLARS.replace("scan_delta(path)", f"scan_delta(path){at_a_time}")
    assert in_order(run(code, path=path, time=time).rows()) == rows


def test_duckdb(path: str) -> None:
    query = re.sub(r"delta_scan\('.*?'\)", f"delta_scan('{path}')", DUCKDB)
    with duckdb_with_delta() as c:
        assert in_order(c.sql(query).fetchall()) == NOW


@pytest.mark.spark
def test_spark(path: str, spark: SparkHost) -> None:
    assert in_order(run(SPARK, path=path, spark=spark.session).collect()) == NOW
