"""What the values of settings may be: each check gives the value as SHOW prints it, or raises.

Called by `variables` for whatever is set, with the setting's name for the words of the error, which are
PostgreSQL's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache

from tidemill.engine.relations.pg.zones import zone_names
from tidemill.errors import InvalidValue, TidemillError

ISOLATION_LEVELS = {
    "strict serializable": "strict serializable",
    "serializable": "serializable",
    # PostgreSQL's weaker levels are served by a stronger one, as the SQL standard allows.
    "repeatable read": "serializable",
    "read committed": "serializable",
    "read uncommitted": "serializable",
}


class CannotChange(TidemillError):
    """The variable is read-only, or only one value is possible."""

    sqlstate = "55P02"


def invalid(name: str, value: str, hint: str | None = None) -> InvalidValue:
    return InvalidValue(f'invalid value for parameter "{name}": "{value}"', sqlstate="22023", hint=hint)


def text(name: str, value: str) -> str:
    del name
    return value


def boolean(name: str, value: str) -> str:
    v = value.strip().lower()
    if v in ("on", "true", "t", "yes", "y", "1"):
        return "on"
    if v in ("off", "false", "f", "no", "n", "0"):
        return "off"
    raise InvalidValue(f'parameter "{name}" requires a Boolean value', sqlstate="22023")


_DURATION = re.compile(r"^\s*(-?\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)?\s*$")
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_DURATION_MS = 2**31 - 1  # PostgreSQL's own bound for millisecond settings


def duration_ms(name: str, value: str) -> int:
    """Milliseconds of `'5s'`, `'250ms'`, `'1min'` or a bare number of milliseconds."""
    m = _DURATION.match(value)
    if m is None:
        raise invalid(name, value, 'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".')
    ms = float(m.group(1)) * _UNIT_MS[m.group(2) or "ms"]
    if not 0 <= ms <= MAX_DURATION_MS:
        raise InvalidValue(
            f'{ms:g} ms is outside the valid range for parameter "{name}" (0 .. {MAX_DURATION_MS})',
            sqlstate="22023",
        )
    return round(ms)


def duration(name: str, value: str) -> str:
    ms = duration_ms(name, value)
    for unit in ("d", "h", "min", "s"):
        size = int(_UNIT_MS[unit])
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0"


def integer(low: int, high: int) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        try:
            n = int(value.strip())
        except ValueError:
            raise invalid(name, value) from None
        if not low <= n <= high:
            raise InvalidValue(
                f'{n} is outside the valid range for parameter "{name}" ({low} .. {high})', sqlstate="22023"
            )
        return str(n)

    return check


def number(name: str, value: str) -> str:
    try:
        n = float(value.strip())
    except ValueError:
        raise invalid(name, value) from None
    if not 0 <= n < math.inf:
        raise InvalidValue(
            f'{n:g} is outside the valid range for parameter "{name}" (0 .. 1.79769e+308)', sqlstate="22023"
        )
    return f"{n:g}"


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)?\s*")
_UNIT_KB = {"B": 1 / 1024, "kB": 1, "MB": 1 << 10, "GB": 1 << 20, "TB": 1 << 30}
_LEAST_KB = 64


def size(name: str, value: str) -> str:
    """Kilobytes, or with a unit."""
    m = _SIZE.fullmatch(value)
    if m is None:
        units = 'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".'
        raise invalid(name, value, units)
    size = round(float(m[1]) * _UNIT_KB[m[2] or "kB"])
    if not _LEAST_KB <= size <= 2**31 - 1:
        raise InvalidValue(
            f'{size} kB is outside the valid range for parameter "{name}" ({_LEAST_KB} .. {2**31 - 1})',
            sqlstate="22023",
        )
    unit = next(u for u in ("TB", "GB", "MB", "kB") if size % _UNIT_KB[u] == 0)
    return f"{size // int(_UNIT_KB[unit])}{unit}"


def float_digits(name: str, value: str) -> str:
    """All positive values mean the shortest exact text; the others would round, which is not done here."""
    digits = integer(-15, 3)(name, value)
    if int(digits) <= 0:
        raise CannotChange(
            f'parameter "{name}" cannot be set to "{value}"', hint="Tidemill supports only 1, 2 and 3."
        )
    return digits


def one_of(*values: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        v = value.strip().lower()
        if v not in values:
            raise invalid(name, value, f"Available values: {', '.join(values)}.")
        return v

    return check


def only(*accepted: str) -> Callable[[str, str], str]:
    """One value in effect; the listed spellings of it are accepted."""

    def check(name: str, value: str) -> str:
        if value.strip().lower() not in {a.lower() for a in accepted}:
            raise CannotChange(
                f'parameter "{name}" cannot be set to "{value}"',
                hint=f'Tidemill supports only "{accepted[0]}".',
            )
        return accepted[0]

    return check


def utf8(name: str, value: str) -> str:
    """As PostgreSQL reads names of encodings, letters and digits count: asyncpg asks for `'utf-8'`, quotes
    included."""
    if re.sub(r"[^a-z0-9]", "", value.lower()) not in ("utf8", "unicode"):
        raise CannotChange(
            f'parameter "{name}" cannot be set to "{value}"', hint='Tidemill supports only "UTF8".'
        )
    return "UTF8"


def isolation(name: str, value: str) -> str:
    v = " ".join(value.strip().lower().split())
    if v not in ISOLATION_LEVELS:
        raise invalid(name, value, f"Available values: {', '.join(ISOLATION_LEVELS)}.")
    return ISOLATION_LEVELS[v]


def timezone(name: str, value: str) -> str:
    """A name in any case, a number of hours east of Greenwich, or as POSIX has it (`UTC+3`) hours west.
    Offsets are kept by the name of their zone, which there is of whole hours only."""
    v = value.strip()
    if v.lower() in ("utc", "gmt", "z", "zulu", "etc/utc", "default", "local"):
        return "UTC"
    if (named := _zone_names().get(v.lower())) is not None:
        return named
    if _HOURS.fullmatch(v) is not None:
        return _fixed_zone(name, value, float(v))
    posix = _POSIX.fullmatch(v)
    if posix is None:
        raise invalid(name, value)
    west = int(posix[2]) + int(posix[3] or 0) / 60
    return _fixed_zone(name, value, west if posix[1] == "-" else -west)


_HOURS = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]+)?")
_POSIX = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)?([+-]?)([0-9]{1,2})(?::([0-9]{2}))?")


def _fixed_zone(name: str, value: str, east: float) -> str:
    zone = "UTC" if east == 0 else f"etc/gmt{-round(east):+d}"
    if east != round(east) or zone.lower() not in _zone_names():
        raise invalid(
            name, value, "Give the name of a zone, such as Asia/Kolkata; pg_timezone_names lists them."
        )
    return _zone_names()[zone.lower()]


@cache
def _zone_names() -> Mapping[str, str]:
    return {n.lower(): n for n in zone_names()}
