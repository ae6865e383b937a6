"""Numbers in settings, with and without units: whole numbers, floats, durations and sizes.

Called by `setting_checks` and `variables`. Reads the forms that PostgreSQL reads (`parse_int` and
`parse_real` of its guc.c): other bases, fractions that are rounded, spaces, units. Returns the value as SHOW
prints it, and raises PostgreSQL's errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemill.errors import InvalidValue

INT_MAX = 2**31 - 1

# Hexadecimal, octal and decimal as C's strtol reads them, and decimal fractions; then an optional unit.
_WHOLE = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(
    r"\s*[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", re.I
)
# Longer than any unit.
_UNIT = re.compile(r"\s*(\S{1,3})\s*")


@dataclass(frozen=True, slots=True)
class SettingUnit:
    """The unit of a setting: `name` is the unit of a bare number."""

    name: str
    hint: str
    # The size of each unit in the setting's own unit, the largest first.
    units: Mapping[str, float]


MILLISECONDS = SettingUnit(
    "ms",
    'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".',
    {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1, "us": 0.001},
)
KILOBYTES = SettingUnit(
    "kB",
    'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".',
    {"TB": 1 << 30, "GB": 1 << 20, "MB": 1 << 10, "kB": 1, "B": 1 / 1024},
)


def invalid(name: str, value: str, hint: str | None = None, detail: str | None = None) -> InvalidValue:
    text = f'invalid value for parameter "{name}": "{value}"'
    return InvalidValue(text, sqlstate="22023", hint=hint, detail=detail)


def parse_integer(name: str, value: str, low: int, high: int, unit: SettingUnit | None = None) -> int:
    """The value in the setting's own unit."""
    n, end = _whole(name, value)
    n = round(_converted(name, value, n, end, unit))  # half to even, as C's rint
    if high <= INT_MAX and not -INT_MAX - 1 <= n <= INT_MAX:
        raise invalid(name, value, "Value exceeds integer range.")
    if not low <= n <= high:
        raise _outside(name, str(n), str(low), str(high), unit)
    return n


def _whole(name: str, value: str) -> tuple[float, int]:
    """The number at the start of the text, and the position of its end."""
    found = _WHOLE.match(value)
    if found is None and not value.startswith("."):
        raise invalid(name, value)
    if found is None or value[found.end() : found.end() + 1] in (".", "e", "E"):
        return _float(name, value)
    digits = found[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
    if base == 8:
        octal = re.match("0[0-7]*", digits)
        assert octal is not None
        digits, end = octal[0], found.start(2) + octal.end()
    else:
        end = found.end()
    return (-1 if found[1] == "-" else 1) * int(digits, base), end


def _float(name: str, value: str) -> tuple[float, int]:
    found = _FLOAT.match(value)
    if found is None:
        raise invalid(name, value)
    text = found[0].strip()
    n = float(int(text, 16)) if "x" in text.lower() else float(text)
    if math.isnan(n) or (math.isinf(n) and "inf" not in text.lower()):
        raise invalid(name, value)
    return n, found.end()


def _converted(name: str, value: str, n: float, end: int, unit: SettingUnit | None) -> float:
    rest = value[end:].strip()
    if not rest:
        return n
    if unit is None:
        raise invalid(name, value)
    found = _UNIT.fullmatch(value, end)
    if found is None or found[1] not in unit.units:
        raise invalid(name, value, unit.hint)
    given = unit.units[found[1]]
    n *= given
    # A fraction of a unit is rounded to a whole number of the next smaller unit.
    smaller = [size for size in unit.units.values() if size < given]
    if smaller and math.isfinite(n):
        n = round(n / smaller[0]) * smaller[0]
    return n


def _outside(name: str, value: str, low: str, high: str, unit: SettingUnit | None) -> InvalidValue:
    of = "" if unit is None else f" {unit.name}"
    return InvalidValue(
        f'{value}{of} is outside the valid range for parameter "{name}" ({low}{of} .. {high}{of})',
        sqlstate="22023",
    )


def integer(low: int, high: int, unit: SettingUnit | None = None) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        return shown(parse_integer(name, value, low, high, unit), unit)

    return check


def shown(number: int, unit: SettingUnit | None) -> str:
    """The value in the largest unit of which it is a whole number."""
    if unit is None or number <= 0:
        return str(number)
    for name, size in unit.units.items():
        if size >= 1 and number % int(size) == 0:
            return f"{number // int(size)}{name}"
    return str(number)


def number(low: float, high: float) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        n, end = _float(name, value)
        n = _converted(name, value, n, end, None)
        if not low <= n <= high:
            raise _outside(name, _shown_float(n), f"{low:g}", f"{high:g}", None)
        return f"{n:g}"

    return check


def _shown_float(n: float) -> str:
    return f"{n:g}".replace("inf", "Infinity")


def duration_ms(name: str, value: str) -> int:
    """Milliseconds of `'5s'`, `'250ms'`, `'1min'` or a bare number of milliseconds."""
    return parse_integer(name, value, 0, INT_MAX, MILLISECONDS)


duration = integer(0, INT_MAX, MILLISECONDS)
