"""A view keeps its query as text: whatever the corpus asks, the text means the same."""

from __future__ import annotations

import pytest
from bind_corpus import SESSION, Oracle, expressions, lines
from test_bind_corpus import oracle
from test_corpus_coverage import Names

from tidemill.engine.ddl.kept_query import kept_text
from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.ast import Query
from tidemill.sql.bind import bind_query
from tidemill.sql.parse import parse

__all__ = ["oracle"]

OWN = [
    "SELECT LIST[1, 2], LIST[LIST['a'], LIST[]::text list]",
    "SELECT s.strpos, s.pow FROM (SELECT strpos('a', 'b'), pow(2, 3)) s",
    "SELECT s.substr FROM (SELECT substr('abc', 2)) s",
    "SELECT n FROM now() AS n",
    "SELECT (ARRAY(VALUES (3), (4)))[1]",
    "SELECT to_hex(255)",
]


def _query(sql: str) -> Query:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    return parsed.statement


def _plain(sql: str) -> str:
    """`^` is the same as power()."""
    return sql.replace("'^(", "'power(")


def test_what_is_kept_means_the_same(oracle: Oracle) -> None:
    names = Names(oracle)
    asked = [f"SELECT {text} FROM v" for text in expressions()]
    refused: list[str] = []
    differ: list[str] = []
    for sql in [*asked, *lines("queries.txt"), *OWN]:
        try:
            query = _query(sql)
            bound = bind_query(query.tree, names, session=SESSION)
        except TidemillError:
            continue  # refused, or an error as in PostgreSQL
        try:
            text = kept_text(query, bound.columns, lambda tree: bind_query(tree, names, session=SESSION))
        except Unsupported:
            refused.append(sql)
            continue
        again = bind_query(_query(text).tree, names, session=SESSION)
        if _plain(again.sql()) != _plain(bound.sql()):
            differ.append(sql)
    assert (refused, differ) == ([], [])


def test_a_text_that_means_something_else_is_refused(oracle: Oracle) -> None:
    names = Names(oracle)
    # The text has this operator as a function, which gives the inner column another name.
    query = _query('SELECT s."?column?" FROM (SELECT 2 ^ 3) s')
    bound = bind_query(query.tree, names, session=SESSION)
    with pytest.raises(Unsupported, match="cannot be kept as the text of a view") as caught:
        kept_text(query, bound.columns, lambda tree: bind_query(tree, names, session=SESSION))
    assert "AS" in str(caught.value.hint)
