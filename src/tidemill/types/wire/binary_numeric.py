"""PostgreSQL binary format of numeric: a header and base-10000 digits, whole columns at a time.

Called by `binary`. The header is four 16-bit numbers: the number of digits, the weight of the first (its
power of 10000), the sign, and the number of displayed decimal digits after the point.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue, Unsupported
from tidemill.types import wide
from tidemill.types.arrow import arrow_type, decimal_shape
from tidemill.types.columns import bytes_between, spans, valid_mask, validity_buffer
from tidemill.types.kernels import pc
from tidemill.types.model import SqlType
from tidemill.types.wire.columns import decode_rows
from tidemill.types.wire.input_numbers import fit_numeric

_NEGATIVE = 0x4000
_NAN = 0xC000
_INFINITIES = (0xD000, 0xF000)
_HEADER = 4  # cells
_BASE = np.uint64(10**4)
# Up to this many fractional digits, 64 bits hold a fraction that is padded to whole groups.
_NARROW_SCALE = 16
# Groups of four digits that hold the integer part of any 38-digit number.
_WHOLE_GROUPS = 10


def bad_binary() -> InvalidValue:
    return InvalidValue("incorrect binary data format", sqlstate="22P03")


def encode(array: pa.Array, *, least: int | None) -> pa.Array:
    """A decimal column with all digits of its scale, or, with `least`, at least this many and no further
    zeros."""
    scale = array.type.scale
    low, high = wide.words(array)
    signed = low.view(np.int64)
    if scale <= _NARROW_SCALE and bool((high == signed >> 63).all()):
        groups, negative = _narrow_groups(signed, scale), signed < 0
    else:
        limbs, negative = wide.magnitude(low, high)
        groups = _wide_groups(limbs, scale)
    shown = scale if least is None else None
    return _values(groups, -(-scale // 4), negative, shown, least or 0, valid_mask(array))


def _narrow_groups(values: np.ndarray, scale: int) -> list[np.ndarray]:
    """Base-10000 digits, least first, of unscaled values that fit into one word. The fraction has all its
    groups, the integer part as many as the largest value needs."""
    size = np.abs(values).view(np.uint64)
    whole = size // np.uint64(10**scale)
    fraction = (size - whole * np.uint64(10**scale)) * np.uint64(10 ** (-scale % 4))
    groups: list[np.ndarray] = []
    for rest, least in ((fraction, -(-scale // 4)), (whole, 0)):
        end = len(groups) + least
        while len(groups) < end or bool(rest.any()):
            up = rest // _BASE
            groups.append(rest - up * _BASE)
            rest = up
    return groups


def _wide_groups(limbs: list[np.ndarray], scale: int) -> list[np.ndarray]:
    """The same for 128 bits."""
    limbs = wide.multiply_add(limbs, 10 ** (-scale % 4))
    groups: list[np.ndarray] = []
    while len(groups) < -(-scale // 4) or len(limbs) > 1 or bool(limbs[0].any()):
        limbs, two = wide.divide(limbs, 10**8)
        high = two // _BASE
        groups += [two - high * _BASE, high]
    return groups


def _values(
    groups: list[np.ndarray],
    fraction: int,
    negative: np.ndarray,
    scale: int | None,
    least: int,
    valid: np.ndarray,
) -> pa.Array:
    """Header and digits from the first to the last group that is not zero; `fraction` groups are after the
    point. Each row's header is written directly before its first digit, over the zeros there."""
    rows, width = len(valid), len(groups)
    before = _zeros(groups[::-1], rows)
    # All groups are zero: no digit is sent.
    behind = np.where(before == width, 0, _zeros(groups, rows))
    cells = np.empty((rows, _HEADER + width), np.int16)
    for i, group in enumerate(groups):
        cells[:, -1 - i] = group
    header = (
        width - before - behind,
        np.where(before == width, 0, width - fraction - 1 - before),
        np.where(negative, _NEGATIVE, 0),
        np.maximum(_shown(cells, fraction, before, behind), least) if scale is None else np.full(rows, scale),
    )
    for at in np.flatnonzero(np.bincount(before)).tolist():
        some = before == at
        for i, values in enumerate(header):
            np.copyto(cells[:, at + i], values, casting="same_kind", where=some)
    return bytes_between(cells.byteswap(inplace=True), before, behind, valid)


def _zeros(groups: list[np.ndarray], rows: int) -> np.ndarray:
    """The number of leading zero groups in each row."""
    count = np.zeros(rows, np.int64)
    empty = np.ones(rows, np.bool_)
    for group in groups:
        empty &= group == 0
        if not bool(empty.any()):
            break
        count += empty
    return count


def _shown(cells: np.ndarray, fraction: int, before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    """The number of fractional digits without trailing zeros."""
    rows, width = cells.shape
    last = cells[np.arange(rows), width - 1 - behind].astype(np.int64)
    zeros = sum((last % power == 0).astype(np.int64) for power in (10, 100, 1000))
    return np.where(before == width - _HEADER, 0, np.maximum(4 * (fraction - behind) - zeros, 0))


def decode(array: pa.Array, t: SqlType) -> pa.Array:
    """A column of binary numerics in storage form, rounded and bounded as `decode_text` does."""
    valid = valid_mask(array)
    array = pc.fill_null(array, b"\0" * 8)
    offsets, data = spans(array)
    lengths = np.diff(offsets)
    if bool(((lengths < 2 * _HEADER) | (lengths % 2 == 1)).any()):
        row = np.flatnonzero((lengths < 2 * _HEADER) | (lengths % 2 == 1))[:1]
        decode_rows(array, row, partial(parse, t=t), arrow_type(t))
    cells = data[offsets[0] : offsets[-1]].view(">u2").astype(np.int64)
    starts = (offsets[:-1].astype(np.int64) - int(offsets[0])) // 2
    if len(array) == 0:
        return pa.array([], arrow_type(t))
    count, weight, sign = (
        cells[starts],
        cells[starts + 1].astype(np.int16).astype(np.int64),
        cells[starts + 2],
    )
    precision, scale = decimal_shape(t)
    fraction_groups = -(-scale // 4)
    width = _WHOLE_GROUPS + fraction_groups
    odd = (count * 2 + 2 * _HEADER != lengths) | ((sign != 0) & (sign != _NEGATIVE))
    count = np.where(odd, 0, count)
    # Write each row's digits to the columns of their weights.
    owner = np.repeat(np.arange(len(array)), count)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    digit = cells[starts[owner] + _HEADER + nth]
    column = _WHOLE_GROUPS - 1 - weight[owner] + nth
    outside = (column < 0) | (column >= width) | (digit > 9999)
    odd[owner[outside & (digit != 0)]] = True
    matrix = np.zeros((len(array), width), dtype=np.uint64)
    matrix[owner[~outside], column[~outside]] = digit[~outside].astype(np.uint64)
    limbs = [np.zeros(len(array), np.uint64)]
    for i in range(width):
        limbs = wide.multiply_add(limbs, 10**4, matrix[:, i])
    extra = 10 ** (4 * fraction_groups - scale)
    if extra > 1:
        limbs, rest = wide.divide(limbs, extra)
        limbs = wide.multiply_add(limbs, 1, (rest * np.uint64(2) >= np.uint64(extra)).astype(np.uint64))
    odd |= wide.at_least(limbs, 10**precision)
    low, high = wide.from_magnitude(limbs[:4], sign == _NEGATIVE)
    result = wide.decimals(low, high, validity_buffer(valid), arrow_type(t))
    rows = np.flatnonzero(odd)
    if not rows.size:
        return result
    return pc.replace_with_mask(
        result, pa.array(odd), decode_rows(array, rows, partial(parse, t=t), arrow_type(t))
    )


def parse(raw: bytes, t: SqlType) -> Decimal:
    """One binary numeric."""
    if len(raw) < 2 * _HEADER:
        raise bad_binary()
    count, weight, sign, _ = struct.unpack_from("!HhHH", raw)
    if sign == _NAN or sign in _INFINITIES:
        raise Unsupported(
            "NaN and infinities are not supported for type numeric", hint="Use double precision for them."
        )
    if sign not in (0, _NEGATIVE) or len(raw) != 2 * (_HEADER + count):
        raise bad_binary()
    digits = struct.unpack_from(f"!{count}H", raw, 2 * _HEADER)
    if any(d > 9999 for d in digits):
        raise bad_binary()
    unscaled = 0
    for d in digits:
        unscaled = unscaled * 10_000 + d
    value = Decimal(-unscaled if sign else unscaled).scaleb(4 * (weight - count + 1))
    return fit_numeric(value, t)
