"""Casts of values that are known without Spark: literals, parameters, whole columns of VALUES.

The counterpart of `functions.casts` for Arrow arrays, with the same results and errors. Returns None for a
cast that Spark must do.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute

from tidemill.errors import InvalidValue
from tidemill.sql.functions.lattice import FLOATS, INTEGERS, STRINGS
from tidemill.types.arrow import arrow_type, decimal_shape
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire.text import decode_text, encode_text

pc: Any = pyarrow.compute

_SMALL = INTEGERS | {Kind.OID, Kind.MZ_TIMESTAMP}
_RANGE: dict[Kind, tuple[int, int]] = {
    Kind.INT2: (-(1 << 15), (1 << 15) - 1),
    Kind.INT4: (-(1 << 31), (1 << 31) - 1),
    Kind.INT8: (-(1 << 63), (1 << 63) - 1),
    Kind.UINT2: (0, (1 << 16) - 1),
    Kind.UINT4: (0, (1 << 32) - 1),
    Kind.UINT8: (0, (1 << 64) - 1),
    Kind.OID: (0, (1 << 32) - 1),
    Kind.MZ_TIMESTAMP: (0, (1 << 63) - 1),
}


def convert(
    array: pa.Array, source: SqlType, target: SqlType, *, explicit: bool, zone: str
) -> pa.Array | None:
    """Convert `array` from the storage form of `source` to that of `target`; None if Spark must do this
    cast."""
    if source == target:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), arrow_type(target))
    if source.kind in STRINGS and target.kind in STRINGS:
        return _fit(_stripped(array, source, target), target, explicit=explicit)
    if target.kind in STRINGS:
        return _fit(_text(array, source, zone), target, explicit=explicit)
    if source.kind in STRINGS:
        return decode_text(_stripped(array, source, target), target, timezone=zone)
    if source.kind is Kind.NUMERIC and target.kind is Kind.NUMERIC:
        return _rescale(array, target)
    if source.kind is target.kind:
        return array if source.kind not in (Kind.ARRAY, Kind.LIST, Kind.MAP) else None
    if source.kind is Kind.BOOL and target.kind is Kind.INT4:
        return array.cast(pa.int32())
    if target.kind is Kind.BOOL and source.kind is Kind.INT4:
        return array.cast(pa.bool_())
    if source.kind in (Kind.INT2, Kind.INT4) and target.kind is Kind.OID:
        # The same 32 bits, signed or unsigned.
        wide = array.cast(pa.int64())
        return pc.if_else(pc.less(wide, 0), pc.add(wide, 1 << 32), wide)
    if (source.kind, target.kind) == (Kind.OID, Kind.INT4):
        return pc.if_else(pc.greater_equal(array, 1 << 31), pc.subtract(array, 1 << 32), array).cast(
            pa.int32()
        )
    if source.kind in _SMALL and target.kind in _SMALL:
        return _whole(array, target)
    if source.kind in _SMALL and target.kind is Kind.NUMERIC:
        return _rescale(array.cast(pa.decimal128(38, 0)), target)
    if source.kind in INTEGERS and target.kind in FLOATS:
        return _python(array, target, float)
    if source.kind in FLOATS and target.kind in FLOATS:
        return _float(array, target)
    if source.kind is Kind.NUMERIC and target.kind in _SMALL:
        return _whole(array, target)
    if source.kind is Kind.NUMERIC and target.kind in FLOATS:
        return _python(array, target, float)
    if source.kind is Kind.DATE and target.kind is Kind.TIMESTAMP:
        try:
            return array.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            # Infinite, or too late for a timestamp.
            return None
    return None


def _text(array: pa.Array, source: SqlType, zone: str) -> pa.Array:
    if source.kind is Kind.BOOL:
        return pc.if_else(array, "true", "false")
    return encode_text(array, source, timezone=zone).cast(pa.string())


def _stripped(array: pa.Array, source: SqlType, target: SqlType) -> pa.Array:
    """The padding of char(n) is not part of its value."""
    if source.kind is Kind.CHAR and target.kind is not Kind.CHAR:
        return pc.utf8_rtrim(array, " ")
    return array


def _fit(array: pa.Array, target: SqlType, *, explicit: bool) -> pa.Array:
    length = 63 if target.kind is Kind.NAME else target.length
    if length is None:
        return array
    if not explicit and target.kind is not Kind.NAME:
        longest = pc.max(pc.utf8_length(pc.utf8_rtrim(array, " "))).as_py() or 0
        if longest > length:
            raise InvalidValue(f"value too long for type {target}", sqlstate="22001")
    cut = pc.utf8_slice_codeunits(array, 0, length)
    return pc.utf8_rpad(cut, length, " ") if target.kind is Kind.CHAR else cut


def _whole(array: pa.Array, target: SqlType) -> pa.Array:
    """Numbers (of any integer or decimal type) as the target integer: rounded and range-checked."""
    want = arrow_type(target)
    if pa.types.is_decimal(array.type):
        array = _rounded(array, pa.decimal128(38, 0))
    low, high = _RANGE[target.kind]
    bounds = pc.min_max(array).as_py()
    if int(bounds["min"]) < low or int(bounds["max"]) > high:
        name = "OID" if target.kind is Kind.OID else str(target)
        raise InvalidValue(f"{name} out of range", sqlstate="22003")
    return array.cast(want)


def _rescale(array: pa.Array, target: SqlType) -> pa.Array:
    try:
        return _rounded(array, pa.decimal128(*decimal_shape(target)))
    except pa.ArrowInvalid:
        raise _overflow(target) from None


# Arrow divides decimals incorrectly if the upper half of the quotient is all ones: 18446744073709551615 with
# 18 fractional digits becomes 18446744068757791458 with none. Values near this case are converted in Python.
_ARROW_DIVIDES_BELOW = Decimal(1 << 63)


def _rounded(array: pa.Array, want: pa.Decimal128Type) -> pa.Array:
    """Decimals as another decimal type, rounded half away from zero. Raises ArrowInvalid on an overflow."""
    if array.type.scale <= want.scale:
        return array.cast(want)
    bounds = pc.min_max(array).as_py()
    largest = max((abs(v) for v in bounds.values() if v is not None), default=Decimal(0))
    if largest.scaleb(want.scale) < _ARROW_DIVIDES_BELOW:
        return pc.round(array, want.scale, round_mode="half_towards_infinity").cast(want)
    unit = Decimal(1).scaleb(-want.scale)
    with localcontext(prec=77, rounding=ROUND_HALF_UP):
        rounded = [None if v is None else v.quantize(unit) for v in array.to_pylist()]
    return pa.array(rounded, want)


def _overflow(target: SqlType) -> InvalidValue:
    if target.precision is None:
        return InvalidValue(
            "value overflows numeric format",
            detail="numeric holds 20 digits before and 18 behind the decimal point.",
            sqlstate="22003",
        )
    precision, scale = decimal_shape(target)
    whole = f"10^{precision - scale}" if precision > scale else "1"
    return InvalidValue(
        "numeric field overflow",
        detail=f"A field with precision {precision}, scale {scale} must round to an absolute value "
        f"less than {whole}.",
        sqlstate="22003",
    )


def _float(array: pa.Array, target: SqlType) -> pa.Array:
    """Convert to another width. Finite values must stay finite, and values other than zero must not become
    zero."""
    converted = array.cast(arrow_type(target), safe=False)
    if pc.any(pc.and_(pc.is_inf(converted), pc.invert(pc.is_inf(array)))).as_py():
        raise InvalidValue("value out of range: overflow", sqlstate="22003")
    if pc.any(pc.and_(pc.equal(converted, 0), pc.not_equal(array, 0))).as_py():
        raise InvalidValue("value out of range: underflow", sqlstate="22003")
    return converted


def _python(array: pa.Array, target: SqlType, make: Any) -> pa.Array:
    values = [None if v is None else make(v) for v in array.to_pylist()]
    return pa.array(values, arrow_type(target))


def integer_scalar(value: int) -> tuple[pa.Scalar, SqlType]:
    """An integer with the type of PostgreSQL's literals: int4 if it fits, else int8, else numeric."""
    for kind in (Kind.INT4, Kind.INT8):
        low, high = _RANGE[kind]
        if low <= value <= high:
            t = SqlType(kind)
            return pa.scalar(value, arrow_type(t)), t
    return numeric_scalar(Decimal(value)), SqlType(Kind.NUMERIC)


def numeric_scalar(value: Decimal) -> pa.Scalar:
    target = SqlType(Kind.NUMERIC)
    return decode_text(pa.array([format(value, "f")]), target)[0]
