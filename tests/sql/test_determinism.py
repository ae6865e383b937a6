"""Queries that are kept or followed: whatever the corpus asks can be a materialized view and a subscription,
but for what asks for the clock, for chance or for the session, and that is refused by its name.

As far as the statements go without Spark: bound, checked, taken apart for following. `test_kept_text` reads
the text again that a view keeps."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from bind_corpus import SESSION, Oracle, expressions, lines
from test_bind_corpus import oracle
from test_corpus_coverage import Names

from tidemill.engine.ddl.materialized_views import bind_kept
from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.ast import Query
from tidemill.sql.bind import BoundQuery, bind_query, linearity
from tidemill.sql.functions.tree import sql_text
from tidemill.sql.parse import parse

__all__ = ["oracle"]

# What PostgreSQL has as stable and volatile functions, as far as they depend on more than the time zone.
CLOCK = {
    *("now()", "current_timestamp", "current_date", "localtime", "localtimestamp", "age(timestamp)"),
    *("statement_timestamp()", "transaction_timestamp()"),
}
CHANCE = {"random()", "gen_random_uuid()", "uuidv4()"}
SESSION_FACTS = {
    *("current_user", "current_role", "user", "session_user", "current_schema", "current_catalog"),
    *("current_schema()", "current_database()", "version()", "pg_backend_pid()", "current_setting()"),
}


class Asked(Names):
    """The corpus's tables, and what is asked of them."""

    def bind(self, sql: str) -> BoundQuery:
        return bind_query(query(sql).tree, self, session=SESSION)


def query(sql: str) -> Query:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    return parsed.statement


@pytest.fixture(scope="module")
def asked(oracle: Oracle) -> dict[str, BoundQuery]:
    """All of the corpus that can be a SELECT."""
    names = Asked(oracle)
    found: dict[str, BoundQuery] = {}
    for sql in [*(f"SELECT {text} FROM v" for text in expressions()), *lines("queries.txt")]:
        try:
            found[sql] = names.bind(sql)
        except TidemillError:
            continue
    assert len(found) > 3000
    return found


def refusals(asked: dict[str, BoundQuery], check: Callable[[str], object]) -> dict[str, str]:
    """What is refused, and because of what."""
    found: dict[str, str] = {}
    for sql in asked:
        try:
            check(sql)
        except Unsupported as error:
            named = re.fullmatch(r".* that uses (.*) is not supported", error.primary)
            found[sql] = named[1] if named else str(error)
    return found


def uses(sql: str, wanted: set[str]) -> bool:
    """Whether the text, less its strings, has one of these."""
    bare = re.sub(r"'[^']*'", "''", sql)
    calls = "|".join(re.escape(w.removesuffix("()")) for w in wanted if w != "age(timestamp)")
    age = "age(timestamp)" in wanted and re.search(r"\bage\((?:[^(),]|\([^()]*\))*\)", bare) is not None
    return age or re.search(rf"\b(?:{calls})\b", bare) is not None


def test_views_refuse_what_depends_on_more_than_rows(oracle: Oracle, asked: dict[str, BoundQuery]) -> None:
    names = Names(oracle)
    refused = refusals(asked, lambda sql: bind_kept(query(sql).tree, names, SESSION))
    listed = CLOCK | CHANCE | SESSION_FACTS
    assert {sql: why for sql, why in refused.items() if why not in listed} == {}
    assert [sql for sql in asked if uses(sql, listed) != (sql in refused)] == []


def test_subscriptions_refuse_what_changes_within_a_session(asked: dict[str, BoundQuery]) -> None:
    refused = refusals(asked, lambda sql: asked[sql].determinism.check_within_session("this"))
    listed = CLOCK | CHANCE
    assert {sql: why for sql, why in refused.items() if why not in listed} == {}
    assert [sql for sql in asked if uses(sql, listed) != (sql in refused)] == []


def test_a_query_is_taken_apart_for_following(asked: dict[str, BoundQuery]) -> None:
    linear = 0
    for bound in asked.values():
        found = linearity(bound)
        linear += found.because is None
        for branch in found.branches:
            sql_text(branch.over("changes"))
    assert linear > 2500
