"""LIMIT, OFFSET and FETCH FIRST.

Their values are constants or parameters. Spark requires small literal numbers, so a parameter leaves a marker
that `substitute` resolves: NULL means no limit, a negative value is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.constant import evaluate_node
from tidemill.sql.bind.errors import mismatch, position_of, unsupported
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.ir import BoundNode, is_constant
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.lattice import ArgumentContext, can_coerce
from tidemill.types.model import INT8

if TYPE_CHECKING:
    from tidemill.sql.bind.model import SessionInfo

# Spark's LIMIT and OFFSET are INT; a larger number means all rows.
_MOST = 2**31 - 1
META = "tidemill_limit"


class InvalidRowCount(TidemillError):
    """2201W for LIMIT, 2201X for OFFSET."""

    sqlstate = "2201W"


def apply_limits(env: Env, tree: exp.Expr, query: exp.Expr, *, ordered: bool) -> exp.Expr:
    """The tree with the query's LIMIT and OFFSET."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return tree
    result = tree
    if not isinstance(tree, exp.Select) or tree.args.get("limit") or tree.args.get("offset"):
        from tidemill.sql.bind.tables import subquery_as

        alias = env.ctx.alias()
        result = exp.Select(expressions=[exp.Star()])
        result.set("from_", exp.From(this=subquery_as(tree, alias)))
    else:
        result = tree.copy()
    if offset is not None:
        _set(env, result, "offset", offset.args["expression"])
    if limit is not None:
        _set(env, result, "limit", _limit_value(limit))
    return result


@dataclass(frozen=True, slots=True)
class Ties:
    """FETCH FIRST count ROWS WITH TIES, after OFFSET."""

    count: exp.Expr
    offset: exp.Expr | None


def ties(query: exp.Expr) -> Ties | None:
    """The query's WITH TIES, if it has one."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if not isinstance(limit, exp.Fetch):
        return None
    options = limit.args.get("limit_options")
    if options is None or not options.args.get("with_ties"):
        return None
    return Ties(_limit_value(limit), offset.args["expression"] if offset is not None else None)


def known_limit(env: Env, clause: str, value: exp.Expr | None) -> int | None:
    """The number of rows, if it must be known when the query is bound; None without a limit."""
    holder = exp.Select()
    if value is not None:
        _set(env, holder, clause, value)
    found = holder.args.get(clause)
    if found is None:
        return None
    if META in found.meta:
        raise unsupported(f"a parameter in {clause.upper()} of WITH TIES", position_of(value))
    return int(found.args["expression"].name)


def _limit_value(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Fetch):
        options = node.args.get("limit_options")
        if options is not None and options.args.get("percent"):
            raise unsupported("FETCH FIRST ... PERCENT", position_of(node))
        count = node.args.get("count")
        return count if count is not None else exp.Literal.number(1)
    return node.args["expression"]


def _set(env: Env, tree: exp.Expr, clause: str, value: exp.Expr) -> None:
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return
    binder = Binder(env, Scope(env.ctx), clause.upper())
    node = binder.bind(value)
    position = position_of(value)
    if not can_coerce(node.type, INT8, ArgumentContext.ASSIGNMENT):
        raise mismatch(f"argument of {clause.upper()} must be type bigint, not type {node.type}", position)
    node = to_type(env.ctx, node, INT8, position=position)
    if not is_constant(node):
        raise unsupported(f"{clause.upper()} with a subquery", position)
    known = evaluate_node(node, env.ctx.session)
    if known is None:
        holder = exp.Limit if clause == "limit" else exp.Offset
        marker = holder(expression=exp.Placeholder(this="tm_limit"))
        marker.meta[META] = (clause, node)
        tree.set(clause, marker)
        return
    _resolve(tree, clause, known)


def _resolve(tree: exp.Expr, clause: str, value: pa.Scalar) -> None:
    number = value.as_py()
    if number is not None and number < 0:
        state = "2201W" if clause == "limit" else "2201X"
        raise InvalidRowCount(f"{clause.upper()} must not be negative", sqlstate=state)
    if number is None or (clause == "limit" and number > _MOST):
        tree.set(clause, None)
        return
    holder = exp.Limit if clause == "limit" else exp.Offset
    # An offset beyond Spark's range skips every possible row.
    tree.set(clause, holder(expression=exp.Literal.number(min(number, _MOST))))


def resolve_limits(tree: exp.Expr, change: Callable[[BoundNode], BoundNode], session: SessionInfo) -> None:
    """Replace parameters by their values. `change` maps a node to itself with its parameters replaced."""
    for select in list(tree.find_all(exp.Select)):
        for clause in ("limit", "offset"):
            holder = select.args.get(clause)
            if holder is None or META not in holder.meta:
                continue
            node = change(holder.meta[META][1])
            value = evaluate_node(node, session)
            if value is None:
                raise unsupported(f"this {clause.upper()}")
            _resolve(select, clause, value)
