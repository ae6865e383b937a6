"""Dates, times and intervals: arithmetic and zones.

An interval is struct(months, days, micros). Its parts are added in this order: months (the day clipped to the
month's length), days, microseconds. For timestamptz, months and days follow the wall clock of the session
zone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zoneinfo import available_timezones

from sqlglot import exp

from tidemill.sql.functions.casts_time import (
    MICROS_PER_DAY,
    cast_between,
    endless_between,
    from_micros,
    interval,
    is_endless,
    is_endless_span,
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
    lt,
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
    FIRST_TIMESTAMP,
    LAST_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)
from tidemill.types.wire.interval_input import INFINITY, MINUS_INFINITY

_ADDED, _TAKEN = "add infinite interval to", "subtract infinite interval from"
_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"


def add_to_timestamp(stamp: Tree, span: Tree, *, minus: bool = False) -> Tree:
    """timestamp + interval or timestamp - interval."""

    def moved(local: Tree, by: _Span) -> Tree:
        return from_micros(_plus(micros_of(_calendar(local, by)), by.micros))

    return _moved(stamp, span, TIMESTAMP, moved, minus=minus)


def _add_to_instant(stamp: Tree, span: Tree, *, minus: bool = False) -> Tree:
    """timestamptz + interval or timestamptz - interval."""

    def moved(instant: Tree, by: _Span) -> Tree:
        # Microseconds are added without a calendar.
        later = instant if by.is_clock else to_instant(_calendar(to_local(instant), by))
        return call("timestamp_micros", _plus(call("unix_micros", later), by.micros))

    return _moved(stamp, span, TIMESTAMPTZ, moved, minus=minus)


@dataclass(frozen=True, slots=True)
class _Span:
    """An interval's parts; None for a part that is known to be zero."""

    months: Tree | None
    days: Tree | None
    micros: Tree | None

    @property
    def is_clock(self) -> bool:
        return self.months is None and self.days is None


def _plus(micros: Tree, more: Tree | None) -> Tree:
    return micros if more is None else add(micros, more)


def _known_span(span: Tree) -> tuple[int, int, int] | None:
    """The parts of a constant."""
    if not isinstance(span, exp.Anonymous) or span.this != "named_struct":
        return None
    found: list[int] = []
    for part in span.expressions[1::2]:
        number = part.this if isinstance(part, exp.Cast) else part
        sign = -1 if isinstance(number, exp.Neg) else 1
        digits = number.this if isinstance(number, exp.Neg) else number
        if not isinstance(digits, exp.Literal) or digits.is_string:
            return None
        found.append(sign * int(digits.this))
    return (found[0], found[1], found[2]) if len(found) == 3 else None


def _parts(by: Tree, *, minus: bool) -> _Span:
    def of(name: str, zero: Tree) -> Tree:
        part = field(by, name)
        return sub(zero, part) if minus else part

    return _Span(of("months", integer(0)), of("days", integer(0)), of("micros", bigint(0)))


_Finite = Callable[[Tree, _Span], Tree]


def _moved(stamp: Tree, span: Tree, t: SqlType, finite: _Finite, *, minus: bool) -> Tree:
    """An infinite interval makes a finite time infinite; of two infinities both must have one sign."""
    known = _known_span(span)
    if known is not None and known not in (INFINITY, MINUS_INFINITY):
        return let(stamp, lambda v: _moved_by(v, known, t, finite, minus=minus))

    def build(v: list[Tree]) -> Tree:
        value, by = v
        return case(
            (is_endless_span(by), _moved_far(value, by, t, minus=minus)),
            (and_(is_endless(value, t), not_(is_null(by))), value),
            otherwise=let(finite(value, _parts(by, minus=minus)), lambda found: _in_range(found, t)),
        )

    return let_all([stamp, span], build)


def _moved_by(value: Tree, known: tuple[int, int, int], t: SqlType, finite: _Finite, *, minus: bool) -> Tree:
    """Moved by a finite constant."""
    months, days, micros = (-part if minus else part for part in known)
    by = _Span(
        integer(months) if months else None,
        integer(days) if days else None,
        bigint(micros) if micros else None,
    )
    found = finite(value, by)
    if min(months, days, micros) < 0:
        found = let(found, lambda later: _in_range(later, t))
    return if_(is_endless(value, t), value, found)


def _moved_far(value: Tree, by: Tree, t: SqlType, *, minus: bool) -> Tree:
    """Moved by an infinite interval."""
    up = gt(field(by, "micros"), bigint(0))
    end = if_(up, _end(not minus, t), _end(minus, t))
    opposite = and_(is_endless(value, t), not_(eq(value, end)))
    return case(
        (is_null(value), null()),
        (opposite, raise_error("22008", "timestamp out of range")),
        otherwise=end.copy(),
    )


def _in_range(value: Tree, t: SqlType) -> Tree:
    """The earliest timestamp is PostgreSQL's; Spark's calendar has no limit."""
    micros = _instant_micros(value) if t is TIMESTAMPTZ else micros_of(value)
    early = lt(micros, bigint(FIRST_TIMESTAMP))
    return if_(early, raise_error("22008", "timestamp out of range"), value)


def _end(last: bool, t: SqlType) -> Tree:
    """infinity, or -infinity."""
    stamp = call("timestamp_micros", bigint(TIMESTAMP_INFINITY if last else TIMESTAMP_MINUS_INFINITY))
    return stamp if t is TIMESTAMPTZ else cast(stamp, "TIMESTAMP_NTZ")


def _stays(value: Tree, by: Tree, t: SqlType) -> Tree:
    """Whether the addition has no effect: an infinite value stays, unless NULL is added."""
    return and_(is_endless(value, t), not_(is_null(by)))


def _calendar(local: Tree, by: _Span) -> Tree:
    if by.months is not None:
        local = add(local, call("make_ym_interval", integer(0), by.months))
    return local if by.days is None else add(local, call("make_dt_interval", by.days))


def _difference(micros: Callable[[Tree], Tree], t: SqlType) -> Builder:
    """The difference of two timestamps: whole days and the rest. With an infinite one it is infinite."""

    def parts(v: Tree) -> Tree:
        days = cast(int_divide(v, bigint(MICROS_PER_DAY)), "INT")
        rest = remainder(v, bigint(MICROS_PER_DAY))
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), days, rest))

    def build(v: list[Tree]) -> Tree:
        later, earlier = micros(v[0]), micros(v[1])
        far = case(
            (eq(later, earlier), raise_error("22008", "interval out of range")),
            (gt(later.copy(), earlier.copy()), _endless_span(INFINITY)),
            otherwise=_endless_span(MINUS_INFINITY),
        )
        return if_(_either_endless(v, t), far, let(sub(later.copy(), earlier.copy()), parts))

    return lambda a: let_all(list(a), build)


def _endless_span(parts: tuple[int, int, int]) -> Tree:
    months, days, micros = parts
    return interval(integer(months), integer(days), bigint(micros))


def _either_endless(v: list[Tree], t: SqlType) -> Tree:
    """For two values that are not NULL."""
    return and_(not_(is_null(v[0])), not_(is_null(v[1])), or_(is_endless(v[0], t), is_endless(v[1], t)))


def _instant_micros(v: Tree) -> Tree:
    return call("unix_micros", v)


def _time_difference(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), integer(0), v))

    return let(sub(args[0], args[1]), build)


def _time_shift(op: Callable[[Tree, Tree], Tree], doing: str) -> Builder:
    def shifted(time: Tree, micros: Tree) -> Tree:
        return call("pmod", op(time, micros), bigint(MICROS_PER_DAY))

    def build(v: list[Tree]) -> Tree:
        far = and_(not_(is_null(v[0])), is_endless_span(v[1]))
        return if_(far, raise_error("22008", f"cannot {doing} time"), shifted(v[0], field(v[1], "micros")))

    def made(a: Sequence[Tree]) -> Tree:
        known = _known_span(a[1])
        if known is not None and known not in (INFINITY, MINUS_INFINITY):
            return shifted(a[0], bigint(known[2]))
        return let_all(list(a), build)

    return made


# --- zones


def check_zone(name: str) -> str | None:
    """The tz database's spelling of a zone that Spark also knows by that name; None for others, such as UTC+3
    (in PostgreSQL west of Greenwich, in Java east) or EST."""
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
        # The limits of a 64-bit number of microseconds, in seconds.
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
    """A date moved by days, within PostgreSQL's range; an infinite date stays."""

    def build(v: list[Tree]) -> Tree:
        moved = op(cast(call("unix_date", v[0]), "BIGINT"), cast(v[1], "BIGINT"))
        inside = and_(ge(moved, bigint(FIRST_DAY)), le(moved, bigint(LAST_DAY)))
        found = call("date_from_unix_date", cast(moved, "INT"))
        return case(
            (_stays(v[0], v[1], DATE), v[0]),
            (inside, found),
            (is_null(moved), found),
            otherwise=raise_error("22008", "date out of range"),
        )

    return let_all([date, days], build)


def _days_between(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        endless = _either_endless(v, DATE)
        refused = raise_error("22008", "cannot subtract infinite dates")
        return if_(endless, refused, call("datediff", v[0], v[1]))

    return let_all(list(args), build)


def _install() -> None:
    operator("+", (DATE, INT4), DATE, lambda a: _days_later(a[0], a[1], add))
    operator("+", (INT4, DATE), DATE, lambda a: _days_later(a[1], a[0], add))
    operator("-", (DATE, INT4), DATE, lambda a: _days_later(a[0], a[1], sub))
    operator("-", (DATE, DATE), INT4, _days_between)
    for name, minus in (("+", False), ("-", True)):
        operator(
            name,
            (DATE, INTERVAL),
            TIMESTAMP,
            lambda a, m=minus: add_to_timestamp(_midnight(a[0]), a[1], minus=m),
        )
        operator(
            name, (TIMESTAMP, INTERVAL), TIMESTAMP, lambda a, m=minus: add_to_timestamp(a[0], a[1], minus=m)
        )
        operator(
            name,
            (TIMESTAMPTZ, INTERVAL),
            TIMESTAMPTZ,
            lambda a, m=minus: _add_to_instant(a[0], a[1], minus=m),
        )
    operator("+", (INTERVAL, DATE), TIMESTAMP, lambda a: add_to_timestamp(_midnight(a[1]), a[0]))
    operator("+", (INTERVAL, TIMESTAMP), TIMESTAMP, lambda a: add_to_timestamp(a[1], a[0]))
    operator("+", (INTERVAL, TIMESTAMPTZ), TIMESTAMPTZ, lambda a: _add_to_instant(a[1], a[0]))
    operator("+", (INTERVAL, TIME), TIME, lambda a: _time_shift(add, _ADDED)([a[1], a[0]]))
    operator("-", (TIMESTAMP, TIMESTAMP), INTERVAL, _difference(micros_of, TIMESTAMP))
    operator("-", (TIMESTAMPTZ, TIMESTAMPTZ), INTERVAL, _difference(_instant_micros, TIMESTAMPTZ))
    operator("+", (DATE, TIME), TIMESTAMP, lambda a: _date_and_time(a[0], a[1]))
    operator("+", (TIME, DATE), TIMESTAMP, lambda a: _date_and_time(a[1], a[0]))
    operator("+", (TIME, INTERVAL), TIME, _time_shift(add, _ADDED))
    operator("-", (TIME, INTERVAL), TIME, _time_shift(sub, _TAKEN))
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
    function("isfinite", (INTERVAL,), BOOL, lambda a: not_(is_endless_span(a[0])))
    not_yet("clock_timestamp timeofday current_time")


def _date_and_time(date: Tree, time: Tree) -> Tree:
    def build(v: list[Tree]) -> Tree:
        later = from_micros(add(micros_of(v[0]), v[1]))
        return if_(_stays(v[0], v[1], TIMESTAMP), v[0], later)

    return let_all([_midnight(date), time], build)


_install()
