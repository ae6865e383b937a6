"""SUBSCRIBE from statement to text and back, whatever its clauses; the texts are in `parse/subscribe.txt`."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import to_sql

# Names that are words of the statement's own grammar, reserved words, and words that need quotes.
NAMES = st.sampled_from(
    [
        "a",
        "b",
        "up",
        "to",
        "as",
        "of",
        "with",
        "within",
        "envelope",
        "nulls",
        "first",
        "earliest",
        "latest",
        "key",
        "timestamp",
        "order",
        "progress",
        "snapshot",
        "upsert",
        "mz_diff",
        "Mixed",
        'q"q',
        "é",
        "desc",
    ]
)
TEXTS = st.sampled_from(
    [
        "1",
        "a",
        "a + 1",
        "f(a, b)",
        "(a, b)",
        "not true",
        't."up"',
        '"up"',
        '"within" is null',
        "$1",
        "(1)",
        "'x' || \"envelope\"",
        "timestamp '2026-01-01' at time zone 'utc'",
        "case when a then b end",
        "array[1, 2]",
        '"nulls"',
        "now()",
        "(select max(a) from t)",
        '- "up"',
        'not "envelope"',
        '"earliest"',
    ]
)


def _expression(text: str) -> ast.Expr:
    query = parse(f"delete from t where {text}")[0].statement
    assert isinstance(query, ast.Delete) and query.where is not None
    return query.where


EXPRESSIONS = TEXTS.map(_expression)
IDENTS = NAMES.map(ast.Ident)
KEYS = st.lists(IDENTS, min_size=1, max_size=3).map(tuple)
ITEMS = st.builds(ast.OrderItem, EXPRESSIONS, st.booleans(), st.booleans())
OUTPUTS: st.SearchStrategy[ast.SubscribeOutput] = (
    st.just(ast.SubscribePlain())
    | st.lists(ITEMS, min_size=1, max_size=3).map(tuple).map(ast.WithinTimestampOrderBy)
    | KEYS.map(ast.EnvelopeUpsert)
    | KEYS.map(ast.EnvelopeDebezium)
)
SUBSCRIBES = st.builds(
    ast.Subscribe,
    relation=st.lists(NAMES, min_size=1, max_size=3).map(tuple).map(ast.Name)
    | st.sampled_from(["select 1", "values (1)", "(select 1)", "select a from t union all table u"]).map(
        lambda text: parse(text)[0].statement
    ),
    output=OUTPUTS,
    snapshot=st.booleans(),
    progress=st.booleans(),
    as_of=st.none() | st.just(ast.Bound.EARLIEST) | st.builds(ast.AsOf, EXPRESSIONS, st.booleans()),
    up_to=st.none() | st.just(ast.Bound.LATEST) | EXPRESSIONS,
)


@settings(max_examples=400, deadline=None)
@given(SUBSCRIBES, st.sampled_from(["", "copy", "declare", "explain", "prepare"]))
def test_comes_back_from_its_text(subscribe: ast.Subscribe, inside: str) -> None:
    around: dict[str, Any] = {
        "": subscribe,
        "copy": ast.CopyTo(subscribe),
        "declare": ast.Declare(ast.Ident("c"), subscribe),
        "explain": ast.Explain(subscribe),
        "prepare": ast.Prepare(ast.Ident("p"), subscribe),
    }
    text = to_sql(around[inside])
    assert [p.statement for p in parse(text)] == [around[inside]], text


@settings(max_examples=200, deadline=None)
@given(SUBSCRIBES)
def test_output_may_stand_at_either_end(subscribe: ast.Subscribe) -> None:
    text = to_sql(subscribe)
    bare = to_sql(ast.Subscribe(subscribe.relation, output=subscribe.output))
    head = to_sql(ast.Subscribe(subscribe.relation))
    output = bare.removeprefix(head)
    assert text.startswith(bare)
    moved = head + text.removeprefix(bare) + output
    assert [p.statement for p in parse(moved)] == [subscribe], moved


def test_offsets_are_where_things_stand() -> None:
    text = "copy (subscribe t envelope upsert (key (a, bb))) to stdout"
    statement = parse(text)[0].statement
    assert isinstance(statement, ast.CopyTo) and isinstance(statement.source, ast.Subscribe)
    subscribe = statement.source
    assert text[subscribe.offset :].startswith("subscribe")
    assert isinstance(subscribe.relation, ast.Name) and text[subscribe.relation.offset] == "t"
    output = subscribe.output
    assert isinstance(output, ast.EnvelopeUpsert) and text[output.offset :].startswith("envelope")
    assert [text[k.offset :][: len(k.value)] for k in output.keys] == ["a", "bb"]
