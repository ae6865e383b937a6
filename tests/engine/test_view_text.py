"""The text of a view means the same when it is run today: under other names, another search path, and with
columns that came later."""

from __future__ import annotations

import pytest
from sqlglot import exp

from tidemill.catalog.items import BUILTINS, View
from tidemill.catalog.ops import (
    AddColumnOp,
    CreateDatabaseOp,
    CreateRoleOp,
    CreateSchemaOp,
    CreateTableOp,
    CreateViewOp,
    RenameOp,
    apply_all,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.pg.facts import PgFacts
from tidemill.engine.relations.pg.world import world
from tidemill.engine.relations.resolver import Resolver
from tidemill.engine.relations.view_text import query_today
from tidemill.sql.ast import Query
from tidemill.sql.bind import SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", INT4)))
SESSION = SessionInfo(database="d", schemas=("public",))


@pytest.fixture
def state() -> CatalogState:
    made = apply_all(
        CatalogState(BUILTINS.items, next_id=1, time=0), [CreateRoleOp("r"), CreateDatabaseOp("d")], time=1
    )
    database = made.database("d").id
    made = apply_all(made, [CreateSchemaOp(database, "Other")], time=2)
    public, other = made.schema(database, "public").id, made.schema(database, "Other").id
    tables = [
        CreateTableOp(public, "t", DESC),
        CreateTableOp(public, "u", DESC),
        CreateTableOp(other, "t", DESC),
    ]
    return apply_all(made, tables, time=3)


def made_with(state: CatalogState, sql: str, *path: str) -> tuple[CatalogState, str]:
    resolver = Resolver(state, "d", path)
    bound = bind_query(tree(sql), resolver, session=SESSION)
    public = state.schema(state.database("d").id, "public").id
    desc = RelationDesc(bound.columns)
    made = apply_all(state, [CreateViewOp(public, "v", sql, desc, references=resolver.references())], time=4)
    return made, made.resolve(("v",), "d", ["public"]).id


def tree(sql: str) -> exp.Expr:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    return parsed.statement.tree


def today(state: CatalogState, view: str) -> str:
    """As SHOW CREATE has it; and it must mean the same to whoever runs it, whatever the search path."""
    item = state.get(view, View)
    text = query_today(state, item, state.full_name)
    kept = Resolver(state, "d", (), item.references)
    again = bind_query(tree(text), Resolver(state, "d", ("nowhere",)), session=SESSION)
    was = bind_query(tree(item.sql), kept, session=SESSION)
    assert [c.name for c in again.columns] == [c.name for c in was.columns]
    assert set(again.inputs.values()) == set(was.inputs.values())
    return text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("SELECT a FROM t", "SELECT a FROM d.public.sold AS t"),
        ("SELECT t.a FROM t", "SELECT t.a FROM d.public.sold AS t"),
        ("SELECT public.t.a FROM public.t", "SELECT t.a FROM d.public.sold AS t"),
        ("SELECT x.a FROM t AS x", "SELECT x.a FROM d.public.sold AS x"),
        (
            'SELECT t.a FROM t JOIN "Other".t AS o ON t.a = o.a',
            'SELECT t.a FROM d.public.sold AS t JOIN d."Other".t AS o ON t.a = o.a',
        ),
        (
            "WITH t AS (SELECT a FROM t) SELECT a FROM t",
            "WITH t AS (SELECT a FROM d.public.sold AS t) SELECT a FROM t",
        ),
        (
            "SELECT a FROM u WHERE EXISTS(SELECT 1 FROM t WHERE t.a = u.b)",
            "SELECT a FROM d.public.u WHERE EXISTS(SELECT 1 FROM d.public.sold AS t WHERE t.a = u.b)",
        ),
    ],
)
def test_names_of_today(state: CatalogState, written: str, text: str) -> None:
    state, view = made_with(state, written, "public")
    state = apply_all(state, [RenameOp(state.resolve(("t",), "d", ["public"]).id, "sold")], time=5)
    assert today(state, view) == text


def test_a_schema_is_renamed(state: CatalogState) -> None:
    state, view = made_with(state, 'SELECT "Other".t.a FROM "Other".t', "public")
    state = apply_all(state, [RenameOp(state.schema(state.database("d").id, "Other").id, "o")], time=5)
    assert today(state, view) == "SELECT o.t.a FROM d.o.t"


def test_columns_that_came_later_are_not_meant(state: CatalogState) -> None:
    state, view = made_with(state, "SELECT * FROM t JOIN (SELECT a FROM u) AS x USING (a)", "public")
    table = state.resolve(("t",), "d", ["public"]).id
    state = apply_all(state, [AddColumnOp(table, Column("c", INT4))], time=5)
    assert today(state, view) == (
        "SELECT * FROM (SELECT a, b FROM d.public.t) AS t JOIN (SELECT a FROM d.public.u) AS x USING (a)"
    )


def test_clients_see_no_more_of_a_name_than_they_need(state: CatalogState) -> None:
    state, view = made_with(state, "SELECT t.a FROM t, public.u", "Other")

    def shown(*path: str) -> str:
        facts = PgFacts(state, SessionInfo(database="d", schemas=path))
        return query_today(state, state.get(view, View), facts.name_of)

    assert shown("public") == 'SELECT t.a FROM "Other".t, u'
    assert shown("Other") == "SELECT t.a FROM t, public.u"
    (found,) = (r for r in world(state, "d").relations if r.id == view)
    assert found.definition == shown("public")


def test_a_view_that_got_more_columns_is_read_as_it_was(state: CatalogState) -> None:
    state, view = made_with(state, "SELECT a FROM t", "public")
    public = state.schema(state.database("d").id, "public").id
    resolver = Resolver(state, "d", ("public",))
    desc = RelationDesc(bind_query(tree("SELECT * FROM v"), resolver, session=SESSION).columns)
    over = CreateViewOp(public, "w", "SELECT * FROM v", desc, references=resolver.references())
    wider = CreateViewOp(
        public,
        "v",
        "SELECT a, b FROM t",
        DESC,
        references=state.get(view, View).references,
        replace=True,
    )
    state = apply_all(state, [over, wider], time=5)
    assert today(state, state.resolve(("w",), "d", ["public"]).id) == (
        "SELECT * FROM (SELECT a FROM d.public.v) AS v"
    )
    read = bind_query(tree("SELECT * FROM w"), Resolver(state, "d", ("public",)), session=SESSION)
    assert [c.name for c in read.columns] == ["a"]
