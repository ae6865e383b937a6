"""The stored query text of a view. Called by CREATE VIEW and CREATE MATERIALIZED VIEW. Promises that the text
parses again and returns columns of the same types; otherwise the statement fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import TidemillError, Unsupported
from tidemill.sql import ast
from tidemill.sql.bind.model import BoundQuery
from tidemill.sql.parse import parse
from tidemill.sql.render import to_sql
from tidemill.types.model import Column


def kept_text(query: ast.Query, columns: Sequence[Column], bind: Callable[[exp.Expr], BoundQuery]) -> str:
    """`columns` are those of the original query; `bind` binds the text again."""
    text = to_sql(query)
    try:
        (parsed,) = parse(text)
        if not isinstance(parsed.statement, ast.Query):
            raise _refusal(f"It would be kept as: {text}")
        again = bind(parsed.statement.tree).columns
    except TidemillError as error:
        raise _refusal(f"It would be kept as {text}, which gives: {error.primary}") from error
    # The names are stored next to the text.
    if [c.type for c in again] != [c.type for c in columns]:
        raise _refusal(f"It would be kept as {text}, whose columns are others.")
    return text


def _refusal(detail: str) -> Unsupported:
    return Unsupported(
        "this query cannot be kept as the text of a view",
        detail=detail,
        hint="Give columns of subqueries names with AS, or write the expression in another way.",
    )
