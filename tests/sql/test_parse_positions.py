"""Where things stand in the text: statements, names, nodes of query trees, errors."""

from __future__ import annotations

import pytest
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.parse import parse


def test_statements_are_slices_of_the_text() -> None:
    text = "  select 1 ; -- a comment\n\n insert into t values ('é;')  ;/* end */ "
    parsed = parse(text)
    assert [p.text for p in parsed] == ["select 1", "insert into t values ('é;')"]
    assert all(text[p.offset :].startswith(p.text) for p in parsed)


def test_names_know_their_place() -> None:
    text = 'select 1; create table s."T" (a int, "b c" numeric(5, 2) default now())'
    table = parse(text)[1].statement
    assert isinstance(table, ast.CreateTable)
    assert text[table.name.offset :].startswith('s."T"')
    assert [text[c.name.offset :][:1] for c in table.columns] == ["a", '"']
    assert text[table.columns[1].type_offset :].startswith("numeric")
    assert table.columns[1].default is not None
    assert text[table.columns[1].default.offset :].startswith("now()")


def test_nodes_know_their_place() -> None:
    text = "commit; select Foo(a), 'é', \"B\".c, NOW() from t where d = e as of 5"
    query = parse(text)[1].statement
    assert isinstance(query, ast.Query)
    assert query.as_of is not None
    assert text[query.as_of.time.offset :] == "5"
    places = {
        text[n.meta["start"] : n.meta["end"] + 1]
        for n in query.tree.find_all(exp.Identifier, exp.Literal, exp.Func)
        if "start" in n.meta
    }
    assert places == {"Foo", "a", "'é'", '"B"', "c", "NOW", "t", "d", "e"}
    assert {n.meta.get("function") for n in query.tree.find_all(exp.Func)} >= {"foo", "now"}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("selec 1", 1),
        ("select 1; selec 2", 11),
        ("select 'é' 1", 12),
        ("select 1; select a from", 24),
        ("select a from t where x = = 1; select 1", 27),
        ("insert into t values (1, 2 3)", 28),
        ("create table t (a int, select int)", 24),
    ],
)
def test_errors_point_at_the_token(text: str, position: int) -> None:
    with pytest.raises(TidemillError) as caught:
        parse(text)
    assert caught.value.position == position
