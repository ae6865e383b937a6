"""Dates, times and intervals: arithmetic, parts, truncation.

An interval is struct(months, days, micros) and its three parts are added in this order: months (the day
clipped to the month's length), days, microseconds. For timestamptz months and days are counted on the session
zone's wall clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zoneinfo import available_timezones

from sqlglot import exp

from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.functions.casts_time import (
    MICROS_PER_DAY,
    from_micros,
    interval,
    micros_of,
    to_instant,
    to_local,
)
from tidemill.sql.functions.markers import Fixed, fixed
from tidemill.sql.functions.refuse import refused_function, refused_operator
from tidemill.sql.functions.signature import Builder, function, not_yet, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    bigint,
    call,
    case,
    cast,
    decimal,
    divide,
    field,
    ge,
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
    word,
)
from tidemill.types.model import (
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

_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"


def add_to_timestamp(stamp: Tree, span: Tree) -> Tree:
    """timestamp + interval."""
    return let(
        span,
        lambda s: from_micros(add(micros_of(_calendar(stamp, s)), field(s, "micros"))),
    )


def _calendar(local: Tree, span: Tree) -> Tree:
    months = add(local, call("make_ym_interval", integer(0), field(span, "months")))
    return add(months, call("make_dt_interval", field(span, "days")))


def _add_to_instant(stamp: Tree, span: Tree) -> Tree:
    """timestamptz + interval."""

    def build(s: Tree) -> Tree:
        moved = to_instant(_calendar(to_local(stamp), s))
        return call("timestamp_micros", add(call("unix_micros", moved), field(s, "micros")))

    return let(span, build)


def negated(span: Tree) -> Tree:
    def build(s: Tree) -> Tree:
        parts = [sub(zero, field(s, part)) for part, zero in _ZEROS]
        return if_(is_null(s), cast(null(), _INTERVAL), interval(*parts))

    return let(span, build)


_ZEROS = (("months", integer(0)), ("days", integer(0)), ("micros", bigint(0)))


def _combined(op: Callable[[Tree, Tree], Tree]) -> Builder:
    def build(v: list[Tree]) -> Tree:
        a, b = v
        parts = [op(field(a, part), field(b, part)) for part, _ in _ZEROS]
        return if_(or_(is_null(a), is_null(b)), cast(null(), _INTERVAL), interval(*parts))

    return lambda a: let_all(list(a), build)


def _times(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        span, n = v
        months = cast(mul(cast(field(span, "months"), "BIGINT"), n), "INT")
        days = cast(mul(cast(field(span, "days"), "BIGINT"), n), "INT")
        product = interval(months, days, mul(field(span, "micros"), cast(n, "BIGINT")))
        return if_(or_(is_null(span), is_null(n)), cast(null(), _INTERVAL), product)

    return let_all(list(args), build)


def _difference(micros: Callable[[Tree], Tree]) -> Builder:
    """Between two timestamps: whole days and the rest."""

    def build(v: Tree) -> Tree:
        days = cast(int_divide(v, bigint(MICROS_PER_DAY)), "INT")
        rest = remainder(v, bigint(MICROS_PER_DAY))
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), days, rest))

    return lambda a: let(sub(micros(a[0]), micros(a[1])), build)


def _instant_micros(v: Tree) -> Tree:
    return call("unix_micros", v)


def _time_difference(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        return if_(is_null(v), cast(null(), _INTERVAL), interval(integer(0), integer(0), v))

    return let(sub(args[0], args[1]), build)


def _time_shift(op: Callable[[Tree, Tree], Tree]) -> Builder:
    return lambda a: call("pmod", op(a[0], field(a[1], "micros")), bigint(MICROS_PER_DAY))


# --- extract


def _spark_part(unit: str) -> Callable[[Tree], Tree]:
    return lambda v: exp.Extract(this=word(unit), expression=v)


def _of_seconds(scale: str) -> Callable[[Tree], Tree]:
    return lambda v: cast(
        mul(cast(exp.Extract(this=word("SECOND"), expression=v), "DECIMAL(8,6)"), decimal(scale, 8, 0)),
        "DECIMAL(38,18)",
    )


def _epoch(v: Tree) -> Tree:
    return divide(cast(micros_of(v), "DECIMAL(38,18)"), decimal("1000000"))


_PARTS: dict[str, Callable[[Tree], Tree]] = {
    "year": _spark_part("YEAR"),
    "isoyear": _spark_part("YEAROFWEEK"),
    "quarter": _spark_part("QUARTER"),
    "month": _spark_part("MONTH"),
    "week": _spark_part("WEEK"),
    "day": _spark_part("DAY"),
    "dow": lambda v: sub(call("dayofweek", v), integer(1)),
    "isodow": lambda v: add(call("weekday", v), integer(1)),
    "doy": _spark_part("DOY"),
    "hour": _spark_part("HOUR"),
    "minute": _spark_part("MINUTE"),
    "second": _spark_part("SECOND"),
    "milliseconds": _of_seconds("1000"),
    "microseconds": _of_seconds("1000000"),
    "epoch": _epoch,
}
_PLURALS = {
    "years": "year",
    "months": "month",
    "days": "day",
    "hours": "hour",
    "minutes": "minute",
    "seconds": "second",
    "weeks": "week",
    "millisecond": "milliseconds",
    "microsecond": "microseconds",
}
# Units that PostgreSQL has and we do not.
_OTHER_UNITS = frozenset(
    {"decade", "century", "millennium", "julian", "timezone", "timezone_hour", "timezone_minute"}
)
_TIME_PARTS = frozenset({"hour", "minute", "second", "milliseconds", "microseconds", "epoch"})
_YEARS = frozenset({"year", "isoyear"})


def extract(part: str, value: Tree, t: SqlType) -> Tree:
    """EXTRACT(part FROM value) as numeric."""
    unit = _PLURALS.get(part, part)
    build = _PARTS.get(unit)
    if unit not in _PARTS and unit not in _OTHER_UNITS:
        raise TidemillError(f'unit "{part}" not recognized for type {t}', sqlstate="22023")
    if build is None or t.kind is Kind.INTERVAL:
        raise Unsupported(f"EXTRACT of {part} from {t} is not supported")
    if t.kind is Kind.DATE and unit in _TIME_PARTS - {"epoch"}:
        raise TidemillError(f'unit "{unit}" not supported for type date', sqlstate="0A000")
    if t.kind is Kind.TIME:
        if unit not in _TIME_PARTS:
            raise TidemillError(f'unit "{unit}" not supported for type {t}', sqlstate="0A000")
        value = from_micros(value)
    elif t.kind is Kind.TIMESTAMPTZ:
        if unit == "epoch":
            micros = cast(call("unix_micros", value), "DECIMAL(38,18)")
            return cast(divide(micros, decimal("1000000")), "DECIMAL(38,18)")
        value = to_local(value)
    if unit in _YEARS:
        return let(value, lambda v: _years(build, v))
    return cast(build(value), "DECIMAL(38,18)")


def _years(build: Callable[[Tree], Tree], v: Tree) -> Tree:
    """There is no year 0: before year 1 PostgreSQL counts -1, -2, ...; Spark 0, -1, ..."""
    year = cast(build(v), "DECIMAL(38,18)")
    return if_(le(year, decimal("0")), sub(year, decimal("1")), year)


# --- date_trunc

_TRUNC = {
    "microseconds": "MICROSECOND",
    "milliseconds": "MILLISECOND",
    "second": "SECOND",
    "minute": "MINUTE",
    "hour": "HOUR",
    "day": "DAY",
    "week": "WEEK",
    "month": "MONTH",
    "quarter": "QUARTER",
    "year": "YEAR",
}


def date_trunc(unit: str, value: Tree, t: SqlType) -> Tree:
    """date_trunc(unit, value) for a timestamp or timestamptz."""
    singular = _PLURALS.get(unit, unit)
    name = _TRUNC.get(singular)
    if singular not in _TRUNC and singular not in _OTHER_UNITS:
        raise TidemillError(f'unit "{unit}" not recognized for type {t}', sqlstate="22023")
    if name is None:
        raise Unsupported(f"date_trunc() to {unit} is not supported")
    if t.kind is Kind.TIMESTAMPTZ:
        local = cast(
            call("date_trunc", string(name), cast(to_local(value), "TIMESTAMP_LTZ")), "TIMESTAMP_NTZ"
        )
        return to_instant(local)
    return cast(call("date_trunc", string(name), cast(value, "TIMESTAMP_LTZ")), "TIMESTAMP_NTZ")


# --- zones


def check_zone(name: str) -> str:
    """A zone that Java, PostgreSQL and Python mean alike: a name of the tz database. (In PostgreSQL 'UTC+3'
    is west of Greenwich, in Java east.)"""
    known = {z.lower(): z for z in available_timezones() if "/" in z or z in ("UTC", "GMT")}
    if name.lower() in known:
        return known[name.lower()]
    raise Unsupported(f'time zone "{name}" is not supported', hint="Use a name such as Europe/Berlin or UTC.")


def at_time_zone(args: Sequence[Tree], t: SqlType) -> Tree:
    where = args[1]
    if not (isinstance(where, exp.Literal) and where.is_string):
        raise Unsupported("AT TIME ZONE with a zone that is no constant is not supported")
    zone = string(check_zone(str(where.this)))
    return to_instant(args[0], zone) if t.kind is Kind.TIMESTAMP else to_local(args[0], zone)


def _make_date(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        year, month, day = v
        made = call("make_date", year, month, day)
        plain = call("format_string", string("date field value out of range: %d-%02d-%02d"), *v)
        month_fits = and_(ge(month, integer(1)), le(month, integer(12)))
        last = call("day", call("last_day", call("make_date", year, month, integer(1))))
        return case(
            (or_(is_null(year), is_null(month), is_null(day)), cast(null(), "DATE")),
            (
                not_(and_(ge(year, integer(1)), le(year, integer(9999)), month_fits)),
                raise_error("22008", plain),
            ),
            (not_(and_(ge(day, integer(1)), le(day, last))), raise_error("22008", plain)),
            otherwise=made,
        )

    return let_all(list(args), build)


def _to_timestamp(args: Sequence[Tree]) -> Tree:
    micros = cast(call("rint", mul(args[0], cast(integer(1_000_000), "DOUBLE"))), "BIGINT")
    return call("timestamp_micros", micros)


def _install() -> None:
    operator("+", (DATE, INT4), DATE, lambda a: call("date_add", a[0], a[1]))
    operator("+", (INT4, DATE), DATE, lambda a: call("date_add", a[1], a[0]))
    operator("-", (DATE, INT4), DATE, lambda a: call("date_sub", a[0], a[1]))
    operator("-", (DATE, DATE), INT4, lambda a: call("datediff", a[0], a[1]))
    for name, turn in (("+", lambda s: s), ("-", negated)):
        operator(
            name,
            (DATE, INTERVAL),
            TIMESTAMP,
            lambda a, f=turn: add_to_timestamp(cast(a[0], "TIMESTAMP_NTZ"), f(a[1])),
        )
        operator(name, (TIMESTAMP, INTERVAL), TIMESTAMP, lambda a, f=turn: add_to_timestamp(a[0], f(a[1])))
        operator(name, (TIMESTAMPTZ, INTERVAL), TIMESTAMPTZ, lambda a, f=turn: _add_to_instant(a[0], f(a[1])))
    operator("+", (INTERVAL, DATE), TIMESTAMP, lambda a: add_to_timestamp(cast(a[1], "TIMESTAMP_NTZ"), a[0]))
    operator("+", (INTERVAL, TIMESTAMP), TIMESTAMP, lambda a: add_to_timestamp(a[1], a[0]))
    operator("+", (INTERVAL, TIMESTAMPTZ), TIMESTAMPTZ, lambda a: _add_to_instant(a[1], a[0]))
    operator("+", (INTERVAL, TIME), TIME, lambda a: _time_shift(add)([a[1], a[0]]))
    operator("-", (TIMESTAMP, TIMESTAMP), INTERVAL, _difference(micros_of))
    operator("-", (TIMESTAMPTZ, TIMESTAMPTZ), INTERVAL, _difference(_instant_micros))
    operator("+", (DATE, TIME), TIMESTAMP, lambda a: _date_and_time(a[0], a[1]))
    operator("+", (TIME, DATE), TIMESTAMP, lambda a: _date_and_time(a[1], a[0]))
    operator("+", (TIME, INTERVAL), TIME, _time_shift(add))
    operator("-", (TIME, INTERVAL), TIME, _time_shift(sub))
    operator("-", (TIME, TIME), INTERVAL, _time_difference)
    operator("+", (INTERVAL, INTERVAL), INTERVAL, _combined(add))
    operator("-", (INTERVAL, INTERVAL), INTERVAL, _combined(sub))
    operator("-", (INTERVAL,), INTERVAL, lambda a: negated(a[0]))
    operator("*", (INTERVAL, INT4), INTERVAL, _times)
    operator("*", (INT4, INTERVAL), INTERVAL, lambda a: _times([a[1], a[0]]))
    refused_operator("*", (INTERVAL, FLOAT8), INTERVAL)
    refused_operator("*", (FLOAT8, INTERVAL), INTERVAL)
    refused_operator("/", (INTERVAL, FLOAT8), INTERVAL)
    function("make_date", (INT4, INT4, INT4), DATE, _make_date)
    function("to_timestamp", (FLOAT8,), TIMESTAMPTZ, _to_timestamp)
    refused_function("to_timestamp", (TEXT, TEXT), TIMESTAMPTZ)
    for name in ("now", "transaction_timestamp", "statement_timestamp"):
        function(name, (), TIMESTAMPTZ, lambda a: fixed(Fixed.NOW))
    for t in (TIMESTAMP, TIMESTAMPTZ):
        other = TIMESTAMPTZ if t is TIMESTAMP else TIMESTAMP
        function("timezone", (TEXT, t), other, lambda a, t=t: at_time_zone([a[1], a[0]], t))
    refused_function("timezone", (INTERVAL, TIMESTAMP), TIMESTAMPTZ)
    refused_function("timezone", (INTERVAL, TIMESTAMPTZ), TIMESTAMP)
    not_yet(
        """
        age clock_timestamp timeofday date_bin isfinite justify_days justify_hours justify_interval
        make_interval make_time make_timestamp make_timestamptz date_add date_subtract current_time
        localtime pg_sleep
        """
    )


def _date_and_time(date: Tree, time: Tree) -> Tree:
    return from_micros(add(micros_of(cast(date, "TIMESTAMP_NTZ")), time))


_install()
