"""SUBSCRIBE back to SQL text: `render`'s part for it."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.render_trees import expr_sql, query_sql


def subscribe_sql(s: ast.Subscribe) -> str:
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
    text = expr_sql(item.expression) + (" DESC" if item.descending else "")
    if item.nulls_first != item.descending:
        text += " NULLS FIRST" if item.nulls_first else " NULLS LAST"
    return text


def _as_of(s: ast.Subscribe) -> str:
    if s.as_of is None:
        return ""
    if isinstance(s.as_of, ast.Bound):
        return f"AS OF {s.as_of.value}"
    return f"AS OF {'AT LEAST ' if s.as_of.at_least else ''}{_time(s.as_of.time)}"


def _up_to(s: ast.Subscribe) -> str:
    if s.up_to is None:
        return ""
    return f"UP TO {s.up_to.value if isinstance(s.up_to, ast.Bound) else _time(s.up_to)}"


def _time(time: ast.Expr) -> str:
    """A column called as a bound is (which is no time, but was written) stays a column."""
    text = expr_sql(time)
    return f'"{text}"' if text.upper() in ast.Bound.__members__ else text
