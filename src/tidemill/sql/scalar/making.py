"""make_time, make_timestamp, zones by name or offset, and arithmetic in a named zone."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from zoneinfo import available_timezones

from tidemill.caches import cached
from tidemill.errors import InvalidValue
from tidemill.sql.scalar.calendar import to_instant, to_local
from tidemill.sql.scalar.spans import Interval, is_endless, is_infinite, negative
from tidemill.types.model import INTERVAL
from tidemill.types.wire.calendar import (
    FIRST_TIMESTAMP,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    civil_from_days,
    days_from_civil,
    days_in_month,
)
from tidemill.types.wire.interval_input import INFINITY
from tidemill.types.wire.value import format_value

# Abbreviations of PostgreSQL's default set that mean one offset, in hours.
_ABBREVIATIONS = {
    "est": -5,
    "edt": -4,
    "cst": -6,
    "cdt": -5,
    "mst": -7,
    "mdt": -6,
    "pst": -8,
    "pdt": -7,
    "akst": -9,
    "akdt": -8,
    "hst": -10,
    "cet": 1,
    "cest": 2,
    "eet": 2,
    "eest": 3,
    "bst": 1,
    "jst": 9,
    "kst": 9,
    "msk": 3,
    "z": 0,
    "zulu": 0,
}
# PostgreSQL reads "UTC+3" and "+3" as POSIX does: west of Greenwich.
_ISO = re.compile(r"([+-])(\d{1,2}):?(\d{2})?:?(\d{2})?", re.ASCII)
_POSIX = re.compile(r"([A-Za-z]{3,})?([+-]?)(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?", re.ASCII)


def _time(hour: int, minute: int, second: float) -> int:
    whole = 0 <= hour <= 24 and 0 <= minute < 60 and not math.isnan(second) and 0 <= second <= 60
    micros = (hour * 3600 + minute * 60) * 1_000_000 + round(second * 1_000_000) if whole else -1
    if not 0 <= micros <= MICROS_PER_DAY:
        shown = f"{second:02g}" if math.isfinite(second) else str(second)
        raise InvalidValue(
            f"time field value out of range: {hour}:{minute:02d}:{shown.zfill(2)}", sqlstate="22008"
        )
    return micros


def _date(year: int, month: int, day: int) -> int:
    counted = year + 1 if year < 0 else year
    if year == 0 or not 1 <= month <= 12 or not 1 <= day <= days_in_month(counted, month):
        raise InvalidValue(f"date field value out of range: {year}-{month:02d}-{day:02d}", sqlstate="22008")
    return days_from_civil(counted, month, day)


def make_date(year: int, month: int, day: int) -> int:
    days = _date(year, month, day)
    if not -2_440_588 <= days <= 2_145_042_905:
        raise InvalidValue(f"date out of range: {year}-{month:02d}-{day:02d}", sqlstate="22008")
    return days


def make_time(hour: int, minute: int, second: float) -> int:
    return _time(hour, minute, second)


def make_timestamp(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    days = _date(year, month, day)
    stamp = days * MICROS_PER_DAY + _time(hour, minute, second)
    if not FIRST_TIMESTAMP <= stamp <= LAST_TIMESTAMP:
        shown = f"{year}-{month:02d}-{day:02d} {hour}:{minute:02d}:{second:02g}"
        raise InvalidValue(f"timestamp out of range: {shown}", sqlstate="22008")
    return stamp


def make_timestamptz(
    year: int, month: int, day: int, hour: int, minute: int, second: float, zone: str
) -> int:
    local = make_timestamp(year, month, day, hour, minute, second)
    east = _ISO.fullmatch(zone)
    if east is None:
        if zone[:1].isdigit():
            raise InvalidValue(
                f'invalid input syntax for type numeric time zone: "{zone}"',
                hint='Numeric time zones must have "-" or "+" as first character.',
                sqlstate="22023",
            )
        return at_zone(local, zone)
    # Here a number counts to the east, as in a timestamp's text; elsewhere to the west.
    hours, minutes, seconds = (int(part or 0) for part in east.groups()[1:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise InvalidValue(f'numeric time zone "{zone}" out of range', sqlstate="22023")
    offset = (hours * 60 + minutes) * 60 + seconds
    return local - (offset if east[1] == "+" else -offset) * 1_000_000


# --- zones


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {z.lower(): z for z in available_timezones()}


@cached(256)
def read_zone(name: str) -> str | int:
    """A zone of the tz database, or seconds east of UTC."""
    lower = name.lower()
    if lower in _ABBREVIATIONS:
        return _ABBREVIATIONS[lower] * 3600
    found = _names().get(lower)
    if found is not None:
        return found
    match = _POSIX.fullmatch(name)
    if match is not None:
        seconds = int(match[3]) * 3600 + int(match[4] or 0) * 60 + int(match[5] or 0)
        if int(match[3]) <= 24:
            return seconds if match[2] == "-" else -seconds
    raise InvalidValue(f'time zone "{name}" not recognized', sqlstate="22023")


def at_zone(local: int, name: str) -> int:
    """timestamp AT TIME ZONE zone."""
    if is_endless(local):
        return local
    zone = read_zone(name)
    return local - zone * 1_000_000 if isinstance(zone, int) else to_instant(local, zone)


def in_zone(stamp: int, name: str) -> int:
    """timestamptz AT TIME ZONE zone."""
    if is_endless(stamp):
        return stamp
    zone = read_zone(name)
    return stamp + zone * 1_000_000 if isinstance(zone, int) else to_local(stamp, zone)


def _offset(span: Interval) -> int:
    if span[0] or span[1]:
        shown = format_value(dict(zip(("months", "days", "micros"), span, strict=True)), INTERVAL)
        raise InvalidValue(f'interval time zone "{shown}" must not include months or days', sqlstate="22023")
    # Whole seconds, as PostgreSQL counts offsets.
    seconds = abs(span[2]) // 1_000_000
    return (seconds if span[2] > 0 else -seconds) * 1_000_000


def at_offset(local: int, span: Interval) -> int:
    return local if is_endless(local) else local - _offset(span)


def in_offset(stamp: int, span: Interval) -> int:
    return stamp if is_endless(stamp) else stamp + _offset(span)


def add_in_zone(stamp: int, span: Interval, name: str) -> int:
    """date_add: months and days by the clock of a zone."""
    read_zone(name)
    if is_infinite(span):
        end = TIMESTAMP_INFINITY if span == INFINITY else TIMESTAMP_MINUS_INFINITY
        if is_endless(stamp) and stamp != end:
            raise InvalidValue("timestamp out of range", sqlstate="22008")
        return end
    if is_endless(stamp):
        return stamp
    local = in_zone(stamp, name)
    if span[0] or span[1]:
        days, micros = divmod(local, MICROS_PER_DAY)
        year, month, day = civil_from_days(days)
        year, month = divmod(year * 12 + month - 1 + span[0], 12)
        day = min(day, days_in_month(year, month + 1))
        local = (days_from_civil(year, month + 1, day) + span[1]) * MICROS_PER_DAY + micros
        stamp = at_zone(local, name)
    moved = stamp + span[2]
    if not FIRST_TIMESTAMP <= moved <= LAST_TIMESTAMP:
        raise InvalidValue("timestamp out of range", sqlstate="22008")
    return moved


def subtract_in_zone(stamp: int, span: Interval, name: str) -> int:
    return add_in_zone(stamp, negative(span), name)
