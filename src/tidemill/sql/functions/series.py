"""generate_series: the arrays that its rows are taken from.

Spark counts numbers. Python computes timestamps with a step of months, or of days in a zone: each value is
the one before plus the step, and such steps cannot be multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tidemill.errors import InvalidValue, LimitExceeded
from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.signature import Builder
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    bigint,
    call,
    case,
    cast,
    cast_to,
    decimal,
    divide,
    eq,
    ge,
    gt,
    if_,
    lambda_,
    le,
    let_all,
    lt,
    mul,
    or_,
    raise_error,
    sub,
    variable,
)
from tidemill.types.model import INT8, INTERVAL, NUMERIC, TIMESTAMP, TIMESTAMPTZ, SqlType, array
from tidemill.types.wire.calendar import MICROS_PER_DAY, civil_from_days, days_from_civil, days_in_month

# Rows of one series of timestamps that are made in Python: a second each for 60 years of every minute would
# be 30 million; ten million eight-byte numbers are what a task's memory holds without notice.
MAX_STEPS = 10_000_000

# Numbers of a series that is first built as an array: one with variable ends, or outside FROM. An array of
# this size has 80 MB.
MAX_NUMBERS = 10_000_000
_TOO_MANY = ("54000", f"generate_series() gives more than {MAX_NUMBERS} rows here")

_ZERO_STEP = ("22023", "step size cannot equal zero")


def _counted(
    start: Tree, stop: Tree, step: Tree, rows: Callable[[Tree], Tree], zero: Tree, none: Tree
) -> Tree:
    """`rows` (up to an end) if the step leads from start to stop, `none` if it leads away. Spark's sequence
    also counts down without a step, and refuses a step of the wrong sign."""
    up = and_(gt(step.copy(), zero), le(start.copy(), stop.copy()))
    down = and_(lt(step.copy(), zero.copy()), ge(start.copy(), stop.copy()))
    ends = (cast(end.copy(), "DOUBLE") for end in (stop, start))
    # No division, because a step of zero is a separate error.
    way = call("abs", sub(next(ends), next(ends)))
    most = mul(call("abs", cast(step.copy(), "DOUBLE")), cast(bigint(MAX_NUMBERS - 1), "DOUBLE"))
    many = gt(way, most)
    return case(
        (eq(step.copy(), zero.copy()), raise_error(*_ZERO_STEP)),
        (and_(or_(up, down), many), raise_error(*_TOO_MANY)),
        # Of constants Spark works out all branches.
        (or_(up.copy(), down.copy()), rows(if_(many.copy(), start.copy(), stop.copy()))),
        otherwise=none,
    )


def number_series(t: SqlType) -> Builder:
    def build(args: Sequence[Tree]) -> Tree:
        trees = [cast_to(a, INT8) for a in args]
        if len(trees) == 2:
            trees.append(bigint(1))

        def made(v: list[Tree]) -> Tree:
            start, stop, step = v
            none = cast_to(call("array"), array(INT8))

            def rows(end: Tree) -> Tree:
                return call("sequence", start.copy(), end, step.copy())

            return _counted(start, stop, step, rows, bigint(0), none)

        return cast_to(let_all(trees, made), array(t))

    return build


def numeric_series(args: Sequence[Tree]) -> Tree:
    trees = list(args)
    if len(trees) == 2:
        trees.append(decimal("1"))

    def made(v: list[Tree]) -> Tree:
        start, stop, step = v
        value = add(
            start.copy(), cast(mul(cast(variable("i"), "DECIMAL(20,0)"), step.copy()), "DECIMAL(38,18)")
        )

        def rows(end: Tree) -> Tree:
            count = call("floor", divide(sub(end, start.copy()), step.copy()))
            places = call("sequence", bigint(0), cast(count, "BIGINT"))
            return call("transform", places, lambda_("i", cast_to(value, NUMERIC)))

        return _counted(start, stop, step, rows, decimal("0"), cast_to(call("array"), array(NUMERIC)))

    return let_all(trees, made)


def timestamp_series(t: SqlType, step: tuple[int, int, int] | None) -> Builder:
    """`step` is the interval's months, days and microseconds, where it is a constant."""
    if step is None or step[0] or (step[1] and t is TIMESTAMPTZ):
        return _IN_PYTHON[t]
    micros = step[1] * MICROS_PER_DAY + step[2]

    def build(args: Sequence[Tree]) -> Tree:
        ends = [call("unix_micros", cast(a, "TIMESTAMP_LTZ")) for a in args[:2]]

        def made(v: list[Tree]) -> Tree:
            none = cast_to(call("array"), array(INT8))

            def rows(end: Tree) -> Tree:
                return call("sequence", v[0].copy(), end, bigint(micros))

            return _counted(v[0], v[1], bigint(micros), rows, bigint(0), none)

        stamp = cast_to(call("timestamp_micros", variable("i")), t)
        return call("transform", let_all(ends, made), lambda_("i", stamp))

    return build


def _stepped(start: int, stop: int, step: tuple[int, int, int], zone: str | None = None) -> list[int]:
    months, days, micros = step
    length = (months * 30 + days) * MICROS_PER_DAY + micros
    if length == 0:
        raise InvalidValue(_ZERO_STEP[1], sqlstate=_ZERO_STEP[0])
    where = None if zone is None else ZoneInfo(zone)
    found: list[int] = []
    current = start
    while current <= stop if length > 0 else current >= stop:
        found.append(current)
        if len(found) > MAX_STEPS:
            raise LimitExceeded(f"generate_series() gives more than {MAX_STEPS} timestamps")
        current = _next(current, step, where)
    return found


def _next(stamp: int, step: tuple[int, int, int], where: ZoneInfo | None) -> int:
    """Months and days are added to the local calendar, the rest to the instant."""
    months, days, micros = step
    if months or days:
        local = stamp if where is None else stamp + _offset(where, stamp, instant=True)
        day, clock = divmod(local, MICROS_PER_DAY)
        year, month, of_month = civil_from_days(day)
        year, month = divmod(year * 12 + month - 1 + months, 12)
        of_month = min(of_month, days_in_month(year, month + 1))
        local = (days_from_civil(year, month + 1, of_month) + days) * MICROS_PER_DAY + clock
        stamp = local if where is None else local - _offset(where, local, instant=False)
    return stamp + micros


_EPOCH = datetime(1970, 1, 1)


def _offset(where: ZoneInfo, micros: int, *, instant: bool) -> int:
    """The zone's offset from UTC at an instant or a local time. An ambiguous local time has the smaller
    offset, as in PostgreSQL.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise InvalidValue("timestamp out of range", sqlstate="22008") from None
    if instant:
        found = [moment.replace(tzinfo=UTC).astimezone(where).utcoffset()]
    else:
        found = [moment.replace(tzinfo=where, fold=fold).utcoffset() for fold in (0, 1)]
    return min(o // timedelta(microseconds=1) for o in found if o is not None)


_IN_PYTHON: dict[SqlType, Builder] = {
    TIMESTAMP: row_function("generate_series", (TIMESTAMP, TIMESTAMP, INTERVAL), array(TIMESTAMP), _stepped),
    TIMESTAMPTZ: row_function(
        "generate_series", (TIMESTAMPTZ, TIMESTAMPTZ, INTERVAL), array(TIMESTAMPTZ), _stepped, zoned=True
    ),
}
