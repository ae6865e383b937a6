"""ADBC, through which polars and pandas read databases: Arrow columns of the types that the tables have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any, cast

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

from support.server import ServerProcess

ROW = {
    "b": True,
    "i": -7,
    "n": 1 << 40,
    "f": 1.5,
    "t": "zwölf",
    "at": datetime(2026, 11, 18, 10, 12, 52, 123456),
    "z": datetime(2026, 11, 18, 10, 12, 52, tzinfo=UTC),
    "day": date(2026, 11, 18),
    "raw": b"\x00\xff",
    "many": [1, None, 3],
    "words": ["a", "b,c"],
}
COLUMNS = (
    "b bool, i int, n bigint, f float8, t text, at timestamp, z timestamptz, day date, raw bytea, "
    "many bigint[], words text[]"
)


@pytest.fixture
def filled(connection: psycopg.Connection[Any], table: str) -> str:
    connection.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())
    places = ", ".join(["%s"] * len(ROW))
    connection.execute(f"INSERT INTO {table} VALUES ({places})".encode(), list(ROW.values()))
    connection.execute(f"INSERT INTO {table} DEFAULT VALUES".encode())
    return table


@pytest.fixture
def uri(server: ServerProcess, database: str) -> str:
    return f"postgresql://materialize@127.0.0.1:{server.sql_port}/{database}"


@pytest.fixture
def adbc(uri: str) -> Iterator[Any]:
    with dbapi.connect(uri, autocommit=True) as connection:
        yield connection


def test_polars_reads_every_type(uri: str, filled: str) -> None:
    frame = pl.read_database_uri(f"SELECT * FROM {filled} ORDER BY i NULLS LAST", uri, engine="adbc")
    assert cast(Any, frame.schema) == {
        "b": pl.Boolean,
        "i": pl.Int32,
        "n": pl.Int64,
        "f": pl.Float64,
        "t": pl.String,
        "at": pl.Datetime("us"),
        "z": pl.Datetime("us", "UTC"),
        "day": pl.Date,
        "raw": pl.Binary,
        "many": pl.List(pl.Int64),
        "words": pl.List(pl.String),
    }
    assert frame.rows(named=True) == [ROW, dict.fromkeys(ROW)]


def test_a_numeric_is_text_as_with_postgres(uri: str) -> None:
    frame = pl.read_database_uri("SELECT 12.50::numeric(10,2) AS n, NULL::numeric AS m", uri, engine="adbc")
    assert frame.rows() == [("12.50", None)]


def test_parameters_and_the_schema_of_a_table(adbc: Any, filled: str) -> None:
    with adbc.cursor() as cursor:
        cursor.execute(f"SELECT n, t FROM {filled} WHERE n > $1", [5])
        found = cursor.fetch_arrow_table()
    assert found.schema.types == [pa.int64(), pa.string()]
    assert found.to_pylist() == [{"n": ROW["n"], "t": ROW["t"]}]
    assert adbc.adbc_get_table_schema(filled).field("many").type.value_type == pa.int64()


def test_it_writes(adbc: Any, connection: psycopg.Connection[Any], table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (n bigint, t text)".encode())
    rows = pa.table({"n": pa.array([1, None], pa.int64()), "t": ["x", "y"]})
    with adbc.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows)
        cursor.adbc_ingest(table, rows, mode="append")
    found = connection.execute(f"SELECT n, t, count(*) FROM {table} GROUP BY n, t ORDER BY t".encode())
    assert found.fetchall() == [(1, "x", 2), (None, "y", 2)]


def test_it_creates_a_table(adbc: Any, connection: psycopg.Connection[Any], table: str) -> None:
    with adbc.cursor() as cursor:
        cursor.adbc_ingest(table, pa.table({"n": pa.array([1], pa.int64()), "t": ["x"]}), mode="create")
    assert connection.execute(f"SELECT * FROM {table}".encode()).fetchall() == [(1, "x")]
