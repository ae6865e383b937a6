"""Parts of dates, times, timestamps and intervals: EXTRACT, date_part and date_trunc, for every unit.

Spark computes the common units (`functions.extract`). This module computes the others, and units that are
not constants.
"""

from __future__ import annotations

from decimal import Context, Decimal

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.calendar import (
    iso_week,
    julian_day,
    local_offset,
    monday_of_week,
    to_local,
)
from tidemill.sql.scalar.making import at_zone, in_zone, read_zone
from tidemill.sql.scalar.spans import Interval, is_endless, is_infinite
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    MICROS_PER_DAY,
    civil_from_days,
    days_from_civil,
)

_EXACT = Context(prec=60)

# Other spellings of units.
PLURALS = {
    **{f"{u}s": u for u in ("year", "month", "day", "hour", "minute", "second", "week", "decade")},
    "centuries": "century",
    "c": "century",
    "cent": "century",
    "millennia": "millennium",
    "mil": "millennium",
    "mils": "millennium",
    "dec": "decade",
    "decs": "decade",
    "qtr": "quarter",
    "y": "year",
    "yr": "year",
    "yrs": "year",
    "mon": "month",
    "mons": "month",
    "w": "week",
    "d": "day",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "millisecond": "milliseconds",
    "ms": "milliseconds",
    "msec": "milliseconds",
    "msecs": "milliseconds",
    "microsecond": "microseconds",
    "us": "microseconds",
    "usec": "microseconds",
    "usecs": "microseconds",
    "timezone_h": "timezone_hour",
    "timezone_m": "timezone_minute",
}
# Parts that intervals have too, and parts of a moment alone.
_SPAN = frozenset(
    [
        "microseconds",
        "milliseconds",
        "second",
        "minute",
        "hour",
        "day",
        "week",
        "month",
        "quarter",
        "year",
        "decade",
        "century",
        "millennium",
        "epoch",
    ]
)
_ZONE = frozenset({"timezone", "timezone_hour", "timezone_minute"})
UNITS = _SPAN | _ZONE | {"dow", "isodow", "doy", "isoyear", "julian"}
_CLOCK = frozenset({"hour", "minute", "second", "milliseconds", "microseconds"})
# Units that grow with time: of infinity they are infinite, the others NULL.
GROWING = frozenset({"year", "isoyear", "decade", "century", "millennium", "julian", "epoch"})


def unit_of(name: str, type_name: str) -> str:
    lower = name.lower()
    found = PLURALS.get(lower, lower)
    if found not in UNITS:
        raise InvalidValue(f'unit "{lower}" not recognized for type {type_name}', sqlstate="22023")
    return found


def unsupported_unit(unit: str, type_name: str) -> Unsupported:
    return Unsupported(f'unit "{unit}" not supported for type {type_name}')


def _endless(unit: str) -> None:
    if unit in GROWING:
        raise InvalidValue(
            "value overflows numeric format", detail="numeric has no infinity here.", sqlstate="22003"
        )


def _cut(value: int, by: int) -> int:
    return abs(value) // by * (1 if value >= 0 else -1)


def of_date(name: str, days: int) -> Decimal | None:
    unit = unit_of(name, "date")
    if unit in _CLOCK or unit in _ZONE:
        raise unsupported_unit(unit, "date")
    if days in (DATE_INFINITY, DATE_MINUS_INFINITY):
        return _endless(unit)
    if unit == "epoch":
        return Decimal(days) * 86_400
    if unit == "julian":
        return Decimal(julian_day(days))
    return Decimal(_calendar(unit, days))


def of_time(name: str, micros: int) -> Decimal:
    unit = unit_of(name, "time without time zone")
    if unit == "epoch":
        return Decimal(micros) / 1_000_000
    if unit not in _CLOCK:
        raise unsupported_unit(unit, "time without time zone")
    return _clock(unit, micros)


def of_timestamp(name: str, stamp: int) -> Decimal | None:
    return _of_local(unit_of(name, "timestamp without time zone"), stamp, "timestamp without time zone")


def of_timestamptz(name: str, stamp: int, zone: str) -> Decimal | None:
    unit = unit_of(name, "timestamp with time zone")
    if is_endless(stamp):
        return _endless(unit)
    if unit == "epoch":
        return Decimal(stamp) / 1_000_000
    if unit in _ZONE:
        offset = local_offset(stamp, zone)
        if unit == "timezone":
            return Decimal(offset)
        return Decimal(
            _cut(offset, 3600) if unit == "timezone_hour" else _cut(offset, 60) - _cut(offset, 3600) * 60
        )
    return _of_local(unit, to_local(stamp, zone), "timestamp with time zone")


def _of_local(unit: str, stamp: int, type_name: str) -> Decimal | None:
    if unit in _ZONE:
        raise unsupported_unit(unit, type_name)
    if is_endless(stamp):
        return _endless(unit)
    if unit == "epoch":
        return Decimal(stamp) / 1_000_000
    days, micros = divmod(stamp, MICROS_PER_DAY)
    if unit in _CLOCK:
        return _clock(unit, micros)
    if unit == "julian":
        return julian_day(days) + _EXACT.divide(Decimal(micros), Decimal(MICROS_PER_DAY))
    return Decimal(_calendar(unit, days))


def _clock(unit: str, micros: int) -> Decimal:
    seconds = Decimal(micros % 60_000_000)
    if unit == "hour":
        return Decimal(micros // 3_600_000_000)
    if unit == "minute":
        return Decimal(micros // 60_000_000 % 60)
    return seconds / {"second": 1_000_000, "milliseconds": 1000, "microseconds": 1}[unit]


def _calendar(unit: str, days: int) -> int:
    year, month, day = civil_from_days(days)
    if unit in ("week", "isoyear"):
        iso_year, week, _ = iso_week(days)
        return week if unit == "week" else iso_year if iso_year > 0 else iso_year - 1
    if unit == "year":
        return year if year > 0 else year - 1
    if unit == "decade":
        return year // 10 if year >= 0 else -((8 - (year - 1)) // 10)
    if unit in ("century", "millennium"):
        width = 100 if unit == "century" else 1000
        return (year + width - 1) // width if year > 0 else -((width - 1 - (year - 1)) // width)
    return {
        "quarter": (month - 1) // 3 + 1,
        "month": month,
        "day": day,
        "dow": (days + 4) % 7,
        "isodow": (days + 3) % 7 + 1,
        "doy": days - days_from_civil(year, 1, 1) + 1,
    }[unit]


def of_interval(name: str, span: Interval) -> Decimal | None:
    unit = unit_of(name, "interval")
    if unit not in _SPAN:
        raise unsupported_unit(unit, "interval")
    if is_infinite(span):
        return _endless_span(unit)
    months, days, micros = span
    years = _cut(months, 12)
    month = months - years * 12
    if unit == "epoch":
        quarters = 1461 * years + 120 * month + 4 * days
        return Decimal(quarters) * 21_600 + Decimal(micros) / 1_000_000
    if unit in ("second", "milliseconds", "microseconds"):
        rest = Decimal(micros - _cut(micros, 60_000_000) * 60_000_000)
        return rest / {"second": 1_000_000, "milliseconds": 1000, "microseconds": 1}[unit]
    hours = _cut(micros, 3_600_000_000)
    quarter = month // 3 + 1 if years >= 0 and month >= 0 else -(-month // 3 + 1)
    return Decimal(
        {
            "minute": _cut(micros, 60_000_000) - hours * 60,
            "hour": hours,
            "day": days,
            "week": _cut(days, 7),
            "month": month,
            "quarter": quarter,
            "year": years,
            "decade": _cut(years, 10),
            "century": _cut(years, 100),
            "millennium": _cut(years, 1000),
        }[unit]
    )


def _endless_span(unit: str) -> None:
    if unit in ("hour", "day", "week", "year", "decade", "century", "millennium", "epoch"):
        raise InvalidValue("value overflows numeric format", sqlstate="22003")


# --- date_trunc


def trunc_timestamp(name: str, stamp: int) -> int:
    unit = unit_of(name, "timestamp without time zone")
    return _truncated(unit, stamp, "timestamp without time zone")


def trunc_timestamptz(name: str, stamp: int, zone: str) -> int:
    unit = unit_of(name, "timestamp with time zone")
    read_zone(zone)
    local = in_zone(stamp, zone)
    cut = _truncated(unit, local, "timestamp with time zone")
    if unit in _CLOCK:
        # Within a day the offset does not change.
        return cut - (local - stamp)
    return at_zone(cut, zone)


def _truncated(unit: str, stamp: int, type_name: str) -> int:
    small = {"microseconds": 1, "milliseconds": 1000, "second": 1_000_000, "minute": 60_000_000}
    _check_truncated(unit, type_name)
    if unit in _ZONE:
        raise unsupported_unit(unit, type_name)
    if is_endless(stamp):
        return stamp
    if unit in small:
        return stamp // small[unit] * small[unit]
    if unit == "hour":
        return stamp // 3_600_000_000 * 3_600_000_000
    days = stamp // MICROS_PER_DAY
    if unit == "week":
        year, week, _ = iso_week(days)
        return monday_of_week(year, week) * MICROS_PER_DAY
    year, month, day = civil_from_days(days)
    if unit in ("century", "millennium"):
        width = 100 if unit == "century" else 1000
        # Years count from 1, and from -1 backwards: 0 is 1 BC.
        year = (year + width - 1) // width * width - width + 1
    elif unit == "decade":
        year = year // 10 * 10
    if unit == "quarter":
        month = (month - 1) // 3 * 3 + 1
    first = {"day": (year, month, day), "month": (year, month, 1), "quarter": (year, month, 1)}
    return days_from_civil(*first.get(unit, (year, 1, 1))) * MICROS_PER_DAY


def _check_truncated(unit: str, type_name: str) -> None:
    """Raises for parts that date_trunc does not support."""
    if unit in ("dow", "isodow", "doy", "isoyear", "julian", "epoch"):
        raise InvalidValue(f'unit "{unit}" not recognized for type {type_name}', sqlstate="22023")


def trunc_interval(name: str, span: Interval) -> Interval:
    unit = unit_of(name, "interval")
    _check_truncated(unit, "interval")
    if unit in _ZONE:
        raise unsupported_unit(unit, "interval")
    if unit == "week":
        raise InvalidValue(
            'unit "week" not supported for type interval',
            detail="Months usually have fractional weeks.",
            sqlstate="0A000",
        )
    if is_infinite(span):
        return span
    months, days, micros = span
    widths = {"millennium": 12_000, "century": 1200, "decade": 120, "year": 12, "quarter": 3, "month": 1}
    if unit in widths:
        return _cut(months, widths[unit]) * widths[unit], 0, 0
    if unit == "day":
        return months, days, 0
    clock = {
        "hour": 3_600_000_000,
        "minute": 60_000_000,
        "second": 1_000_000,
        "milliseconds": 1000,
        "microseconds": 1,
    }[unit]
    return months, days, _cut(micros, clock) * clock
