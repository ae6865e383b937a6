"""Dates, times and intervals: arithmetic and zones.

An interval is struct(months, days, micros) and its three parts are added in this order: months (the day
clipped to the month's length), days, microseconds. For timestamptz months and days are counted on the session
zone's wall clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zoneinfo import available_timezones

from sqlglot import exp

from tidemill.sql.functions.casts_time import (
    MICROS_PER_DAY,
    cast_between,
    endless_between,
    from_micros,
    interval,
    is_endless,
    micros_of,
    to_instant,
    to_local,
)
from tidemill.sql.functions.markers import Fixed, fixed
from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import Builder, function, not_yet, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    bigint,
    call,
    case,
    cast,
    double,
    eq,
    field,
    ge,
    gt,
    if_,
    int_divide,
    integer,
    is_null,
    le,
    let,
    let_all,
    mul,
    not_,
    null,
    or_,
    raise_error,
    remainder,
    string,
    sub,
)
from tidemill.sql.scalar import making
from tidemill.types.model import (
    BOOL,
    DATE,
    FLOAT8,
    INT4,
    INTERVAL,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
)
from tidemill.types.wire.calendar import (
    FIRST_DAY,
    LAST_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)

_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"


def add_to_timestamp(stamp: Tree, span: Tree) -> Tree:
    """timestamp + interval."""

    def build(v: list[Tree]) -> Tree:
        moved = from_micros(add(micros_of(_calendar(v[0], v[1])), field(v[1], "micros")))
        return if_(is_endless(v[0], TIMESTAMP), v[0], moved)

    return let_all([stamp, span], build)


def _calendar(local: Tree, span: Tree) -> Tree:
    months = add(local, call("make_ym_interval", integer(0), field(span, "months")))
    return add(months, call("make_dt_interval", field(span, "days")))


def _add_to_instant(stamp: Tree, span: Tree) -> Tree:
    """timestamptz + interval."""

    def build(v: list[Tree]) -> Tree:
        moved = to_instant(_calendar(to_local(v[0]), v[1]))
        later = call("timestamp_micros", add(call("unix_micros", moved), field(v[1], "micros")))
        return if_(is_endless(v[0], TIMESTAMPTZ), v[0], later)

    return let_all([stamp, span], build)


def negated(span: Tree) -> Tree:
    def build(s: Tree) -> Tree:
        parts = [sub(zero, field(s, part)) for part, zero in _ZEROS]
        return if_(is_null(s), cast(null(), _INTERVAL), interval(*parts))

    return let(span, build)


_ZEROS = (("months", integer(0)), ("days", integer(0)), ("micros", bigint(0)))


def _difference(micros: Callable[[Tree], Tree], t: SqlType) -> Builder:
    """Between two timestamps: whole days and the rest."""

    def parts(v: Tree) -> Tree:
        days = cast(int_divide(v, bigint(MICROS_PER_DAY)), "INT")
        rest = remainder(v, bigint(MICROS_PER_DAY))
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), days, rest))

    def build(v: list[Tree]) -> Tree:
        endless = or_(is_endless(v[0], t), is_endless(v[1], t))
        refused = raise_error("0A000", "the difference of infinite timestamps is not supported")
        between = if_(endless, refused, sub(micros(v[0]), micros(v[1])))
        return let(between, parts)

    return lambda a: let_all(list(a), build)


def _instant_micros(v: Tree) -> Tree:
    return call("unix_micros", v)


def _time_difference(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), integer(0), v))

    return let(sub(args[0], args[1]), build)


def _time_shift(op: Callable[[Tree, Tree], Tree]) -> Builder:
    return lambda a: call("pmod", op(a[0], field(a[1], "micros")), bigint(MICROS_PER_DAY))


# --- zones


def check_zone(name: str) -> str | None:
    """The tz database's own spelling of a zone that Spark knows by that name too; None for the others, such
    as UTC+3 (in PostgreSQL west of Greenwich, in Java east) or EST."""
    known = {z.lower(): z for z in available_timezones() if "/" in z or z in ("UTC", "GMT")}
    return known.get(name.lower())


_AT = {
    TIMESTAMP: row_function("timezone", (TIMESTAMP, TEXT), TIMESTAMPTZ, making.at_zone),
    TIMESTAMPTZ: row_function("timezone", (TIMESTAMPTZ, TEXT), TIMESTAMP, making.in_zone),
}


def at_time_zone(args: Sequence[Tree], t: SqlType) -> Tree:
    where = args[1]
    zone = check_zone(str(where.this)) if isinstance(where, exp.Literal) and where.is_string else None
    if zone is None:
        if isinstance(where, exp.Literal):
            making.read_zone(str(where.this))
        return _AT[t](args)
    target = TIMESTAMPTZ if t is TIMESTAMP else TIMESTAMP
    return endless_between(t, target, lambda v: _by_clock(v, t, string(zone)))(args[0])


def _by_clock(value: Tree, t: SqlType, zone: Tree) -> Tree:
    return to_instant(value, zone) if t.kind is Kind.TIMESTAMP else to_local(value, zone)


def _to_timestamp(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        micros = cast(call("rint", mul(v, cast(integer(1_000_000), "DOUBLE"))), "BIGINT")
        first, last = (
            call("timestamp_micros", bigint(end)) for end in (TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY)
        )
        # The limits of what can be counted in microseconds, in seconds.
        outside = gt(call("abs", v), double("9.2e12"))
        return case(
            (call("isnan", v), raise_error("22008", "timestamp cannot be NaN")),
            (eq(v, double("Infinity")), last),
            (eq(v, double("-Infinity")), first),
            (outside, raise_error("22008", "timestamp out of range")),
            otherwise=call("timestamp_micros", micros),
        )

    return let(args[0], build)


def _midnight(date: Tree) -> Tree:
    build = cast_between(Kind.DATE, Kind.TIMESTAMP)
    assert build is not None
    return build(date)


def _days_later(date: Tree, days: Tree, op: Callable[[Tree, Tree], Tree]) -> Tree:
    """Dates end where PostgreSQL's do; an endless one stays."""

    def build(v: list[Tree]) -> Tree:
        moved = op(cast(call("unix_date", v[0]), "BIGINT"), cast(v[1], "BIGINT"))
        inside = and_(ge(moved, bigint(FIRST_DAY)), le(moved, bigint(LAST_DAY)))
        found = call("date_from_unix_date", cast(moved, "INT"))
        return case(
            (is_endless(v[0], DATE), v[0]),
            (inside, found),
            (is_null(moved), found),
            otherwise=raise_error("22008", "date out of range"),
        )

    return let_all([date, days], build)


def _days_between(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        endless = or_(is_endless(v[0], DATE), is_endless(v[1], DATE))
        refused = raise_error("22008", "cannot subtract infinite dates")
        return if_(endless, refused, call("datediff", v[0], v[1]))

    return let_all(list(args), build)


def _install() -> None:
    operator("+", (DATE, INT4), DATE, lambda a: _days_later(a[0], a[1], add))
    operator("+", (INT4, DATE), DATE, lambda a: _days_later(a[1], a[0], add))
    operator("-", (DATE, INT4), DATE, lambda a: _days_later(a[0], a[1], sub))
    operator("-", (DATE, DATE), INT4, _days_between)
    for name, turn in (("+", lambda s: s), ("-", negated)):
        operator(
            name,
            (DATE, INTERVAL),
            TIMESTAMP,
            lambda a, f=turn: add_to_timestamp(_midnight(a[0]), f(a[1])),
        )
        operator(name, (TIMESTAMP, INTERVAL), TIMESTAMP, lambda a, f=turn: add_to_timestamp(a[0], f(a[1])))
        operator(name, (TIMESTAMPTZ, INTERVAL), TIMESTAMPTZ, lambda a, f=turn: _add_to_instant(a[0], f(a[1])))
    operator("+", (INTERVAL, DATE), TIMESTAMP, lambda a: add_to_timestamp(_midnight(a[1]), a[0]))
    operator("+", (INTERVAL, TIMESTAMP), TIMESTAMP, lambda a: add_to_timestamp(a[1], a[0]))
    operator("+", (INTERVAL, TIMESTAMPTZ), TIMESTAMPTZ, lambda a: _add_to_instant(a[1], a[0]))
    operator("+", (INTERVAL, TIME), TIME, lambda a: _time_shift(add)([a[1], a[0]]))
    operator("-", (TIMESTAMP, TIMESTAMP), INTERVAL, _difference(micros_of, TIMESTAMP))
    operator("-", (TIMESTAMPTZ, TIMESTAMPTZ), INTERVAL, _difference(_instant_micros, TIMESTAMPTZ))
    operator("+", (DATE, TIME), TIMESTAMP, lambda a: _date_and_time(a[0], a[1]))
    operator("+", (TIME, DATE), TIMESTAMP, lambda a: _date_and_time(a[1], a[0]))
    operator("+", (TIME, INTERVAL), TIME, _time_shift(add))
    operator("-", (TIME, INTERVAL), TIME, _time_shift(sub))
    operator("-", (TIME, TIME), INTERVAL, _time_difference)
    function("to_timestamp", (FLOAT8,), TIMESTAMPTZ, _to_timestamp)
    for name in ("now", "transaction_timestamp"):
        function(name, (), TIMESTAMPTZ, lambda a: fixed(Fixed.NOW))
    function("statement_timestamp", (), TIMESTAMPTZ, lambda a: fixed(Fixed.STATEMENT))
    for t in (TIMESTAMP, TIMESTAMPTZ):
        other = TIMESTAMPTZ if t is TIMESTAMP else TIMESTAMP
        function("timezone", (TEXT, t), other, lambda a, t=t: at_time_zone([a[1], a[0]], t))
    by_offset = ("timezone", (INTERVAL, TIMESTAMP), TIMESTAMPTZ)
    by_row(*by_offset, lambda span, local: making.at_offset(local, span))
    from_offset = ("timezone", (INTERVAL, TIMESTAMPTZ), TIMESTAMP)
    by_row(*from_offset, lambda span, stamp: making.in_offset(stamp, span))
    for t in (DATE, TIMESTAMP, TIMESTAMPTZ):
        function("isfinite", (t,), BOOL, lambda a, t=t: not_(is_endless(a[0], t)))
    function("isfinite", (INTERVAL,), BOOL, lambda a: not_(_is_endless_span(a[0])))
    not_yet("clock_timestamp timeofday current_time pg_sleep")


def _is_endless_span(span: Tree) -> Tree:
    return let(
        span, lambda s: or_(*(eq(field(s, "micros"), bigint(end)) for end in (-(1 << 63), (1 << 63) - 1)))
    )


def _date_and_time(date: Tree, time: Tree) -> Tree:
    return from_micros(add(micros_of(cast(date, "TIMESTAMP_NTZ")), time))


_install()
