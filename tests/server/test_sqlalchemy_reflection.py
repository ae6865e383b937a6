"""SQLAlchemy looks into the catalogs of a real server: reflection by the inspector, of whole databases and of
single tables, with psycopg in its usual setting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoSuchTableError

from support.server import ServerProcess, connected

SETUP = """
CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', price numeric(10,2), tags text[],
    at timestamptz, code varchar(3), doc jsonb, raw bytea, ok bool, big bigint, day date);
CREATE VIEW dear AS SELECT id, name FROM items WHERE price > 1;
CREATE SCHEMA other;
CREATE TABLE other.t (a int, b varchar(10), UNIQUE (a));
COMMENT ON TABLE items IS 'Things';
COMMENT ON COLUMN items.name IS 'What it is called';
"""


@pytest.fixture
def engine(server: ServerProcess, database: str) -> Iterator[sa.Engine]:
    with connected(server, database) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode())
    made = sa.create_engine(f"postgresql+psycopg://materialize@127.0.0.1:{server.sql_port}/{database}")
    yield made
    made.dispose()


def test_the_inspector(engine: sa.Engine) -> None:
    found = sa.inspect(engine)
    assert {"public", "other", "mz_catalog"} <= set(found.get_schema_names())
    assert found.default_schema_name == "public"
    assert found.get_table_names() == ["items"]
    assert found.get_table_names("other") == ["t"]
    assert found.get_view_names() == ["dear"]
    assert found.get_materialized_view_names() == []
    assert found.get_sequence_names() == found.get_temp_table_names() == found.get_temp_view_names() == []
    assert found.get_view_definition("dear") == "SELECT id, name FROM items WHERE price > 1;"
    assert found.has_table("items") and found.has_table("t", schema="other") and not found.has_table("t")
    assert found.get_pk_constraint("items")["constrained_columns"] == ["id"]
    assert found.get_pk_constraint("items")["name"] == "items_pkey"
    assert found.get_foreign_keys("items") == found.get_check_constraints("items") == []
    assert found.get_indexes("items") == []
    unique = found.get_unique_constraints("t", schema="other")
    assert [(u["name"], u["column_names"]) for u in unique] == [("t_a_key", ["a"])]
    assert found.get_table_comment("items") == {"text": "Things"}
    with pytest.raises(NoSuchTableError):
        found.get_columns("nothing")


def test_columns_and_their_types(engine: sa.Engine) -> None:
    columns = {c["name"]: c for c in sa.inspect(engine).get_columns("items")}
    shown = {name: str(c["type"].compile(engine.dialect)) for name, c in columns.items()}
    assert shown == {
        "id": "INTEGER",
        "name": "TEXT",
        "price": "NUMERIC(10, 2)",
        "tags": "TEXT[]",
        "at": "TIMESTAMP WITH TIME ZONE",
        "code": "VARCHAR(3)",
        "doc": "JSONB",
        "raw": "BYTEA",
        "ok": "BOOLEAN",
        "big": "BIGINT",
        "day": "DATE",
    }
    assert [n for n, c in columns.items() if not c["nullable"]] == ["id", "name"]
    assert columns["name"]["default"] == "'x'"
    assert columns["name"].get("comment") == "What it is called"


def test_metadata(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    metadata.reflect(engine, views=True)
    assert set(metadata.tables) == {"items", "dear"}
    assert metadata.tables["items"].primary_key.columns.keys() == ["id"]
    table = sa.Table("t", sa.MetaData(), autoload_with=engine, schema="other")
    assert table.columns.keys() == ["a", "b"]


def test_reflection_in_the_midst_of_writing(engine: sa.Engine) -> None:
    """What looks at the catalogs makes no transaction one that only reads; a savepoint takes writes back."""
    table = sa.Table("t", sa.MetaData(), autoload_with=engine, schema="other")
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
        assert sa.inspect(connection).has_table("t", schema="other")
        nested = connection.begin_nested()
        connection.execute(table.insert(), {"a": 3, "b": "z"})
        nested.rollback()
        with connection.begin_nested():
            connection.execute(table.insert(), {"a": 4, "b": "w"})
    with engine.connect() as connection:
        assert connection.execute(sa.select(table.c.a).order_by(table.c.a)).scalars().all() == [1, 2, 4]
