"""Interval input, for single values: the styles postgres, postgres_verbose, sql_standard and ISO 8601."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

from tidemill.errors import InvalidValue
from tidemill.types.wire.calendar import MICROS_PER_DAY

# months, days, microseconds
Interval = tuple[int, int, int]

# PostgreSQL's infinite intervals have the extreme value in every field.
INFINITY: Interval = (2**31 - 1, 2**31 - 1, 2**63 - 1)
MINUS_INFINITY: Interval = (-(2**31), -(2**31), -(2**63))

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|@)
    |(?P<clock>[+-]?\d+:\d+(?::\d+(?:\.\d*)?|\.\d*)?)
    |(?P<yearmonth>[+-]?\d+-\d+)
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))
    |(?P<word>[a-zµ]+)""",
    re.VERBOSE | re.ASCII,
)

_MONTH_UNITS = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_DAY_UNITS = {"day": 1, "week": 7}
_MICRO_UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
}
_SPELLINGS = {
    "microsecond": "us usec usecs usecond useconds microsecond microseconds microsecon",
    "millisecond": "ms msec msecs msecond mseconds millisecond milliseconds millisecon",
    "second": "s sec secs second seconds",
    "minute": "m min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "d day days",
    "week": "w week weeks",
    "month": "mon mons month months",
    "year": "y yr yrs year years",
    "decade": "dec decs decade decades",
    "century": "c cent century centuries",
    "millennium": "mil mils millennia millennium",
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}

_ISO_FIELD = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([A-Z])", re.ASCII)
_ISO_DATE = re.compile(r"(-?\d+)-(-?\d+)-(-?\d+)", re.ASCII)
_ISO_CLOCK = re.compile(r"(-?\d+):(-?\d+):(-?\d+(?:\.\d*)?)", re.ASCII)
_ISO_UNITS = {"Y": "year", "M": "month", "W": "week", "D": "day"}
_ISO_CLOCK_UNITS = {"H": "hour", "M": "minute", "S": "second"}


def parse_interval(text: str) -> Interval:
    """Months, days and microseconds. Raises 22007 if the text is not an interval, and 22015 if a field is too
    large."""
    if len(text) > 1000:
        raise _syntax(text)
    body = text.strip(" \t\n\v\f\r")
    lowered = body.lower()
    if lowered in ("infinity", "+infinity"):
        return INFINITY
    if lowered == "-infinity":
        return MINUS_INFINITY
    total = _Sum(text)
    if body.startswith("P"):
        _read_iso(body[1:], total)
    else:
        _read_words(lowered, total)
    return total.result()


def _syntax(text: str) -> InvalidValue:
    return InvalidValue(f'invalid input syntax for type interval: "{text}"', sqlstate="22007")


class _Sum:
    """Adds up fields. Fractions of a unit are carried to smaller units as in PostgreSQL."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.months = 0
        self.days = 0
        self.micros = 0
        self.seen: set[str] = set()

    def add(self, unit: str, amount: Decimal) -> None:
        if unit in self.seen:
            raise _syntax(self.text)
        self.seen.add(unit)
        if abs(amount.adjusted()) > 30:
            raise self.overflow()
        whole = int(amount)
        fraction = amount - whole
        if unit == "month":
            self.months += whole
            self.add_days(fraction * 30)
        elif unit in _MONTH_UNITS:
            self.months += whole * _MONTH_UNITS[unit] + _rounded(fraction * _MONTH_UNITS[unit])
        elif unit in _DAY_UNITS:
            self.days += whole * _DAY_UNITS[unit]
            self.add_days(fraction * _DAY_UNITS[unit])
        else:
            self.micros += _rounded(amount * _MICRO_UNITS[unit])

    def add_days(self, days: Decimal) -> None:
        whole = int(days)
        self.days += whole
        self.micros += _rounded((days - whole) * MICROS_PER_DAY)

    def add_clock(self, sign: int, hours: int, minutes: int, seconds: Decimal) -> None:
        if minutes > 59 or seconds > 60:
            raise self.overflow()
        if "hour" in self.seen or "minute" in self.seen or "second" in self.seen:
            raise _syntax(self.text)
        self.seen |= {"hour", "minute", "second"}
        self.micros += sign * ((hours * 60 + minutes) * 60_000_000 + _rounded(seconds * 1_000_000))

    def overflow(self) -> InvalidValue:
        return InvalidValue(f'interval field value out of range: "{self.text}"', sqlstate="22015")

    def negate(self) -> None:
        self.months, self.days, self.micros = -self.months, -self.days, -self.micros

    def result(self) -> Interval:
        if not self.seen:
            raise _syntax(self.text)
        if not (_fits(self.months, 31) and _fits(self.days, 31) and _fits(self.micros, 63)):
            raise self.overflow()
        if (self.months, self.days, self.micros) in (INFINITY, MINUS_INFINITY):
            raise InvalidValue("interval out of range", sqlstate="22008")
        return self.months, self.days, self.micros


def _fits(value: int, bits: int) -> bool:
    return -(2**bits) <= value < 2**bits


def _rounded(amount: Decimal) -> int:
    return int(amount.to_integral_value(ROUND_HALF_EVEN))


def _read_words(body: str, total: _Sum) -> None:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(body):
        match = _TOKEN.match(body, at)
        if match is None:
            raise _syntax(total.text)
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match[0]))
        at = match.end()
        if match.lastgroup == "yearmonth" and body[at : at + 1] in ("-", "+", "."):
            # A date is not an interval.
            tokens.append(("other", ""))
            break
    ago = bool(tokens) and tokens[-1] == ("word", "ago")
    if ago:
        tokens.pop()
    i = 0
    while i < len(tokens):
        kind, token = tokens[i]
        following = tokens[i + 1] if i + 1 < len(tokens) else None
        i += 1
        if kind == "clock":
            _read_clock(token, total)
        elif kind == "yearmonth":
            sign = -1 if token.startswith("-") else 1
            years, months = token.lstrip("+-").split("-")
            if int(months) > 11:
                raise total.overflow()
            total.add("year", Decimal(sign * int(years)))
            total.add("month", Decimal(sign * int(months)))
        elif kind == "number":
            unit = "second"
            if following is not None and following[0] == "word":
                i += 1
                unit = _UNITS.get(following[1], "")
                if not unit:
                    raise _syntax(total.text)
            elif following is not None and following[0] == "clock":
                unit = "day"
            elif following is not None:
                raise _syntax(total.text)
            total.add(unit, Decimal(token))
        else:
            raise _syntax(total.text)
    if ago:
        total.negate()


def _read_clock(token: str, total: _Sum) -> None:
    sign = -1 if token.startswith("-") else 1
    parts = token.lstrip("+-").split(":")
    if len(parts) == 2 and "." in parts[1]:
        # mm:ss.fff
        total.add_clock(sign, 0, int(parts[0]), Decimal(parts[1].rstrip(".")))
        return
    seconds = Decimal(parts[2].rstrip(".")) if len(parts) == 3 else Decimal(0)
    if len(parts[0]) > 15:
        raise total.overflow()
    total.add_clock(sign, int(parts[0]), int(parts[1]), seconds)


def _read_iso(body: str, total: _Sum) -> None:
    date, mark, clock = body.partition("T")
    if mark:
        total.seen.add("")  # `PT` alone is a valid interval of zero
    for part, units, pattern in ((date, _ISO_UNITS, _ISO_DATE), (clock, _ISO_CLOCK_UNITS, _ISO_CLOCK)):
        if not part:
            continue
        match = pattern.fullmatch(part)
        if match is not None:
            names = ("year", "month", "day") if pattern is _ISO_DATE else ("hour", "minute", "second")
            for name, amount in zip(names, match.groups(), strict=True):
                total.add(name, Decimal(amount.rstrip(".")))
            continue
        at = 0
        for field in _ISO_FIELD.finditer(part):
            if field.start() != at or field[2] not in units:
                raise _syntax(total.text)
            total.add(units[field[2]], Decimal(field[1]))
            at = field.end()
        if at != len(part):
            raise _syntax(total.text)
