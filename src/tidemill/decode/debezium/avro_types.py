"""Debezium types unknown to Avro, read as the types of the upstream where this loses nothing.

Debezium writes the infinities of PostgreSQL as special numbers, which are known for timestamps. For dates
they differ between releases, and are out of range here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

import numpy as np
import pyarrow as pa

from tidemill.decode.avro.plan import Leaf
from tidemill.decode.binaries import ByteForm, Text, UuidText, scaled, unscaled
from tidemill.decode.cursor import MessageCursor, zigzag
from tidemill.decode.debezium.placeholders import PLACEHOLDER
from tidemill.decode.json import JsonColumns, canonical_value
from tidemill.decode.merge import merge
from tidemill.decode.numbers import INT
from tidemill.decode.reader import MessageReader, Unreadable
from tidemill.errors import InvalidValue, TidemillError
from tidemill.types.arrow import NUMERIC_PRECISION, NUMERIC_SCALE, arrow_type
from tidemill.types.kernels import pc
from tidemill.types.model import JSONB, NUMERIC, TIMESTAMPTZ, SqlType
from tidemill.types.wide import decimals
from tidemill.types.wire.calendar import (
    FIRST_TIMESTAMP,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    days_from_civil,
    days_in_month,
)
from tidemill.types.wire.input_times import parse_timestamp

_MICRO_INFINITIES = {
    9_223_372_036_825_200_000: TIMESTAMP_INFINITY,
    -9_223_372_036_832_400_000: TIMESTAMP_MINUS_INFINITY,
}
_MILLI_INFINITIES = {number // 1000: end for number, end in _MICRO_INFINITIES.items()}


def infinities(unit: str) -> Mapping[int, int]:
    """The numbers that represent PostgreSQL's infinite timestamps, in `millis` or `micros`."""
    return _MILLI_INFINITIES if unit == "millis" else _MICRO_INFINITIES


@dataclass(frozen=True, slots=True)
class JsonText:
    type: SqlType = JSONB
    columns: JsonColumns = field(default_factory=JsonColumns)

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        text = Text().column(cursor, start, stop, live)
        values, errors = self.columns.canonical(text)
        if errors:
            cursor.doubt[list(errors)] = True
        return values

    def value(self, raw: bytes) -> str:
        text = Text().value(raw)
        if text == PLACEHOLDER:
            return f'"{text}"'
        found = canonical_value(text)
        if isinstance(found, TidemillError):
            raise Unreadable(found.primary)
        return found


# In UTC, with four-digit years: Arrow reads these like PostgreSQL.
_REGULAR = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"
# Years before 1 and after 9999, in Java's form: 0 is 1 BC.
_FAR = re.compile(r"([+-]\d{4,9}|0000)-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ZonedText:
    """ISO 8601 in UTC."""

    type: SqlType = TIMESTAMPTZ

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        text = Text().column(cursor, start, stop, live)
        regular = pc.and_not(pc.match_substring_regex(text, _REGULAR), pc.starts_with(text, "0000"))
        odd = ~pc.fill_null(regular, False).to_numpy(zero_copy_only=False)
        cursor.suspect(odd, live)
        naive = pc.utf8_slice_codeunits(pc.if_else(pa.array(odd), None, text), 0, -1)
        try:
            return naive.cast(pa.timestamp("us")).cast(arrow_type(self.type))
        except pa.ArrowInvalid:  # a month 13: each is read separately
            cursor.suspect(~odd, live)
            return pa.nulls(len(text), arrow_type(self.type))

    def value(self, raw: bytes) -> int:
        text = Text().value(raw)
        far = _FAR.fullmatch(text)
        if far is not None:
            return _far_micros(text, far)
        try:
            return parse_timestamp(text, TIMESTAMPTZ, "UTC")
        except InvalidValue as error:
            raise Unreadable(error.primary) from None


def _far_micros(text: str, found: re.Match[str]) -> int:
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    real = 1 <= month <= 12 and 1 <= day <= days_in_month(year, month)
    if not real or hour > 23 or minute > 59 or second > 59:
        raise Unreadable(f'date/time field value out of range: "{text}"')
    seconds = hour * 3600 + minute * 60 + second
    fraction = int((found[7] or "").ljust(6, "0"))
    micros = days_from_civil(year, month, day) * MICROS_PER_DAY + seconds * 1_000_000 + fraction
    if not FIRST_TIMESTAMP <= micros <= LAST_TIMESTAMP:
        raise Unreadable(f'timestamp out of range: "{text}"')
    return micros


# Created for each field, because it adapts to the values of its field.
TEXT_FORMS: dict[str, Callable[[], ByteForm]] = {
    "io.debezium.time.ZonedTimestamp": ZonedText,
    "io.debezium.data.Uuid": UuidText,
    "io.debezium.data.Json": JsonText,
}

# 15 bytes have fewer than 38 digits.
_SAFE_BYTES = 15
# More digits and larger scales are not examined, because they do not fit.
MAX_DIGITS = 4000
_ROUNDING = Context(prec=2 * MAX_DIGITS, rounding=ROUND_HALF_UP)


class VariableDecimalNode(Leaf):
    """A number of PostgreSQL's numeric without precision: its scale, then its digits."""

    type = arrow_type(NUMERIC)
    least = 2

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        scale = zigzag(cursor.small_varints(live))
        start, stop = cursor.spans(zigzag(cursor.small_varints(live)), live)
        low, high, _ = unscaled(cursor, start, stop)
        odd = (scale < 0) | (scale > NUMERIC_SCALE) | (stop - start > _SAFE_BYTES)
        there = ~odd if live is None else live & ~odd
        parts: list[tuple[np.ndarray, pa.Array]] = []
        for each in np.unique(scale[there]).tolist():
            rows = np.flatnonzero(there & (scale == each))
            exact = decimals(low[rows], high[rows], None, pa.decimal128(NUMERIC_PRECISION, each))
            try:
                parts.append((rows, exact.cast(self.type)))
            except pa.ArrowInvalid:  # a number has too many digits before the point
                odd[rows] = True
        cursor.suspect(odd, live)
        return merge(len(cursor), parts, self.type)

    def one(self, reader: MessageReader) -> Decimal:
        scale = INT.value(reader.zigzag())
        number = int.from_bytes(reader.take(reader.zigzag()), "big", signed=True)
        if abs(scale) > MAX_DIGITS or number.bit_length() > 3 * MAX_DIGITS:
            raise Unreadable("value overflows numeric format")
        with localcontext(_ROUNDING):
            value = scaled(number, scale).quantize(Decimal(1).scaleb(-NUMERIC_SCALE))
        if abs(value) >= 10 ** (NUMERIC_PRECISION - NUMERIC_SCALE):
            raise Unreadable("value overflows numeric format")
        return value
