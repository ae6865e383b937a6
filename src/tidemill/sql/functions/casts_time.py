"""Casts among dates, times, timestamps and intervals, and conversions between local time and instants.

Spark's session zone is always UTC: a TIMESTAMP_NTZ cast to TIMESTAMP_LTZ (and back) keeps its digits. Only
`to_local` and `to_instant` use the client's zone.
"""

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
    gt,
    if_,
    integer,
    let,
    let_all,
    null,
    one_of,
    raise_error,
    string,
    word,
)
from tidemill.types.model import DATE, TIMESTAMP, TIMESTAMPTZ, Kind, SqlType
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)
from tidemill.types.wire.interval_input import INFINITY, MINUS_INFINITY

MICROS_PER_DAY = 86_400_000_000
# The time that a clock repeats when it is set back: an hour, on Lord Howe Island half an hour.
_REPEATED_MINUTES = (60, 30)


def to_local(instant: Tree, where: Tree | None = None) -> Tree:
    """A timestamptz as local time of a zone (by default the session's)."""
    return cast(call("from_utc_timestamp", instant, where or zone()), "TIMESTAMP_NTZ")


def to_instant(local: Tree, where: Tree | None = None) -> Tree:
    """The instant at which the local time of a zone (by default the session's) is this timestamp. In a
    repeated hour, PostgreSQL takes the later instant and Spark the earlier, so this checks for a later
    one."""
    at = where or zone()

    def later(v: list[Tree]) -> Tree:
        shown, first = v
        second = [call("timestampadd", word("MINUTE"), integer(m), first) for m in _REPEATED_MINUTES]
        branches = [(eq(call("from_utc_timestamp", s, at), shown), s) for s in second]
        return case(*branches, otherwise=first)

    digits = cast(local, "TIMESTAMP_LTZ")
    elsewhere = let_all([digits, call("to_utc_timestamp", digits, at)], later)
    # In UTC (the common case; Spark folds the comparison) no hour is repeated.
    return if_(eq(at, string("UTC")), digits, elsewhere)


def is_endless(value: Tree, t: SqlType) -> Tree:
    """Whether a date or timestamp is one of PostgreSQL's infinities, which are the extreme storage
    integers."""
    if t.kind is Kind.DATE:
        days = call("unix_date", value)
        return one_of(days, [integer(DATE_INFINITY), integer(DATE_MINUS_INFINITY)])
    micros = call("unix_micros", value if t.kind is Kind.TIMESTAMPTZ else cast(value, "TIMESTAMP_LTZ"))
    return one_of(micros, [bigint(TIMESTAMP_INFINITY), bigint(TIMESTAMP_MINUS_INFINITY)])


def is_endless_span(span: Tree) -> Tree:
    """Whether an interval is infinite. No other interval has as many microseconds."""
    return one_of(field(span, "micros"), [bigint(INFINITY[2]), bigint(MINUS_INFINITY[2])])


def micros_of(local: Tree) -> Tree:
    """Microseconds of a timestamp since 1970."""
    return call("unix_micros", cast(local, "TIMESTAMP_LTZ"))


def from_micros(micros: Tree) -> Tree:
    """The timestamp this many microseconds after 1970."""
    return cast(call("timestamp_micros", micros), "TIMESTAMP_NTZ")


def interval(months: Tree, days: Tree, micros: Tree) -> Tree:
    """An interval's storage form. The caller's operands make all parts NULL together."""
    return call("named_struct", string("months"), months, string("days"), days, string("micros"), micros)


def _time_of(local: Tree, t: SqlType = TIMESTAMP) -> Tree:
    """An infinite timestamp has no time of day."""

    def build(v: Tree) -> Tree:
        clock = call("pmod", micros_of(v if t is TIMESTAMP else to_local(v)), bigint(MICROS_PER_DAY))
        return if_(is_endless(v, t), cast(null(), "BIGINT"), clock)

    return let(local, build)


def _clock_of_span(span: Tree) -> Tree:
    clock = call("pmod", field(span, "micros"), bigint(MICROS_PER_DAY))
    refused = raise_error("22008", "cannot convert infinite interval to time")
    return if_(is_endless_span(span), refused, clock)


def endless_between(
    source: SqlType, target: SqlType, finite: Callable[[Tree], Tree]
) -> Callable[[Tree], Tree]:
    """A cast of finite values that maps the infinities of the source to those of the target."""
    ends = {Kind.DATE: (DATE_MINUS_INFINITY, DATE_INFINITY)}
    low, high = ends.get(target.kind, (TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY))

    def made(end: int) -> Tree:
        if target.kind is Kind.DATE:
            return call("date_from_unix_date", integer(end))
        stamp = call("timestamp_micros", bigint(end))
        return stamp if target.kind is Kind.TIMESTAMPTZ else cast(stamp, "TIMESTAMP_NTZ")

    def positive(v: Tree) -> Tree:
        if source.kind is Kind.DATE:
            return gt(call("unix_date", v), integer(0))
        return gt(micros_of(v) if source.kind is Kind.TIMESTAMP else call("unix_micros", v), bigint(0))

    def build(v: Tree) -> Tree:
        return if_(is_endless(v, source), if_(positive(v), made(high), made(low)), finite(v))

    return lambda value: let(value, build)


_BETWEEN: dict[tuple[Kind, Kind], Callable[[Tree], Tree]] = {
    (Kind.DATE, Kind.TIMESTAMP): endless_between(DATE, TIMESTAMP, lambda v: cast(v, "TIMESTAMP_NTZ")),
    (Kind.DATE, Kind.TIMESTAMPTZ): endless_between(
        DATE, TIMESTAMPTZ, lambda v: to_instant(cast(v, "TIMESTAMP_NTZ"))
    ),
    (Kind.TIMESTAMP, Kind.DATE): endless_between(TIMESTAMP, DATE, lambda v: cast(v, "DATE")),
    (Kind.TIMESTAMP, Kind.TIME): _time_of,
    (Kind.TIMESTAMP, Kind.TIMESTAMPTZ): endless_between(TIMESTAMP, TIMESTAMPTZ, to_instant),
    (Kind.TIMESTAMPTZ, Kind.DATE): endless_between(TIMESTAMPTZ, DATE, lambda v: cast(to_local(v), "DATE")),
    (Kind.TIMESTAMPTZ, Kind.TIME): lambda v: _time_of(v, TIMESTAMPTZ),
    (Kind.TIMESTAMPTZ, Kind.TIMESTAMP): endless_between(TIMESTAMPTZ, TIMESTAMP, to_local),
    (Kind.TIME, Kind.INTERVAL): lambda v: call(
        "if", call("isnull", v), cast(null(), _INTERVAL), interval(integer(0), integer(0), v.copy())
    ),
    (Kind.INTERVAL, Kind.TIME): lambda v: let(v, _clock_of_span),
    (Kind.MZ_TIMESTAMP, Kind.TIMESTAMPTZ): lambda v: call("timestamp_millis", v),
    (Kind.MZ_TIMESTAMP, Kind.TIMESTAMP): lambda v: cast(call("timestamp_millis", v), "TIMESTAMP_NTZ"),
}

_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"


def cast_between(source: Kind, target: Kind) -> Callable[[Tree], Tree] | None:
    return _BETWEEN.get((source, target))
