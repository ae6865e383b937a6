"""The time zones that SET timezone accepts: pg_timezone_names, the relation and the function."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from tidemill.engine.relations.pg.spec import Record, spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

# Entries of the machine's database that are not zones: the local zone, and a marker for no choice. Neither
# Arrow nor Java knows them.
_NO_ZONES = frozenset({"Factory", "localtime"})

NAMES = ("name", "abbrev", "utc_offset", "is_dst")


def zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - _NO_ZONES)


def zones(now: datetime) -> list[tuple[Any, ...]]:
    """The zones with their current offsets."""
    found: list[tuple[Any, ...]] = []
    for name in sorted(zone_names()):
        at = now.astimezone(ZoneInfo(name))
        offset = (at.utcoffset() or timedelta()) // timedelta(microseconds=1)
        interval = {"months": 0, "days": 0, "micros": offset}
        found.append((name, at.tzname(), interval, bool(at.dst())))
    return found


def _rows(s: Situation) -> Iterable[Record]:
    del s
    return (dict(zip(NAMES, row, strict=True)) for row in zones(datetime.now(UTC)))


ZONES_SPEC = spec(
    "pg_catalog",
    "pg_timezone_names",
    "name text, abbrev text, utc_offset interval, is_dst bool",
    _rows,
)
