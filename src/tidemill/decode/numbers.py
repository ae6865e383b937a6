"""Column forms of numbers: integers with their bounds, dates, times, timestamps, floats.

A form knows the storage type of its column and supports both ways of reading: a whole column of numbers
(`column`, with a cursor whose `doubt` it sets), and one number (`value`, which raises Unreadable).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.cursor import MessageCursor
from tidemill.decode.reader import Unreadable
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import validity_buffer
from tidemill.types.model import BOOL, DATE, FLOAT4, FLOAT8, INT4, INT8, TIME, TIMESTAMP, TIMESTAMPTZ, SqlType
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    LAST_DAY,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)

_BITS_32 = (-(2**31), 2**31 - 1)
_BITS_64 = (-(2**63), 2**63 - 1)
_MILLI = 1000
_DATE_ENDS = {DATE_INFINITY: DATE_INFINITY, DATE_MINUS_INFINITY: DATE_MINUS_INFINITY}
_TIMESTAMP_ENDS = {
    TIMESTAMP_INFINITY: TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY: TIMESTAMP_MINUS_INFINITY,
}


def plain_column(
    values: np.ndarray, target: pa.DataType, live: np.ndarray | None, *, bits: bool = False
) -> pa.Array:
    """A column of fixed width from its numbers, null where not `live`."""
    valid = None if live is None else validity_buffer(live)
    data = np.packbits(values, bitorder="little") if bits else np.ascontiguousarray(values)
    return pa.Array.from_buffers(target, len(values), [valid, pa.py_buffer(data)])


@dataclass(frozen=True, slots=True)
class Whole:
    """Integers between `low` and `high`, times `factor`. `special` are numbers outside this range with
    another meaning (infinities). They are rare, so the cursor doubts them."""

    type: SqlType
    dtype: type[Any]
    low: int = _BITS_64[0]
    high: int = _BITS_64[1]
    factor: int = 1
    name: str = "number"
    special: Mapping[int, int] = field(default_factory=dict[int, int])

    def column(self, cursor: MessageCursor, values: np.ndarray, live: np.ndarray | None = None) -> pa.Array:
        if (self.low, self.high) != _BITS_64:
            outside = (values < self.low) | (values > self.high)
            if outside.any():
                cursor.suspect(outside, live)
                values = np.where(outside, 0, values)
        if self.factor != 1:
            values = values * self.factor
        return plain_column(values.astype(self.dtype, copy=False), arrow_type(self.type), live)

    def value(self, number: int) -> Any:
        if number in self.special:
            return self.special[number]
        if not self.low <= number <= self.high:
            raise Unreadable(f"{self.name} out of range: {number}")
        return self.dtype(number).item() if self.factor == 1 else number * self.factor


INT = Whole(INT4, np.int32, *_BITS_32, name="int")
LONG = Whole(INT8, np.int64, name="long")
DAYS = Whole(DATE, np.int32, FIRST_DAY, LAST_DAY, name="date", special=_DATE_ENDS)
TIME_MILLIS = Whole(TIME, np.int64, 0, MICROS_PER_DAY // _MILLI, _MILLI, name="time")
TIME_MICROS = Whole(TIME, np.int64, 0, MICROS_PER_DAY, name="time")


def timestamp_form(*, millis: bool, zoned: bool, special: Mapping[int, int] | None = None) -> Whole:
    """Milliseconds or microseconds since 1970. `special` numbers are the first on either side that are not
    times. Without them, the smallest and largest 64-bit number are infinities if the unit is microseconds."""
    unit = _MILLI if millis else 1
    if special is None:
        special = {} if millis else _TIMESTAMP_ENDS
    return Whole(
        TIMESTAMPTZ if zoned else TIMESTAMP,
        np.int64,
        -(-FIRST_TIMESTAMP // unit),
        min(LAST_TIMESTAMP // unit, max(special, default=2**63) - 1),
        unit,
        name="timestamp",
        special=special,
    )


@dataclass(frozen=True, slots=True)
class Real:
    """Floats of 4 or 8 bytes. Every NaN becomes the same NaN."""

    type: SqlType

    @property
    def dtype(self) -> type[Any]:
        return np.float32 if self.type == FLOAT4 else np.float64

    def column(self, values: np.ndarray, live: np.ndarray | None = None) -> pa.Array:
        # Doubles outside the range of float become infinite, and copying a signaling NaN raises a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            values = values.astype(self.dtype, copy=False)
        odd = np.isnan(values)
        if odd.any():
            values = np.where(odd, self.dtype(np.nan), values)
        return plain_column(values, arrow_type(self.type), live)

    def value(self, number: float) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            return float(self.dtype(number))


SINGLE = Real(FLOAT4)
DOUBLE = Real(FLOAT8)


def booleans(cursor: MessageCursor, octets: np.ndarray, live: np.ndarray | None = None) -> pa.Array:
    """From bytes that are 0 or 1."""
    odd = octets > 1
    if odd.any():
        cursor.suspect(odd, live)
    return plain_column(octets == 1, arrow_type(BOOL), live, bits=True)
