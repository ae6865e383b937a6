"""The number of fractional digits that a numeric shows, if it is known before execution.

PostgreSQL stores it with each value: `2.50` shows two, a sum as many as the longer operand, a product as many
as both. Here a value is stored without it (2.5 and 2.50 are one row), so it is derived from the expression: a
literal, a column of numeric(p,s), an integer, and operations on these. `SqlType.shown` holds it. A numeric
with an unknown number of digits shows no trailing zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

import pyarrow as pa

from tidemill.sql.functions.lattice import INTEGERS
from tidemill.sql.plan.expressions import BoundNode, Const
from tidemill.types.arrow import NUMERIC_SCALE
from tidemill.types.model import INT4, Kind, SqlType


def digits_of(t: SqlType) -> int | None:
    """The digits of a value of this type (of an array's elements); None if they are not known."""
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        return digits_of(t.element)
    if t.kind in INTEGERS:
        return 0
    if t.kind is not Kind.NUMERIC:
        return None
    return t.shown if t.precision is None else t.scale


def with_digits(t: SqlType, digits: int | None) -> SqlType:
    """`t` with this number of digits if it is numeric (or an array of numerics), at most as many as are
    stored."""
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        return replace(t, element=with_digits(t.element, digits))
    if t.kind is not Kind.NUMERIC or t.precision is not None:
        return t
    return replace(t, shown=None if digits is None else min(digits, NUMERIC_SCALE))


def agreed(t: SqlType, nodes: Sequence[BoundNode]) -> SqlType:
    """The type of a value that is one of the nodes. Its digits are known if all nodes have the same
    number."""
    found = {digits_of(n.type) for n in nodes if not _is_null(n)}
    return with_digits(t, found.pop() if len(found) == 1 else None)


def _is_null(node: BoundNode) -> bool:
    return isinstance(node, Const) and (
        node.value is None or (isinstance(node.value, pa.Scalar) and not node.value.is_valid)
    )


def written_digits(text: str) -> int | None:
    """The number of digits of a literal as written; of an array, if all elements have the same number."""
    if text.strip().startswith("{"):
        found = {written_digits(e) for e in text.strip(" {}").split(",") if e.strip().upper() != "NULL"}
        return found.pop() if len(found) == 1 else None
    try:
        exponent = Decimal(text.strip().replace("_", "")).as_tuple().exponent
    except InvalidOperation:
        # In another base, or not a number.
        return None
    return max(0, -exponent) if isinstance(exponent, int) else None


_Rule = Callable[[Sequence[BoundNode]], "int | None"]


def _longest(args: Sequence[BoundNode]) -> int | None:
    found = [digits_of(a.type) for a in args]
    known = [d for d in found if d is not None]
    return max(known) if len(known) == len(found) else None


def _together(args: Sequence[BoundNode]) -> int | None:
    found = [digits_of(a.type) for a in args]
    known = [d for d in found if d is not None]
    return sum(known) if len(known) == len(found) else None


def _none(args: Sequence[BoundNode]) -> int | None:
    return 0


def _rounded(args: Sequence[BoundNode]) -> int | None:
    """round(x) and round(x, n)."""
    if len(args) == 1:
        return 0
    places = args[1]
    if not isinstance(places, Const) or places.type != INT4 or _is_null(places):
        return None
    return max(0, places.value.as_py())


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("+", "-", "%", "mod", "gcd", "lcm", "abs", "sum", "min", "max"), _longest),
    **dict.fromkeys(("ceil", "ceiling", "floor", "sign", "div", "factorial"), _none),
    **dict.fromkeys(("round", "trunc"), _rounded),
    "*": _together,
}


def result_type(name: str, declared: object, result: SqlType, args: Sequence[BoundNode]) -> SqlType:
    """The result type of a call with these arguments. `declared` is a type that represents others if the
    result is one of the arguments, or is built from them."""
    if result.kind is Kind.NUMERIC and result.precision is None and name in _RULES:
        return with_digits(result, _RULES[name](args))
    if not isinstance(declared, SqlType) and _innermost(result).kind is Kind.NUMERIC:
        return agreed(result, [a for a in args if _innermost(a.type).kind is Kind.NUMERIC])
    return result


def _innermost(t: SqlType) -> SqlType:
    while t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        t = t.element
    return t
