"""SHOW LOCATION OF a relation: what its code reads in other programs is the SELECT at that time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from support.duck import duckdb_with_delta
from support.server import ServerProcess, connected
from tidemill.engine.read.delta_readers import READERS, DeltaVersion
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.shard import Shard
from tidemill.types.model import FLOAT8, TEXT, Column, RelationDesc

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

CODE = dict(READERS)
Row = tuple[Any, ...]


def ask(reader: str, code: str, spark: Any = None) -> list[Row]:
    """The rows as often as they are there."""
    if reader == "duckdb":
        with duckdb_with_delta() as c:
            found: Sequence[Row] = c.sql(code).fetchall()
    else:
        names: dict[str, Any] = {"spark": spark}
        exec(code, names)
        found = names["rows"].rows() if reader == "polars" else [tuple(r) for r in names["rows"].collect()]
    return [tuple(row[:-1]) for row in found for _ in range(row[-1])]


def at_hand(c: psycopg.Connection[Any], query: str) -> Counter[Row]:
    return Counter(c.execute(query.encode()).fetchall())


def test_the_code_reads_what_a_select_reads(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("""CREATE TABLE t ("Device, no" text, value float8, "MZ_n" int)""")
        c.execute("INSERT INTO t VALUES ('a', 1.5, 1), ('b', NULL, 2), ('b', NULL, 2), (NULL, 2.5, 3)")
        c.execute("CREATE MATERIALIZED VIEW m AS SELECT value, count(*) AS n FROM t GROUP BY value")
        before = c.execute("SELECT mz_now()::text").fetchall()[0][0]
        first = {name: at_hand(c, f"SELECT * FROM {name} AS OF {before}") for name in ("t", "m")}
        c.execute("DELETE FROM t WHERE value = 1.5")
        c.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7")
        c.execute("INSERT INTO t VALUES ('c', 3.5, 4, 8)")
        for name in ("t", "m"):
            rows = c.execute(f"SHOW LOCATION OF {name}".encode()).fetchall()
            assert [r[0] for r in rows] == ["duckdb", "polars", "spark"]
            now = at_hand(c, f"SELECT * FROM {name} AS OF {rows[0][3]}")
            c.execute("INSERT INTO t SELECT 'later', n, n FROM generate_series(1, 20) AS g (n)")
            c.execute(f"SELECT count(*) FROM {name}".encode())
            for reader, _, _, _, errors, code in rows[:2]:
                assert errors == 0
                assert Counter(ask(reader, code)) == now
            rows = c.execute(f"SHOW LOCATION OF {name} AS OF %s", [before], binary=True).fetchall()
            for reader, _, _, time, _, code in rows[:2]:
                assert str(time) == before
                # A column that came later is there, and NULL; in SQL it is not there before it came.
                assert (
                    Counter(row[: len(next(iter(first[name])))] for row in ask(reader, code)) == first[name]
                )


def test_what_is_refused(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int)")
        c.execute("CREATE VIEW v AS SELECT * FROM t")
        c.execute("CREATE ROLE looker")
        for statement, state in [
            ("SHOW LOCATION OF nothing", "42P01"),
            ("SHOW LOCATION OF v", "42809"),
            ("SHOW LOCATION OF mz_objects", "42809"),
            ("SHOW LOCATION OF t AS OF 1", "22000"),
            ("SET ROLE looker; SHOW LOCATION OF t", "42501"),
        ]:
            with pytest.raises(psycopg.Error) as e:
                c.execute(statement.encode())
            assert e.value.sqlstate == state, statement


DESC = RelationDesc((Column("device", TEXT), Column("a `b`", FLOAT8)))
UPDATES: list[tuple[str | None, float | None, int, int, str | None]] = [
    ("a", 1.0, 1, 1, None),
    ("b", 2.5, 1, 2, None),
    (None, None, 1, 1, "division by zero"),
    ("a", 1.0, 2, -1, None),
    (None, None, 2, 1, None),
]
AT_1 = [("a", 1.0), ("b", 2.5), ("b", 2.5)]
AT_2 = [("b", 2.5), ("b", 2.5), (None, None)]


@pytest.fixture
def blobs(tmp_path: Any) -> Blobs:
    return open_blobs(str(tmp_path / "it's"))


def shard_of(blobs: Blobs, desc: RelationDesc, updates: Sequence[Row]) -> Shard:
    shard = Shard.create(blobs, "u1", desc, epoch=1)
    for at in sorted({u[-3] for u in updates}):
        columns = zip(*(u for u in updates if u[-3] == at), strict=True)
        table = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, shard.schema, strict=True)], shard.schema
        )
        shard.compare_and_append([shard.write_part(table, job="j")], shard.upper, at + 1)
    return shard


def described(blobs: Blobs, shard: Shard, time: int) -> DeltaVersion:
    return DeltaVersion(blobs.table_uri("shards/u1")[0], shard.version, time, shard.desc)


@pytest.mark.parametrize("reader", ["duckdb", "polars", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_reader_at_every_time(blobs: Blobs, reader: str, request: pytest.FixtureRequest) -> None:
    spark = None
    if reader == "spark":
        host: SparkHost = request.getfixturevalue("spark")
        spark = host.session
    shard = shard_of(blobs, DESC, UPDATES)
    for time, rows in ((0, []), (1, AT_1), (2, AT_2)):
        assert Counter(ask(reader, CODE[reader](described(blobs, shard, time)), spark)) == Counter(rows)


@pytest.mark.parametrize("reader", ["duckdb", "polars", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_relation_without_rows(blobs: Blobs, reader: str, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue("spark").session if reader == "spark" else None
    shard = shard_of(blobs, DESC, [])
    assert ask(reader, CODE[reader](described(blobs, shard, 5)), spark) == []


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_a_relation_without_columns(blobs: Blobs, reader: str) -> None:
    shard = shard_of(blobs, RelationDesc(()), [(1, 2, None), (2, 1, None)])
    assert ask(reader, CODE[reader](described(blobs, shard, 1))) == [(), ()]
    assert ask(reader, CODE[reader](described(blobs, shard, 2))) == [(), (), ()]


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_compaction_changes_nothing_for_code_that_is_there(blobs: Blobs, reader: str) -> None:
    shard = shard_of(blobs, DESC, UPDATES)
    code = CODE[reader](described(blobs, shard, 1))
    shard.downgrade_since(2)
    for _ in range(2):
        shard.maintain()
    assert shard.version > 2 and len(shard.parts) == 1
    assert Counter(ask(reader, code)) == Counter(AT_1)
