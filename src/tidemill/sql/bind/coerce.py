"""Conversion of an expression to another type: implicit where PostgreSQL converts, or an explicit cast.

Literals and parameters of unknown type take the type that their context requires. Constants are converted at
once, so that a bad one is refused when the query is bound, with its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.digits import agreed, digits_of, with_digits, written_digits
from tidemill.sql.bind.errors import mismatch
from tidemill.sql.functions.lattice import FLOATS, STRINGS, base, can_coerce, common_type
from tidemill.sql.functions.lattice import ArgumentContext as CastContext
from tidemill.sql.plan.convert import convert
from tidemill.sql.plan.expressions import BoundNode, BoundParam, Const, Convert, fitted
from tidemill.types.arrow import arrow_type
from tidemill.types.model import TEXT, Kind, SqlType
from tidemill.types.model import plain as stored_type
from tidemill.types.wire.value import parse_literal


def to_type(
    ctx: BindContext, node: BoundNode, target: SqlType, *, explicit: bool = False, position: int | None = None
) -> BoundNode:
    """`node` as `target`; the caller has made sure that the cast is allowed here."""
    if node.type == target:
        return node
    if isinstance(node, BoundParam) and node.type.kind is Kind.UNKNOWN:
        # A parameter is declared without modifiers, and its value is then converted. The digits that other
        # values show do not matter for it.
        plain = stored_type(_without_modifiers(target))
        ctx.fix_param(node.index, plain, node.position)
        return to_type(ctx, replace(node, type=plain), target, explicit=explicit)
    if isinstance(node, Const):
        return _constant(ctx, node, target, explicit, position)
    return Convert(with_digits(target, digits_of(node.type)), node, explicit)


def _constant(
    ctx: BindContext, node: Const, target: SqlType, explicit: bool, position: int | None
) -> BoundNode:
    where = node.position if node.position is not None else position
    if node.value is None:
        return Const(with_digits(target, digits_of(node.type)), None, where)
    zone = ctx.session.time_zone
    if Kind.TIMESTAMPTZ in (node.type.kind, target.kind):
        ctx.depends_on(Dependence.TIME_ZONE, "a timestamptz")
    if target.kind not in FLOATS:
        node = fitted(node)
    try:
        if isinstance(node.value, str):
            plain = _without_modifiers(target) if explicit else target
            value = parse_literal(node.value, plain, timezone=zone)
            read = Const(with_digits(plain, written_digits(node.value)), value, where)
            return read if plain == target else to_type(ctx, read, target, explicit=explicit)
        one = pa.repeat(node.value, 1) if node.value.is_valid else pa.nulls(1, arrow_type(node.type))
        converted = convert(one, node.type, target, explicit=explicit, zone=zone)
    except TidemillError as error:
        if error.position is None:
            error.position = where
        raise
    if converted is None:
        return Convert(with_digits(target, digits_of(node.type)), node, explicit)
    return Const(with_digits(target, _digits(node)), converted[0], where)


def _digits(node: Const) -> int | None:
    if node.type.kind in STRINGS and isinstance(node.value, pa.Scalar) and node.value.is_valid:
        return written_digits(node.value.as_py())
    return digits_of(node.type)


def _without_modifiers(t: SqlType) -> SqlType:
    if t.kind in (Kind.VARCHAR, Kind.CHAR) and t.length is not None:
        return SqlType(t.kind)
    return t


def explicit_cast(ctx: BindContext, node: BoundNode, target: SqlType, position: int | None) -> BoundNode:
    """CAST(node AS target)."""
    if not can_coerce(node.type, target, CastContext.EXPLICIT):
        raise TidemillError(f"cannot cast type {node.type} to {target}", sqlstate="42846", position=position)
    return to_type(ctx, node, target, explicit=True, position=position)


def assign(
    ctx: BindContext, node: BoundNode, target: SqlType, column: str, position: int | None
) -> BoundNode:
    """A value on its way into a column."""
    if not can_coerce(node.type, target, CastContext.ASSIGNMENT):
        raise mismatch(
            f'column "{column}" is of type {target} but expression is of type {node.type}',
            position,
            "You will need to rewrite or cast the expression.",
        )
    return to_type(ctx, node, target, position=position)


def settle(ctx: BindContext, node: BoundNode) -> BoundNode:
    """An expression that nothing gave a type becomes text."""
    if node.type.kind is not Kind.UNKNOWN:
        return node
    settled = to_type(ctx, node, TEXT)
    if isinstance(node, BoundParam):
        ctx.leave_param(node.index)
    return settled


def unify(
    ctx: BindContext, nodes: Sequence[BoundNode], what: str, positions: Sequence[int | None] | None = None
) -> tuple[list[BoundNode], SqlType]:
    """All nodes as their common type; `what` is CASE, UNION, VALUES, COALESCE, ... for the error."""
    target, pair = common_type([n.type for n in nodes])
    if target is None:
        assert pair is not None
        where = None
        if positions is not None:
            where = next((p for n, p in zip(nodes, positions, strict=True) if n.type == pair[1]), None)
        raise mismatch(f"{what} types {pair[0]} and {pair[1]} cannot be matched", where)
    if target.kind in STRINGS and any(n.type.kind is Kind.UNKNOWN for n in nodes):
        # A literal has no length: nothing is filled up or cut.
        target = base(target)
    typed = [to_type(ctx, n, target) for n in nodes]
    return typed, agreed(target, typed)


def require_bool(ctx: BindContext, node: BoundNode, clause: str, position: int | None) -> BoundNode:
    """The condition of WHERE, HAVING, JOIN/ON, AND, CASE/WHEN, ..."""
    if not can_coerce(node.type, SqlType(Kind.BOOL)):
        raise mismatch(f"argument of {clause} must be type boolean, not type {node.type}", position)
    return to_type(ctx, node, SqlType(Kind.BOOL), position=position)
