"""Casts among dates, times, timestamps and intervals, and the conversions between local time and instants
they need.

Spark's session zone is always UTC: a TIMESTAMP_NTZ cast to TIMESTAMP_LTZ (and back) keeps its digits. The
client's zone comes in only through `to_local` and `to_instant`."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.tree import (
    Tree,
    bigint,
    call,
    case,
    cast,
    eq,
    field,
    if_,
    integer,
    let_all,
    null,
    string,
    word,
)
from tidemill.types.model import Kind

MICROS_PER_DAY = 86_400_000_000
# How much of the day a clock that is set back repeats: an hour, on Lord Howe Island half of one.
_REPEATED_MINUTES = (60, 30)


def to_local(instant: Tree, where: Tree | None = None) -> Tree:
    """A timestamptz as the wall clock of a zone (the session's unless given)."""
    return cast(call("from_utc_timestamp", instant, where or zone()), "TIMESTAMP_NTZ")


def to_instant(local: Tree, where: Tree | None = None) -> Tree:
    """The instant at which a zone's wall clock (the session's unless given) shows this timestamp. Of the
    two instants in the hour that a clock repeats PostgreSQL takes the later, Spark the earlier: so it is
    asked whether there is a later."""
    at = where or zone()

    def later(v: list[Tree]) -> Tree:
        shown, first = v
        second = [call("timestampadd", word("MINUTE"), integer(m), first) for m in _REPEATED_MINUTES]
        branches = [(eq(call("from_utc_timestamp", s, at), shown), s) for s in second]
        return case(*branches, otherwise=first)

    digits = cast(local, "TIMESTAMP_LTZ")
    elsewhere = let_all([digits, call("to_utc_timestamp", digits, at)], later)
    # In UTC (the common case; Spark folds the comparison away) nothing is ever repeated.
    return if_(eq(at, string("UTC")), digits, elsewhere)


def micros_of(local: Tree) -> Tree:
    """Microseconds of a timestamp since 1970."""
    return call("unix_micros", cast(local, "TIMESTAMP_LTZ"))


def from_micros(micros: Tree) -> Tree:
    """The timestamp so many microseconds after 1970."""
    return cast(call("timestamp_micros", micros), "TIMESTAMP_NTZ")


def interval(months: Tree, days: Tree, micros: Tree) -> Tree:
    """An interval's storage form; NULL where any part is NULL comes from the caller's operands being NULL
    together."""
    return call("named_struct", string("months"), months, string("days"), days, string("micros"), micros)


def _time_of(local: Tree) -> Tree:
    return call("pmod", micros_of(local), bigint(MICROS_PER_DAY))


_BETWEEN: dict[tuple[Kind, Kind], Callable[[Tree], Tree]] = {
    (Kind.DATE, Kind.TIMESTAMP): lambda v: cast(v, "TIMESTAMP_NTZ"),
    (Kind.DATE, Kind.TIMESTAMPTZ): lambda v: to_instant(cast(v, "TIMESTAMP_NTZ")),
    (Kind.TIMESTAMP, Kind.DATE): lambda v: cast(v, "DATE"),
    (Kind.TIMESTAMP, Kind.TIME): _time_of,
    (Kind.TIMESTAMP, Kind.TIMESTAMPTZ): to_instant,
    (Kind.TIMESTAMPTZ, Kind.DATE): lambda v: cast(to_local(v), "DATE"),
    (Kind.TIMESTAMPTZ, Kind.TIME): lambda v: _time_of(to_local(v)),
    (Kind.TIMESTAMPTZ, Kind.TIMESTAMP): to_local,
    (Kind.TIME, Kind.INTERVAL): lambda v: call(
        "if", call("isnull", v), cast(null(), _INTERVAL), interval(integer(0), integer(0), v.copy())
    ),
    (Kind.INTERVAL, Kind.TIME): lambda v: call("pmod", field(v, "micros"), bigint(MICROS_PER_DAY)),
    (Kind.MZ_TIMESTAMP, Kind.TIMESTAMPTZ): lambda v: call("timestamp_millis", v),
    (Kind.MZ_TIMESTAMP, Kind.TIMESTAMP): lambda v: cast(call("timestamp_millis", v), "TIMESTAMP_NTZ"),
}

_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"


def cast_between(source: Kind, target: Kind) -> Callable[[Tree], Tree] | None:
    return _BETWEEN.get((source, target))
