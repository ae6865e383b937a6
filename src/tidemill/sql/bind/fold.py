"""Constant folding in the binder: signs, sums and products, and functions of numeric.

With it, -2.5::int and LIMIT 10 * 2 are constants, and a quotient of constants has PostgreSQL's digits. Spark
evaluates everything else, including errors: a branch that is not taken raises none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidemill.errors import InvalidValue, TidemillError
from tidemill.sql.bind.digits import digits_of, with_digits
from tidemill.sql.functions.lattice import FLOATS, SIGNED
from tidemill.sql.functions.rowwise import stored
from tidemill.sql.plan.expressions import BoundNode, Const
from tidemill.sql.scalar import numbers
from tidemill.types.arrow import NUMERIC_SCALE, arrow_type
from tidemill.types.model import Kind, SqlType

_SIGNED_NUMBERS = SIGNED | FLOATS | {Kind.NUMERIC}


def fold(name: str, result: SqlType, args: Sequence[BoundNode]) -> Const | None:
    """The value of `name(args)`; None if it is not folded here."""
    if result.kind not in _SIGNED_NUMBERS:
        # Python cannot represent every value: some dates do not fit into datetime.
        return None
    values: list[Any] = []
    for arg in args:
        if arg.type.kind not in _SIGNED_NUMBERS:
            return None
        if not isinstance(arg, Const) or not isinstance(arg.value, pa.Scalar) or not arg.value.is_valid:
            return None
        values.append(arg.value.as_py())
    if len(values) == 1 and name == "-":
        return _constant(-values[0], result)
    if result.kind is Kind.NUMERIC and all(a.type.kind is Kind.NUMERIC for a in args):
        known = [digits_of(a.type) for a in args]
        return _numeric(name, result, values, [NUMERIC_SCALE if d is None else d for d in known])
    if len(values) != 2 or any(kind not in SIGNED for kind in (result.kind, *(a.type.kind for a in args))):
        return None
    if name == "+":
        return _constant(values[0] + values[1], result)
    if name == "-":
        return _constant(values[0] - values[1], result)
    return _constant(values[0] * values[1], result) if name == "*" else None


_FUNCTIONS: dict[tuple[str, int], Callable[..., Decimal]] = {
    ("+", 2): numbers.EXACT.add,
    ("-", 2): numbers.EXACT.subtract,
    ("*", 2): numbers.EXACT.multiply,
    ("sqrt", 1): numbers.sqrt,
    ("ln", 1): numbers.ln,
    ("exp", 1): numbers.exp,
    ("log", 1): numbers.log10,
    ("log10", 1): numbers.log10,
    ("log", 2): numbers.log,
    ("power", 2): numbers.power,
    ("pow", 2): numbers.power,
    ("^", 2): numbers.power,
}


def _at(value: Decimal, digits: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-digits), context=numbers.EXACT)


def _numeric(name: str, t: SqlType, values: Sequence[Decimal], shown: Sequence[int]) -> Const | None:
    """Folds functions of numerics; None on an error, which is then raised at execution."""
    try:
        if (name, len(values)) == ("/", 2):
            found = numbers.quotient(values[0], values[1], max(d for d in (0, *shown) if d < NUMERIC_SCALE))
        elif (run := _FUNCTIONS.get((name, len(values)))) is not None:
            found = run(*(_at(v, d) for v, d in zip(values, shown, strict=True)))
        else:
            return None
        rounded = stored(found, t)
    except TidemillError:
        return None
    if t.shown is None:
        exponent = found.as_tuple().exponent
        t = with_digits(t, -exponent if isinstance(exponent, int) else None)
    return _constant(rounded, t)


def _constant(value: Any, t: SqlType) -> Const:
    try:
        return Const(t, pa.scalar(value, arrow_type(t)))
    except (pa.ArrowInvalid, OverflowError):
        raise InvalidValue(f"{t} out of range", sqlstate="22003") from None
