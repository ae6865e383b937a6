"""Intervals, and differences between times.

An interval is (months, days, microseconds); dates are days, timestamps microseconds since 1970.
"""

from __future__ import annotations

import math

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.calendar import to_local
from tidemill.types.wire.calendar import (
    FIRST_TIMESTAMP,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    MICROS_PER_SECOND,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    civil_from_days,
    days_in_month,
)
from tidemill.types.wire.interval_input import INFINITY, MINUS_INFINITY

Interval = tuple[int, int, int]

_SECONDS_PER_DAY = 86_400
_DAYS_PER_MONTH = 30


def out_of_range() -> InvalidValue:
    return InvalidValue("interval out of range", sqlstate="22008")


def is_infinite(span: Interval) -> bool:
    return span in (INFINITY, MINUS_INFINITY)


def is_endless(stamp: int) -> bool:
    return stamp in (TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY)


def checked(months: int, days: int, micros: int) -> Interval:
    made = (months, days, micros)
    widths = ((months, 31), (days, 31), (micros, 63))
    fits = all(-(1 << bits) <= part < 1 << bits for part, bits in widths)
    if not fits or is_infinite(made):
        raise out_of_range()
    return made


# --- arithmetic


def _whole(value: float, bits: int) -> int:
    if math.isnan(value) or abs(value) >= 1 << bits:
        raise out_of_range()
    return int(value)


def _to_micros(value: float) -> float:
    return round(value * 1_000_000) / 1_000_000


def _scaled(span: Interval, factor: float, *, divide: bool) -> Interval:
    """The remainder of months is added to the days, the remainder of days to the microseconds."""

    def by(part: int) -> float:
        return part / factor if divide else part * factor

    months, days = _whole(by(span[0]), 31), _whole(by(span[1]), 31)
    rest_days = _to_micros((by(span[0]) - months) * _DAYS_PER_MONTH)
    rest_seconds = _to_micros((by(span[1]) - days + rest_days - int(rest_days)) * _SECONDS_PER_DAY)
    if abs(rest_seconds) >= _SECONDS_PER_DAY:
        more = int(rest_seconds / _SECONDS_PER_DAY)
        days += more
        rest_seconds -= more * _SECONDS_PER_DAY
    days += int(rest_days)
    micros = by(span[2]) + rest_seconds * 1_000_000
    if math.isnan(micros) or abs(micros) >= 1 << 63:
        raise out_of_range()
    return checked(months, days, round(micros))


def multiply(span: Interval, factor: float) -> Interval:
    if math.isnan(factor) or (is_infinite(span) and factor == 0):
        raise out_of_range()
    if is_infinite(span):
        return span if factor > 0 else negative(span)
    if math.isinf(factor):
        sign = _sign(span)
        if sign == 0:
            raise out_of_range()
        return INFINITY if sign * factor > 0 else MINUS_INFINITY
    return _scaled(span, factor, divide=False)


def divide(span: Interval, factor: float) -> Interval:
    if factor == 0:
        raise InvalidValue("division by zero", sqlstate="22012")
    if math.isnan(factor) or (is_infinite(span) and math.isinf(factor)):
        raise out_of_range()
    if is_infinite(span):
        return span if factor > 0 else negative(span)
    return _scaled(span, factor, divide=True)


def _sign(span: Interval) -> int:
    length = (span[0] * _DAYS_PER_MONTH + span[1]) * MICROS_PER_DAY + span[2]
    return (length > 0) - (length < 0)


def negative(span: Interval) -> Interval:
    if is_infinite(span):
        return MINUS_INFINITY if span == INFINITY else INFINITY
    return checked(-span[0], -span[1], -span[2])


def add(a: Interval, b: Interval) -> Interval:
    if is_infinite(a) or is_infinite(b):
        if is_infinite(a) and is_infinite(b) and a != b:
            raise out_of_range()
        return a if is_infinite(a) else b
    return checked(a[0] + b[0], a[1] + b[1], a[2] + b[2])


def subtract(a: Interval, b: Interval) -> Interval:
    return add(a, negative(b))


# --- justify


def _cut(value: int, by: int) -> tuple[int, int]:
    """Quotient and remainder towards zero."""
    quotient = abs(value) // by * (1 if value >= 0 else -1)
    return quotient, value - quotient * by


def _carried(large: int, small: int, by: int) -> tuple[int, int]:
    """Moves whole multiples of `by` from the small unit to the large one; both then have the same sign."""
    more, small = _cut(small, by)
    large += more
    if large > 0 > small:
        return large - 1, small + by
    if large < 0 < small:
        return large + 1, small - by
    return large, small


def justify_hours(span: Interval) -> Interval:
    if is_infinite(span):
        return span
    months, days, micros = span
    return checked(months, *_carried(days, micros, MICROS_PER_DAY))


def justify_days(span: Interval) -> Interval:
    if is_infinite(span):
        return span
    months, days, micros = span
    months, days = _carried(months, days, _DAYS_PER_MONTH)
    return checked(months, days, micros)


def justify_interval(span: Interval) -> Interval:
    if is_infinite(span):
        return span
    months, days, micros = span
    # Large months and days of opposite signs are first offset against each other, so that nothing overflows.
    if (days > 0 and micros > 0) or (days < 0 and micros < 0):
        more, days = _cut(days, _DAYS_PER_MONTH)
        months += more
    more, micros = _cut(micros, MICROS_PER_DAY)
    days += more
    more, days = _cut(days, _DAYS_PER_MONTH)
    months += more
    if months > 0 and (days < 0 or (days == 0 and micros < 0)):
        months, days = months - 1, days + _DAYS_PER_MONTH
    elif months < 0 and (days > 0 or (days == 0 and micros > 0)):
        months, days = months + 1, days - _DAYS_PER_MONTH
    if days > 0 > micros:
        days, micros = days - 1, micros + MICROS_PER_DAY
    elif days < 0 < micros:
        days, micros = days + 1, micros - MICROS_PER_DAY
    return checked(months, days, micros)


# --- making


def make_interval(
    years: int = 0,
    months: int = 0,
    weeks: int = 0,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: float = 0.0,
) -> Interval:
    if math.isnan(seconds) or math.isinf(seconds):
        raise out_of_range()
    if math.isinf(seconds * 1_000_000):
        raise InvalidValue("value out of range: overflow", sqlstate="22003")
    micros = (hours * 3600 + minutes * 60) * MICROS_PER_SECOND + round(seconds * 1_000_000)
    return checked(years * 12 + months, weeks * 7 + days, micros)


# --- between times


def age(later: int, earlier: int) -> Interval:
    """The symbolic difference of two timestamps: years, months and days of the calendar."""
    if is_endless(later) or is_endless(earlier):
        return _endless_difference(later, earlier)
    forward = later >= earlier
    a, b = _fields(later), _fields(earlier)
    years, months, days, micros = (x - y if forward else y - x for x, y in zip(a, b, strict=True))
    if micros < 0:
        micros, days = micros + MICROS_PER_DAY, days - 1
    while days < 0:
        borrowed = b if forward else a
        days += days_in_month(borrowed[0], borrowed[1])
        months -= 1
    while months < 0:
        months, years = months + 12, years - 1
    sign = 1 if forward else -1
    return checked(sign * (years * 12 + months), sign * days, sign * micros)


def _fields(stamp: int) -> tuple[int, int, int, int]:
    days, micros = divmod(stamp, MICROS_PER_DAY)
    return (*civil_from_days(days), micros)


def _endless_difference(later: int, earlier: int) -> Interval:
    if later == earlier:
        raise out_of_range()
    if later == TIMESTAMP_INFINITY or earlier == TIMESTAMP_MINUS_INFINITY:
        return INFINITY
    return MINUS_INFINITY


def date_bin(stride: Interval, stamp: int, origin: int) -> int:
    if is_endless(stamp):
        return stamp
    if is_endless(origin):
        raise InvalidValue("origin out of range", sqlstate="22008")
    if is_infinite(stride):
        raise InvalidValue("timestamps cannot be binned into infinite intervals", sqlstate="22008")
    if stride[0]:
        raise Unsupported("timestamps cannot be binned into intervals containing months or years")
    width = stride[1] * MICROS_PER_DAY + stride[2]
    if width <= 0:
        raise InvalidValue("stride must be greater than zero", sqlstate="22008")
    found = origin + (stamp - origin) // width * width
    if not FIRST_TIMESTAMP <= found <= LAST_TIMESTAMP:
        raise InvalidValue("timestamp out of range", sqlstate="22008")
    return found


def age_in(later: int, earlier: int, zone: str) -> Interval:
    """age() of two instants, by the clock of a zone."""
    if is_endless(later) or is_endless(earlier):
        return _endless_difference(later, earlier)
    return age(to_local(later, zone), to_local(earlier, zone))
