"""Column forms of byte strings: bytes, text, uuid, decimals, intervals.

As in `numbers`, a form supports both ways of reading: the spans of a whole column (`column`), and one value
(`value`, which raises Unreadable).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidemill.decode.cursor import MessageCursor
from tidemill.decode.reader import Unreadable
from tidemill.decode.utf8 import texts, why_no_text
from tidemill.errors import InvalidValue
from tidemill.types.arrow import arrow_type, decimal_shape
from tidemill.types.columns import bytes_of_rows, validity_buffer
from tidemill.types.model import BYTEA, INTERVAL, TEXT, UUID, SqlType
from tidemill.types.wide import at_least, decimals, magnitude
from tidemill.types.wire.input_strings import parse_uuid


class ByteForm(Protocol):
    @property
    def type(self) -> SqlType: ...

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array: ...

    def value(self, raw: bytes) -> Any: ...


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes as they are: bytea, or a uuid of 16 bytes."""

    type: SqlType = BYTEA

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        return cursor.bytes.column(start, stop, live)

    def value(self, raw: bytes) -> bytes:
        return raw


@dataclass(frozen=True, slots=True)
class Text:
    type: SqlType = TEXT

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        text, wrong = texts(cursor.bytes.column(start, stop, live))
        if wrong is not None:
            cursor.doubt |= wrong
        return text

    def value(self, raw: bytes) -> str:
        why = why_no_text(raw)
        if why is not None:
            raise Unreadable(why)
        return raw.decode()


# Positions of the digits and hyphens in a uuid in its usual form.
_UUID_BYTES = 36
_HYPHENS = np.array([8, 13, 18, 23])
_DIGITS = np.delete(np.arange(_UUID_BYTES), _HYPHENS)
_NO_DIGIT = 255
_DIGIT_VALUES = np.full(256, _NO_DIGIT, dtype=np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _DIGIT_VALUES[np.frombuffer(_digits, dtype=np.uint8)] = np.arange(16)


@dataclass(frozen=True, slots=True)
class UuidText:
    """A uuid in 36 characters. PostgreSQL's other spellings are left to the slow reader."""

    type: SqlType = UUID

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        width = _UUID_BYTES
        odd = stop - start != width
        octets = cursor.bytes.octets
        at = np.minimum(start, len(octets) - width)[:, None]
        values = _DIGIT_VALUES[octets[at + _DIGITS]]
        odd |= (values == _NO_DIGIT).any(axis=1) | (octets[at + _HYPHENS] != ord("-")).any(axis=1)
        cursor.suspect(odd, live)
        valid = ~odd if live is None else live & ~odd
        return bytes_of_rows((values[:, 0::2] << np.uint8(4)) | (values[:, 1::2] & np.uint8(15)), valid)

    def value(self, raw: bytes) -> bytes:
        text = Text().value(raw)
        try:
            return parse_uuid(text)
        except InvalidValue as error:
            raise Unreadable(error.primary) from None


@dataclass(frozen=True, slots=True)
class DecimalBytes:
    """A decimal's digits as a big-endian two's complement of any length."""

    type: SqlType

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        low, high, long = unscaled(cursor, start, stop)
        outside = self._outside(low, high, stop - start) | long
        if outside.any():
            cursor.suspect(outside, live)
            low, high = np.where(outside, np.uint64(0), low), np.where(outside, 0, high)
        return decimals(low, high, None if live is None else validity_buffer(live), arrow_type(self.type))

    def _outside(self, low: np.ndarray, high: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Whether a number has more digits than the precision."""
        precision, _ = decimal_shape(self.type)
        if len(length) and int(length.max()) > 8:
            limbs, _ = magnitude(low, high)
            return at_least(limbs, 10**precision)
        if precision > 18:
            return np.zeros(len(low), dtype=np.bool_)
        small = low.view(np.int64)
        return (small >= 10**precision) | (small <= -(10**precision))

    def value(self, raw: bytes) -> Decimal:
        number = int.from_bytes(raw, "big", signed=True)
        precision, scale = decimal_shape(self.type)
        if abs(number) >= 10**precision:
            raise Unreadable(f"a decimal of {len(raw)} bytes does not fit numeric({precision},{scale})")
        return scaled(number, scale)


def scaled(number: int, scale: int) -> Decimal:
    """number * 10^-scale, for any number of digits."""
    sign, digits = int(number < 0), tuple(int(d) for d in str(abs(number)))
    return Decimal((sign, digits, -scale))


def unscaled(
    cursor: MessageCursor, start: np.ndarray, stop: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Big-endian numbers of up to 16 bytes as (low uint64, high int64), and which ones are longer."""
    length = stop - start
    last = cursor.bytes.words[stop - 8].byteswap()
    low = _sign_extended(last, length)
    high = low >> 63
    long = length > 16
    wide = np.flatnonzero((length > 8) & ~long)
    if len(wide):
        low[wide] = last[wide].view(np.int64)
        high[wide] = _sign_extended(cursor.bytes.words[stop[wide] - 16].byteswap(), length[wide] - 8)
    return low.view(np.uint64), high, long


def _sign_extended(words: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The last `length` bytes of each word as a signed number."""
    foreign = (64 - 8 * np.clip(length, 1, 8)).astype(np.int64)
    values = (words.view(np.int64) << foreign) >> foreign
    return np.where(length > 0, values, 0)


_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Duration:
    type: SqlType = INTERVAL

    def column(
        self, cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None
    ) -> pa.Array:
        parts = [cursor.bytes.view("<u4")[start + at].astype(np.int64) for at in (0, 4, 8)]
        outside = (parts[0] > _MOST) | (parts[1] > _MOST)
        cursor.suspect(outside, live)
        target = arrow_type(self.type)
        fields = [
            pa.array(part, target.field(i).type)
            for i, part in enumerate(
                (np.minimum(parts[0], _MOST), np.minimum(parts[1], _MOST), parts[2] * 1000)
            )
        ]
        valid = None if live is None else validity_buffer(live)
        return pa.Array.from_buffers(target, len(start), [valid], children=fields)

    def value(self, raw: bytes) -> dict[str, int]:
        months, days, millis = (int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8))
        if months > _MOST or days > _MOST:
            raise Unreadable("interval out of range")
        return {"months": months, "days": days, "micros": millis * 1000}
