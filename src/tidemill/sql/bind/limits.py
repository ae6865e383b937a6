"""LIMIT, OFFSET and FETCH FIRST: their values are constants or parameters."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.constant import evaluate_node
from tidemill.sql.bind.errors import mismatch, position_of, unsupported
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.lattice import ArgumentContext, can_coerce
from tidemill.sql.lower.limits import row_count
from tidemill.sql.plan.expressions import BoundNode, Const, is_constant
from tidemill.sql.plan.operators import Limit, Operator, keeps_all
from tidemill.types.model import INT8


def limited(env: Env, plan: Operator, query: exp.Expr) -> Operator:
    """The plan with the query's LIMIT and OFFSET."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return plan
    skipped = None if offset is None else _number(env, "offset", offset.args["expression"])
    count = None if limit is None else _number(env, "limit", _limit_value(limit))
    made = Limit(plan, count, skipped)
    return plan if keeps_all(made) else made


@dataclass(frozen=True, slots=True)
class TiesClause:
    """FETCH FIRST count ROWS WITH TIES, after OFFSET."""

    count: exp.Expr
    offset: exp.Expr | None


def ties(query: exp.Expr) -> TiesClause | None:
    """The query's WITH TIES, if it has one."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if not isinstance(limit, exp.Fetch):
        return None
    options = limit.args.get("limit_options")
    if options is None or not options.args.get("with_ties"):
        return None
    return TiesClause(_limit_value(limit), offset.args["expression"] if offset is not None else None)


def known_limit(env: Env, clause: str, value: exp.Expr | None) -> int | None:
    """The number of rows, if it must be known when the query is bound; None without a limit."""
    node = None if value is None else _number(env, clause, value)
    if node is not None and not isinstance(node, Const):
        raise unsupported(f"a parameter in {clause.upper()} of WITH TIES", position_of(value))
    return None if node is None else row_count(clause, node.value)


def _limit_value(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Fetch):
        options = node.args.get("limit_options")
        if options is not None and options.args.get("percent"):
            raise unsupported("FETCH FIRST ... PERCENT", position_of(node))
        count = node.args.get("count")
        return count if count is not None else exp.Literal.number(1)
    return node.args["expression"]


def _number(env: Env, clause: str, value: exp.Expr) -> BoundNode | None:
    """A constant, or an expression over parameters; None for no limit."""
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
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
        return node
    row_count(clause, known)
    return Const(INT8, known)
