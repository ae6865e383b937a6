"""Ordered-set aggregates: percentile_cont, percentile_disc and mode, with WITHIN GROUP (ORDER BY ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import InvalidValue
from tidemill.sql.bind.calls import call_of
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.constant import evaluate_node
from tidemill.sql.bind.errors import GroupingError, position_of, unsupported
from tidemill.sql.bind.forms.aggregate import check_no_windows, sort_key
from tidemill.sql.functions.lattice import can_coerce
from tidemill.sql.functions.signature import Fn, made_of_rows
from tidemill.sql.plan.expressions import Aggregate, BoundNode, is_constant
from tidemill.types.model import FLOAT8, Kind, SqlType, array

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

NAMES = frozenset({"percentile_cont", "percentile_disc", "mode"})
_HYPOTHETICAL = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


def bind_ordered_set(b: Binder, node: exp.Expr, where: exp.Expr | None = None) -> BoundNode:
    position = position_of(node)
    found = call_of(node.this)
    if found is not None and found.name in _HYPOTHETICAL:
        raise unsupported(f"{found.name}() of a hypothetical row", position, "Count the rows before it.")
    items: list[exp.Ordered] = list(node.args["expression"].expressions)
    if found is None:
        raise unsupported("WITHIN GROUP of this function", position)
    if found.name not in NAMES:
        args = [*b.bind_all(found.args), *(b.bind(item.this) for item in items)]
        raise b.no_function(found.name, args, position)
    if not b.aggregates:
        raise GroupingError(f"aggregate functions are not allowed in {b.clause}", position=position)
    if b.in_aggregate:
        raise GroupingError("aggregate function calls cannot be nested", position=position)
    direct = b.bind_all(found.args)
    b.in_aggregate = True
    try:
        keys = [sort_key(b, item) for item in items]
        condition = b.boolean(where, "FILTER") if where is not None else None
    finally:
        b.in_aggregate = False
    wanted = 0 if found.name == "mode" else 1
    if len(direct) != wanted or len(keys) != 1:
        raise b.no_function(found.name, [*direct, *(k.node for k in keys)], position)
    check_no_windows([k.node for k in keys], position)
    value, t = keys[0].node, keys[0].node.type
    if found.name == "percentile_cont":
        if t.kind is Kind.INTERVAL:
            raise unsupported("percentile_cont() of an interval", position)
        if not can_coerce(t, FLOAT8):
            raise b.no_function(found.name, [*direct, value], position)
        value, t = to_type(b.ctx, value, FLOAT8), FLOAT8
    fraction = _fraction(b, found.name, direct[0], position) if direct else None
    several = fraction is not None and fraction.type.kind is Kind.ARRAY
    result = array(t) if several else t
    fn = Fn(found.name, (t,), result, made_of_rows, aggregate=True)
    return Aggregate(result, fn, (value,), False, condition, tuple(keys), fraction)


def _fraction(b: Binder, name: str, node: BoundNode, position: int | None) -> BoundNode:
    several = node.type.kind is Kind.ARRAY
    target: SqlType = array(FLOAT8) if several else FLOAT8
    if not can_coerce(node.type, target):
        raise b.no_function(name, [node], position)
    fraction = to_type(b.ctx, node, target, position=position)
    if not is_constant(fraction):
        raise unsupported(f"{name}() of a fraction that is no constant", position)
    known = evaluate_node(fraction, b.ctx.session)
    values = [] if known is None or not known.is_valid else known.as_py() if several else [known.as_py()]
    for value in values:
        if value is not None and not 0 <= value <= 1:
            raise InvalidValue(f"percentile value {value:g} is not between 0 and 1", sqlstate="22003")
    return fraction
