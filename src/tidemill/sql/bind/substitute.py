"""Completion of a bound query: parameters and session values become typed literals in the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.constant import Constants, evaluate_node
from tidemill.sql.bind.errors import unsupported
from tidemill.sql.bind.model import BoundQuery, SessionInfo
from tidemill.sql.functions.markers import Fixed, read_marker
from tidemill.sql.functions.tree import Tree, number_variables, string
from tidemill.sql.lower.limits import resolve_limits
from tidemill.sql.lower.literal import as_scalar, literal_tree
from tidemill.sql.plan.expressions import BoundNode, Const, known_parameters, rewrite
from tidemill.types.arrow import arrow_type
from tidemill.types.model import MZ_TIMESTAMP, TIMESTAMPTZ


def substitute(bound: BoundQuery, values: Sequence[Any], session: SessionInfo | None = None) -> BoundQuery:
    """The query with the values of its parameters (storage forms: pyarrow scalars, or values that pyarrow
    converts to one) and, if `session` is given, with the session values of a later time."""
    scalars = tuple(_scalars(values, bound))
    constants = bound.constants
    if constants is not None and scalars:
        change = known_parameters(scalars)
        columns = tuple(
            c if isinstance(c, pa.Array) else tuple(rewrite(n, change) for n in c) for c in constants.columns
        )
        constants = Constants(columns, constants.types, constants.rows)
    now = session or bound.session
    return replace(bound, params=scalars or bound.params, param_types=(), session=now, constants=constants)


def _scalars(values: Sequence[Any], bound: BoundQuery) -> list[pa.Scalar]:
    if len(values) != len(bound.param_types):
        raise TidemillError(
            f"bind message supplies {len(values)} parameters, "
            f"but prepared statement requires {len(bound.param_types)}",
            sqlstate="08P01",
        )
    return [as_scalar(v, t) for v, t in zip(values, bound.param_types, strict=True)]


def complete(tree: exp.Expr, scalars: Sequence[pa.Scalar], session: SessionInfo) -> exp.Expr:
    """A copy of the tree in which every marker with a known value is replaced and variables are numbered, so
    that equal queries have equal texts."""
    holder = exp.Paren(this=tree.copy())
    if scalars:
        resolve_limits(holder, lambda clause, node: _row_count(clause, node, scalars, session))
    for node in list(holder.find_all(exp.Placeholder)):
        marker = read_marker(node)
        if marker is None:
            continue
        which, t = marker
        if isinstance(which, Fixed):
            value = _fixed(which, session)
        else:
            value = literal_tree(scalars[which - 1], t) if which <= len(scalars) else None
        if value is not None:
            node.replace(value)
    number_variables(holder)
    result: exp.Expr = holder.this
    return result


def _row_count(clause: str, node: BoundNode, scalars: Sequence[pa.Scalar], session: SessionInfo) -> Const:
    found = evaluate_node(node, session, scalars)
    if found is None:
        raise unsupported(f"this {clause.upper()}")
    return Const(node.type, found)


def _fixed(which: Fixed, session: SessionInfo) -> Tree | None:
    if which is Fixed.ZONE:
        return string(session.time_zone)
    if which in (Fixed.NOW, Fixed.STATEMENT):
        moment = session.now if which is Fixed.NOW else session.statement_began()
        return literal_tree(pa.scalar(moment, arrow_type(TIMESTAMPTZ)), TIMESTAMPTZ)
    if session.mz_now is None:
        return None
    return literal_tree(pa.scalar(session.mz_now, pa.int64()), MZ_TIMESTAMP)
