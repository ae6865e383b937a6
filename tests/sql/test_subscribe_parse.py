"""SUBSCRIBE from statement to text and back, whatever its clauses; the texts are in `parse/subscribe.txt`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import expression_sql, query_sql

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
    as_of=st.none() | st.just(ast.TimeBound.EARLIEST) | st.builds(ast.AsOf, EXPRESSIONS, st.booleans()),
    up_to=st.none() | st.just(ast.TimeBound.LATEST) | EXPRESSIONS,
)


def _text(s: ast.Subscribe) -> str:
    relation = f"({query_sql(s.relation)})" if isinstance(s.relation, ast.Query) else str(s.relation)
    options = ["" if s.snapshot else "SNAPSHOT = false", "PROGRESS" if s.progress else ""]
    said = ", ".join(o for o in options if o)
    clauses = [
        f"SUBSCRIBE {relation}",
        _output(s.output),
        f"WITH ({said})" if said else "",
        _as_of(s),
        _up_to(s),
    ]
    return " ".join(clause for clause in clauses if clause)


def _output(output: ast.SubscribeOutput) -> str:
    match output:
        case ast.SubscribePlain():
            return ""
        case ast.WithinTimestampOrderBy(items):
            return f"WITHIN TIMESTAMP ORDER BY {', '.join(map(_item, items))}"
        case ast.EnvelopeUpsert(keys):
            return f"ENVELOPE UPSERT (KEY ({', '.join(map(str, keys))}))"
        case ast.EnvelopeDebezium(keys):
            return f"ENVELOPE DEBEZIUM (KEY ({', '.join(map(str, keys))}))"


def _item(item: ast.OrderItem) -> str:
    text = expression_sql(item.expression.tree) + (" DESC" if item.descending else "")
    if item.nulls_first != item.descending:
        text += " NULLS FIRST" if item.nulls_first else " NULLS LAST"
    return text


def _as_of(s: ast.Subscribe) -> str:
    if s.as_of is None:
        return ""
    if isinstance(s.as_of, ast.TimeBound):
        return f"AS OF {s.as_of.value}"
    return f"AS OF {'AT LEAST ' if s.as_of.at_least else ''}{_time(s.as_of.time)}"


def _up_to(s: ast.Subscribe) -> str:
    if s.up_to is None:
        return ""
    return f"UP TO {s.up_to.value if isinstance(s.up_to, ast.TimeBound) else _time(s.up_to)}"


def _time(time: ast.Expr) -> str:
    """A column called as a bound is (which is no time, but was written) stays a column."""
    text = expression_sql(time.tree)
    return f'"{text}"' if text.upper() in ast.TimeBound.__members__ else text


@settings(max_examples=400, deadline=None)
@given(SUBSCRIBES, st.sampled_from(["", "copy", "declare", "explain", "prepare"]))
def test_comes_back_from_its_text(subscribe: ast.Subscribe, inside: str) -> None:
    text = _text(subscribe)
    around: dict[str, tuple[ast.Statement, str]] = {
        "": (subscribe, text),
        "copy": (ast.CopyTo(subscribe), f"COPY ({text}) TO STDOUT"),
        "declare": (ast.Declare(ast.Ident("c"), subscribe), f"DECLARE c CURSOR FOR {text}"),
        "explain": (ast.Explain(subscribe), f"EXPLAIN {text}"),
        "prepare": (ast.Prepare(ast.Ident("p"), subscribe), f"PREPARE p AS {text}"),
    }
    statement, text = around[inside]
    assert [p.statement for p in parse(text)] == [statement], text


@settings(max_examples=200, deadline=None)
@given(SUBSCRIBES)
def test_output_may_stand_at_either_end(subscribe: ast.Subscribe) -> None:
    text = _text(subscribe)
    bare = _text(ast.Subscribe(subscribe.relation, output=subscribe.output))
    head = _text(ast.Subscribe(subscribe.relation))
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
