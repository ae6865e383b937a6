"""Weeks, Julian days and zones, for single values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tidemill.types.wire.calendar import civil_from_days, days_from_civil
from tidemill.types.wire.datetime_input import named_zone

# What PostgreSQL calls Julian day 0, as days before 1970.
_JULIAN_EPOCH = 2_440_588
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The years that datetime has, with room for an offset.
_FIRST, _LAST = -62_135_510_400, 253_402_214_400
# The calendar repeats after this long, weekdays included.
_CYCLE = 146_097 * 86_400


def julian_day(days: int) -> int:
    return days + _JULIAN_EPOCH


def days_of_julian(day: int) -> int:
    return day - _JULIAN_EPOCH


def monday_of_week(year: int, week: int) -> int:
    """The first day of an ISO week."""
    fourth = days_from_civil(year, 1, 4)
    return fourth - (fourth + 3) % 7 + (week - 1) * 7


def iso_week(days: int) -> tuple[int, int, int]:
    """ISO year (0 is 1 BC), week and day of the week (Monday is 1)."""
    year = civil_from_days(days)[0]
    for candidate in (year + 1, year, year - 1):
        first = monday_of_week(candidate, 1)
        if days >= first:
            return candidate, (days - first) // 7 + 1, (days - first) % 7 + 1
    raise AssertionError("a day is in the ISO year before or after its own")


def local_offset(stamp: int, zone: str) -> int:
    """A zone's offset from UTC at an instant, in seconds."""
    return _offset(stamp // 1_000_000, named_zone(zone))


def abbreviation(stamp: int, zone: str) -> str:
    """A zone's abbreviation at an instant."""
    return _moment(stamp // 1_000_000, named_zone(zone)).tzname() or ""


def _offset(seconds: int, zone: ZoneInfo) -> int:
    offset = _moment(seconds, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def _moment(seconds: int, zone: ZoneInfo) -> datetime:
    """An instant on a zone's clock; outside of datetime's years a moment of the same rules."""
    if seconds >= _LAST:
        seconds -= -(-(seconds - _LAST + 1) // _CYCLE) * _CYCLE
    elif seconds < _FIRST:
        # Before all rules: the local mean time of the first of them.
        seconds = _FIRST
    return (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)


def to_local(stamp: int, zone: str) -> int:
    return stamp + local_offset(stamp, zone) * 1_000_000


def to_instant(local: int, zone: str) -> int:
    """The instant of a local time: of two, the later, as in PostgreSQL; in a gap, by the offset before it."""
    found = named_zone(zone)
    seconds = local // 1_000_000
    before = _offset(seconds - 86_400, found)
    after = _offset(seconds + 86_400, found)
    for offset in (after, before):
        if _offset(seconds - offset, found) == offset:
            return local - offset * 1_000_000
    return local - before * 1_000_000
