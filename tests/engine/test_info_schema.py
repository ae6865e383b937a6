"""information_schema beside PostgreSQL's: the same columns, and the same answers about a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from test_pg_catalog import ask

from support.embedded import postgres_server
from tidemill.catalog.items import BUILTINS, Key
from tidemill.catalog.ops import CreateDatabaseOp, CreateRoleOp, CreateTableOp, apply_all
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.system import SYSTEM_RELATIONS
from tidemill.types.model import INT4, TEXT, Column, RelationDesc, array, numeric, varchar

Connection = psycopg.Connection[tuple[Any, ...]]

# The standard's domains are texts here.
COLUMNS = """SELECT c.relname, a.attname,
    CASE coalesce(nullif(t.typbasetype, 0), t.oid)::regtype::text WHEN 'character varying' THEN 'text'
    ELSE coalesce(nullif(t.typbasetype, 0), t.oid)::regtype::text END
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
  WHERE c.relnamespace = 'information_schema'::regnamespace AND a.attnum > 0 ORDER BY c.relname, a.attnum"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with postgres_server() as uri, psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            """CREATE TABLE t (id int PRIMARY KEY, "Name" text[] NOT NULL, n numeric(10,2)[],
            v varchar(3)[], UNIQUE (v))"""
        )
        yield connection


@pytest.fixture(scope="module")
def state() -> CatalogState:
    empty = CatalogState(BUILTINS.items, next_id=1, time=0)
    made = apply_all(empty, [CreateRoleOp("materialize"), CreateDatabaseOp("d")], time=1)
    columns = (
        Column("id", INT4, nullable=False),
        Column("Name", array(TEXT), nullable=False),
        Column("n", array(numeric(10, 2))),
        Column("v", array(varchar(3))),
    )
    keys = (Key(("id",), primary=True), Key(("v",)))
    public = made.schema(made.database("d").id, "public").id
    return apply_all(made, [CreateTableOp(public, "t", RelationDesc(columns), (None,) * 4, keys)], time=2)


def test_the_columns_are_postgresqls(postgres: Connection) -> None:
    theirs: dict[str, list[tuple[str, str]]] = {}
    for relation, column, kind in postgres.execute(COLUMNS):
        theirs.setdefault(relation, []).append((column, kind))
    ours = {
        name: r.desc.columns
        for (schema, name), r in SYSTEM_RELATIONS.items()
        if schema == "information_schema"
    }
    for name, columns in ours.items():
        assert [(c.name, str(c.type)) for c in columns] == theirs[name], name


@pytest.mark.parametrize(
    ("relation", "of", "columns"),
    [
        ("element_types", "object_schema", "*"),
        ("check_constraints", "constraint_schema", "constraint_name, check_clause"),
        ("constraint_table_usage", "table_schema", "*"),
        ("table_constraints", "table_schema", "table_name, constraint_name, constraint_type, is_deferrable"),
        ("domains", "domain_schema", "*"),
        ("triggers", "trigger_schema", "*"),
        ("sequences", "sequence_schema", "*"),
        ("information_schema_catalog_name", "'public'", "*"),
    ],
)
def test_the_answers_are_postgresqls(
    postgres: Connection, state: CatalogState, relation: str, of: str, columns: str
) -> None:
    sql = f"SELECT {columns} FROM information_schema.{relation} WHERE {of} = 'public' ORDER BY 1, 2"
    sql = sql.replace("ORDER BY 1, 2", "") if relation.startswith("information") else sql
    theirs = [tuple("d" if v == "postgres" else v for v in row) for row in postgres.execute(sql.encode())]
    assert sorted(map(repr, ask(state, sql))) == sorted(map(repr, theirs))
