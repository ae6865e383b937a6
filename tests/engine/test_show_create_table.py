"""SHOW CREATE TABLE gives a statement that makes the same table."""

from __future__ import annotations

from tidemill.catalog.items import Key, Table
from tidemill.engine.read.show_create import create_table_sql
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import expression_sql
from tidemill.types.model import BOOL, INT4, TEXT, Column, RelationDesc, array, numeric


def test_it_makes_the_same_table() -> None:
    # A default as the catalog keeps it may hold words that start a constraint: the last is (1 IS NOT NULL).
    defaults = (None, "-1", "'not null'", "CURRENT_TIMESTAMP", "1 IS NOT NULL")
    columns = (
        Column("id", INT4, False),
        Column("N x", numeric(10, 2)),
        Column("select", array(TEXT)),
        Column("d", TEXT, False),
        Column("b", BOOL),
    )
    keys = (Key(("id",), True), Key(("N x", "d")))
    text = create_table_sql(
        ast.Name(("d", "s", "T")),
        Table("u1", "T", "u2", RelationDesc(columns), "u1-1", defaults, keys, 60_000),
    )
    assert text == (
        'CREATE TABLE d.s."T" (id integer NOT NULL, "N x" numeric(10,2) DEFAULT -1, '
        "\"select\" text[] DEFAULT 'not null', d text NOT NULL DEFAULT CURRENT_TIMESTAMP, "
        "b boolean DEFAULT (1 IS NOT NULL), "
        "PRIMARY KEY (id), UNIQUE (\"N x\", d)) WITH (RETAIN HISTORY FOR '60000ms')"
    )
    (parsed,) = parse(text)
    statement = parsed.statement
    assert isinstance(statement, ast.CreateTable)
    found = [None if c.default is None else expression_sql(c.default.tree) for c in statement.columns]
    assert tuple(found) == defaults
