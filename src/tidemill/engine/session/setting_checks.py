"""Checks of setting values: each check returns the value as SHOW prints it, or raises.

Called by `variables` for every SET, with the setting's name as PostgreSQL spells it (`TimeZone`), for the
error texts, which are PostgreSQL's. A value that PostgreSQL refuses raises 22023. A value that it would
accept and Tidemill cannot support raises 55P02 (`CannotChange`). Numbers are in `setting_numbers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tidemill.engine.relations.pg.zones import zone_names
from tidemill.engine.session.setting_numbers import integer, invalid
from tidemill.errors import InvalidValue, TidemillError

ISOLATION_LEVELS = {
    "strict serializable": "strict serializable",
    "serializable": "serializable",
    # A stronger level replaces PostgreSQL's weaker ones, as the SQL standard allows.
    "repeatable read": "serializable",
    "read committed": "serializable",
    "read uncommitted": "serializable",
}

Check = Callable[[str, str], str]


class CannotChange(TidemillError):
    """The variable is read-only, or only one value is possible."""

    sqlstate = "55P02"


def text(name: str, value: str) -> str:
    del name
    return value


# In a label that other sessions and logs show, PostgreSQL keeps printable ASCII only.
_UNPRINTABLE = re.compile(rb"[^ -~]")


def printable(name: str, value: str) -> str:
    """All other bytes of the value as `\\xNN`."""
    del name
    return _UNPRINTABLE.sub(lambda found: b"\\x%02x" % ord(found[0]), value.encode()).decode()


# PostgreSQL accepts any prefix of these words, except `o`.
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def boolean(name: str, value: str) -> str:
    v = value.lower()
    if v == "1" or (v not in ("", "o") and any(word.startswith(v) for word in _TRUE)):
        return "on"
    if v == "0" or (v not in ("", "o") and any(word.startswith(v) for word in _FALSE)):
        return "off"
    raise InvalidValue(f'parameter "{name}" requires a Boolean value', sqlstate="22023")


# Accepted in place of `on` and `off` where these are among the values, and not listed in hints.
SWITCH = {"true": "on", "yes": "on", "1": "on", "false": "off", "no": "off", "0": "off"}


def one_of(values: Sequence[str], hidden: Mapping[str, str] | None = None) -> Check:
    """`hidden` maps other spellings, which the hint does not list, to their values."""

    def check(name: str, value: str) -> str:
        v = value.lower()
        if v in values:
            return v
        if hidden is not None and v in hidden:
            return hidden[v]
        raise invalid(name, value, f"Available values: {', '.join(values)}.")

    return check


def only(accepted: str, known: Check) -> Check:
    """Only one value is in effect; `known` checks which of the others PostgreSQL would accept."""

    def check(name: str, value: str) -> str:
        if known(name, value) != accepted:
            raise _cannot(name, value, f'"{accepted}"')
        return accepted

    return check


def _cannot(name: str, value: str, supported: str) -> CannotChange:
    return CannotChange(
        f'parameter "{name}" cannot be set to "{value}"', hint=f"Tidemill supports only {supported}."
    )


def nothing_else(accepted: str, detail: str) -> Check:
    """The name of an object of which only one exists; `detail` says what does not exist."""

    def check(name: str, value: str) -> str:
        if value != accepted:
            raise invalid(name, value, detail=detail.format(value) if value else f'"{name}" cannot be empty.')
        return value

    return check


# Other encodings that PostgreSQL knows, reduced to letters and digits.
_ENCODINGS = re.compile(
    r"abc|alt|big5|euc(cn|jis2004|jp|kr|tw)|gb18030|gbk|iso8859\d{1,2}|johab|koi8[ru]?|latin\d{1,2}|mskanji"
    r"|muleinternal|shiftjis(2004)?|sjis|sqlascii|tcvn(5712)?|uhc|vscii|win(dows)?\d{3,4}|win"
)


def utf8(name: str, value: str) -> str:
    """As in PostgreSQL, only letters and digits of an encoding's name count: asyncpg sends `'utf-8'`, quotes
    included."""
    letters = re.sub(r"[^a-z0-9]", "", value.lower())
    if letters in ("utf8", "unicode"):
        return "UTF8"
    if _ENCODINGS.fullmatch(letters):
        raise _cannot(name, value, '"UTF8"')
    raise invalid(name, value)


def isolation(name: str, value: str) -> str:
    v = value.lower()
    if v not in ISOLATION_LEVELS:
        raise invalid(name, value, f"Available values: {', '.join(ISOLATION_LEVELS)}.")
    return ISOLATION_LEVELS[v]


_NAME = r'\s*(?:"(?:[^"]|"")*"|[^",\s]+)\s*'
_NAMES = re.compile(rf"\s*|{_NAME}(?:,{_NAME})*")


def schemas(name: str, value: str) -> str:
    _check_list(name, value)
    return value


def _check_list(name: str, value: str) -> None:
    if not _NAMES.fullmatch(value):
        raise invalid(name, value, detail="List syntax is invalid.")


# The keywords of DateStyle that select the supported style, and those that select another.
_DATES = re.compile(r"iso|mdy|us|noneuro.*|default")
_OTHER_DATES = re.compile(r"sql|postgres.*|german.*|ymd|dmy|euro.*")


def datestyle(name: str, value: str) -> str:
    _check_list(name, value)
    for word in filter(None, (w.strip().strip('"') for w in value.split(","))):
        if _OTHER_DATES.fullmatch(word.lower()):
            raise _cannot(name, value, '"ISO, MDY"')
        if not _DATES.fullmatch(word.lower()):
            raise invalid(name, value, detail=f'Unrecognized key word: "{word.lower()}".')
    return "ISO, MDY"


def float_digits(name: str, value: str) -> str:
    """All positive values mean the shortest exact text; the others would round, which is not supported."""
    digits = integer(-15, 3)(name, value)
    if int(digits) <= 0:
        raise _cannot(name, value, "1, 2 and 3")
    return digits


def timezone(name: str, value: str) -> str:
    """A name in any case, a number of hours east of Greenwich, or a POSIX form (`UTC+3`) in hours west.
    Offsets are stored as zone names, which exist for whole hours only."""
    v = value.strip()
    if v.lower() in ("utc", "gmt", "z", "zulu", "etc/utc"):
        return "UTC"
    if (named := _zone_names().get(v.lower())) is not None:
        return named
    if _HOURS.fullmatch(v) is not None:
        return _fixed_zone(name, value, float(v))
    posix = _POSIX.fullmatch(v)
    if posix is None:
        number = re.fullmatch(r"[+-]?(\d+(\.\d*)?([eE]\d+)?|inf(inity)?|nan)", v, re.I)
        raise invalid(name, value, detail=None if number is None else "UTC timezone offset is out of range.")
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
