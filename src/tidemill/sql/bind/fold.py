"""Arithmetic on constants that is done while binding: signs, and sums and products of whole numbers.

So that -2.5::int and LIMIT 10 * 2 are constants. Everything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.sql.bind.ir import Const, Node
from tidemill.sql.functions.lattice import FLOATS, SIGNED
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Kind, SqlType

_SIGNED_NUMBERS = SIGNED | FLOATS | {Kind.NUMERIC}


def fold(name: str, result: SqlType, args: Sequence[Node]) -> Const | None:
    """The value of `name(args)`; None where it is not done here."""
    if result.kind not in _SIGNED_NUMBERS:
        # Not every value is Python's own: there are dates that datetime has not.
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
    if len(values) != 2 or any(kind not in SIGNED for kind in (result.kind, *(a.type.kind for a in args))):
        return None
    if name == "+":
        return _constant(values[0] + values[1], result)
    if name == "-":
        return _constant(values[0] - values[1], result)
    return _constant(values[0] * values[1], result) if name == "*" else None


def _constant(value: Any, t: SqlType) -> Const:
    try:
        return Const(t, pa.scalar(value, arrow_type(t)))
    except (pa.ArrowInvalid, OverflowError):
        raise InvalidValue(f"{t} out of range", sqlstate="22003") from None
