"""The last steps of a query: DISTINCT, output columns by number or name, LIMIT and OFFSET."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.local.cast import to_type
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.model import Ctes, Env, LocalScope, NotLocal, Row, Runtime
from tidemill.types.model import INT8


def fresh(rows: Sequence[Row], seen: set[Any], distinct: bool) -> list[Row]:
    if not distinct:
        return list(rows)
    made: list[Row] = []
    for row in rows:
        key = hashable_row(row)
        if key not in seen:
            seen.add(key)
            made.append(row)
    return made


def hashable_row(row: Row) -> Any:
    return tuple(tuple(v) if isinstance(v, list) else v for v in row)


def output_column(node: exp.Expr, names: Sequence[str]) -> int | None:
    """The output column that ORDER BY or GROUP BY refers to by number or name."""
    if isinstance(node, exp.Literal):
        if node.is_string or not str(node.this).isdigit():
            raise NotLocal("a constant in ORDER BY")
        at = int(str(node.this)) - 1
        if not 0 <= at < len(names):
            raise NotLocal("no such column")
        return at
    if isinstance(node, exp.Column) and not node.table and names.count(node.name) == 1:
        return list(names).index(node.name)
    return None


def limits(
    ctx: LocalContext, query: exp.Expr, parent: LocalScope | None, ctes: Ctes
) -> Callable[[list[Row], Env | None, Runtime], list[Row]] | None:
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return None
    x = Expressions(ctx, LocalScope(parent), ctes)
    if isinstance(limit, exp.Fetch):
        if limit.args.get("limit_options") is not None or limit.args.get("count") is None:
            raise NotLocal("this FETCH")
        count: exp.Expr | None = limit.args["count"]
    else:
        count = None if limit is None else limit.expression
    most = None if count is None else to_type(ctx, x.compile(count), INT8).run
    skip = None if offset is None else to_type(ctx, x.compile(offset.expression), INT8).run

    def cut(rows: list[Row], e: Env | None, rt: Runtime) -> list[Row]:
        start = 0 if skip is None else skip([e], rt) or 0
        n = None if most is None else most([e], rt)
        if n is not None and n < 0:
            raise TidemillError("LIMIT must not be negative", sqlstate="2201W")
        if start < 0:
            raise TidemillError("OFFSET must not be negative", sqlstate="2201X")
        return rows[start:] if n is None else rows[start : start + n]

    return cut
