"""Human-readable sizes in bytes: pg_size_pretty and pg_size_bytes."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal

from tidemill.errors import InvalidValue

_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
# Units with the bits of their size. A unit is used below about ten thousand; bytes below 10 kB.
_UNITS = (("bytes", 0), ("kB", 10), ("MB", 20), ("GB", 30), ("TB", 40), ("PB", 50))
_BYTES_BELOW = 10 * 1024
# In halves of the unit, since the shown value is rounded.
_HALVES_BELOW = 20 * 1024 - 1
_BY_NAME = {name.lower(): 1 << bits for name, bits in _UNITS} | {"b": 1}
_WRITTEN = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*", re.DOTALL)


def pretty(size: int | Decimal) -> str:
    if abs(size) < _BYTES_BELOW:
        shown = format(_EXACT.normalize(size), "f") if isinstance(size, Decimal) else str(size)
        return f"{shown} bytes"
    negative, rest = size < 0, abs(int(size))
    for name, bits in _UNITS[1:]:
        halves = rest >> (bits - 1)
        if halves < _HALVES_BELOW or name == _UNITS[-1][0]:
            return f"{'-' if negative else ''}{(halves + 1) // 2} {name}"
    raise AssertionError


def in_bytes(text: str) -> int:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise InvalidValue(f'invalid size: "{text}"', sqlstate="22023")
    number, unit = found.groups()
    factor = _BY_NAME.get(unit.lower()) if unit else 1
    if factor is None:
        raise InvalidValue(
            f'invalid size: "{text}"',
            detail=f'Invalid size unit: "{unit}".',
            hint='Valid units are "bytes", "B", "kB", "MB", "GB", "TB", and "PB".',
            sqlstate="22023",
        )
    size = _EXACT.multiply(Decimal(number), Decimal(factor)).to_integral_value(ROUND_HALF_UP)
    if not -(1 << 63) <= size < 1 << 63:
        raise InvalidValue("bigint out of range", sqlstate="22003")
    return int(size)
