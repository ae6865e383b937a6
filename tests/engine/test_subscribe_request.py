"""Subscriptions by their parts: they are the statement that SUBSCRIBE would be, and a query cannot be
more than a query."""

from __future__ import annotations

import pytest

from tidemill.engine.api import SubscribeRequest
from tidemill.engine.subscribe.request import subscribe_statement
from tidemill.errors import InvalidValue, LimitExceeded, SyntaxError_, TidemillError, Unsupported
from tidemill.sql.parse import parse


@pytest.mark.parametrize(
    ("request_", "statement"),
    [
        (SubscribeRequest("t"), "SUBSCRIBE t"),
        (SubscribeRequest("T ;"), "SUBSCRIBE t"),
        (SubscribeRequest('db."My Schema"."a;b"'), 'SUBSCRIBE db."My Schema"."a;b"'),
        (SubscribeRequest("SELECT a FROM t;"), "SUBSCRIBE (SELECT a FROM t)"),
        (SubscribeRequest("(SELECT 1)"), "SUBSCRIBE ((SELECT 1))"),
        (SubscribeRequest("VALUES (1)", snapshot=False), "SUBSCRIBE (VALUES (1)) WITH (SNAPSHOT = false)"),
        (
            SubscribeRequest("t", ("a b", "c"), "upsert", progress=True),
            'SUBSCRIBE t WITH (PROGRESS) ENVELOPE UPSERT (KEY ("a b", c))',
        ),
        (SubscribeRequest("t", ("a",), "debezium"), "SUBSCRIBE t ENVELOPE DEBEZIUM (KEY (a))"),
        (SubscribeRequest("t", as_of="17", up_to="19"), "SUBSCRIBE t AS OF '17' UP TO '19'"),
        (SubscribeRequest("t", as_of="earliest", up_to="latest"), "SUBSCRIBE t AS OF EARLIEST UP TO LATEST"),
        (SubscribeRequest("t", as_of="1) UP TO (2"), "SUBSCRIBE t AS OF '1) UP TO (2'"),
    ],
)
def test_a_request_is_the_statement(request_: SubscribeRequest, statement: str) -> None:
    (expected,) = parse(statement)
    assert subscribe_statement(request_).statement == expected.statement


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("", SyntaxError_),
        (";", SyntaxError_),
        ("t; DROP TABLE t", SyntaxError_),
        ("SELECT 1; SELECT 2", SyntaxError_),
        ("SELECT 1) WITH (PROGRESS", SyntaxError_),
        ("t WITH (PROGRESS)", SyntaxError_),
        ("t AS OF 5", SyntaxError_),
        ("t ENVELOPE UPSERT (KEY (a))", SyntaxError_),
        ("SUBSCRIBE t", SyntaxError_),
        ("INSERT INTO t VALUES (1)", SyntaxError_),
        ("DELETE FROM t", SyntaxError_),
        ("a.b.c.d", SyntaxError_),
        ("SELECT 1 AS OF 5", Unsupported),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", Unsupported),
        ("SELECT " + "(" * 500 + "1" + ")" * 500, LimitExceeded),
        ("SELECT '" + "x" * (2 << 20) + "'", LimitExceeded),
    ],
)
def test_nothing_but_a_name_or_a_query(query: str, kind: type[TidemillError]) -> None:
    with pytest.raises(TidemillError) as found:
        subscribe_statement(SubscribeRequest(query))
    assert isinstance(found.value, kind) or found.value.sqlstate.startswith("54")


def test_a_hint_says_what_is_wanted_and_a_position_where() -> None:
    with pytest.raises(SyntaxError_) as found:
        subscribe_statement(SubscribeRequest("SUBSCRIBE t"))
    assert found.value.position == 11
    assert found.value.hint is not None and "name of a relation" in found.value.hint


def test_key_and_envelope_belong_together() -> None:
    for request in (SubscribeRequest("t", ("a",)), SubscribeRequest("t", (), "upsert")):
        with pytest.raises(InvalidValue):
            subscribe_statement(request)
