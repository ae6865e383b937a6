"""EXTRACT, date_part and date_trunc.

Spark computes the common constant units; Python computes the others (`scalar.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.functions.casts_time import from_micros, is_endless, micros_of, to_instant, to_local
from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.signature import Builder, function
from tidemill.sql.functions.tree import (
    Tree,
    add,
    call,
    cast,
    decimal,
    divide,
    if_,
    integer,
    le,
    let,
    mul,
    null,
    raise_error,
    string,
    sub,
    word,
)
from tidemill.sql.scalar import parts
from tidemill.types.model import (
    DATE,
    FLOAT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
)

_DECIMAL = "DECIMAL(38,18)"


def _spark_part(unit: str) -> Callable[[Tree], Tree]:
    return lambda v: exp.Extract(this=word(unit), expression=v)


def _of_seconds(scale: str) -> Callable[[Tree], Tree]:
    return lambda v: cast(
        mul(cast(exp.Extract(this=word("SECOND"), expression=v), "DECIMAL(8,6)"), decimal(scale, 8, 0)),
        _DECIMAL,
    )


def _seconds_of(micros: Tree) -> Tree:
    return divide(cast(micros, _DECIMAL), decimal("1000000"))


def _year(unit: str) -> Callable[[Tree], Tree]:
    """There is no year 0. Before year 1, PostgreSQL counts -1, -2, ... and Spark 0, -1, ..."""

    def build(v: Tree) -> Tree:
        year = cast(exp.Extract(this=word(unit), expression=v), _DECIMAL)
        return if_(le(year, decimal("0")), sub(year, decimal("1")), year)

    return build


_PARTS: dict[str, Callable[[Tree], Tree]] = {
    "year": _year("YEAR"),
    "isoyear": _year("YEAROFWEEK"),
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
}
_CLOCK = frozenset({"hour", "minute", "second", "milliseconds", "microseconds"})

_PYTHON: dict[SqlType, Builder] = {
    DATE: row_function("extract", (TEXT, DATE), NUMERIC, parts.of_date),
    TIME: row_function("extract", (TEXT, TIME), NUMERIC, parts.of_time),
    TIMESTAMP: row_function("extract", (TEXT, TIMESTAMP), NUMERIC, parts.of_timestamp),
    TIMESTAMPTZ: row_function("extract", (TEXT, TIMESTAMPTZ), NUMERIC, parts.of_timestamptz, zoned=True),
    INTERVAL: row_function("extract", (TEXT, INTERVAL), NUMERIC, parts.of_interval),
}


def _constant(unit: Tree) -> str | None:
    return str(unit.this) if isinstance(unit, exp.Literal) and unit.is_string else None


def extract(unit: Tree, value: Tree, t: SqlType) -> Tree:
    """EXTRACT(unit FROM value) as numeric."""
    written = _constant(unit)
    if written is None or t.kind is Kind.INTERVAL:
        return _PYTHON[t]([unit, value])
    name = parts.unit_of(written, str(t))
    if name == "epoch":
        return _epoch(value, t)
    build = _PARTS.get(name)
    if (
        build is None
        or (t.kind is Kind.DATE and name in _CLOCK)
        or (t.kind is Kind.TIME and name not in _CLOCK)
    ):
        return _PYTHON[t]([unit, value])
    if t.kind is Kind.TIME:
        return cast(build(from_micros(value)), _DECIMAL)

    def finite(v: Tree) -> Tree:
        found = cast(build(to_local(v) if t.kind is Kind.TIMESTAMPTZ else v), _DECIMAL)
        return if_(is_endless(v, t), _of_endless(name), found)

    return let(value, finite)


# Fractional digits; the Julian day has as many as necessary, all other units are integers.
_DIGITS = {"second": 6, "milliseconds": 3, "epoch": 6, "julian": None}


def digits(unit: str, t: SqlType) -> int | None:
    """The number of fractional digits of EXTRACT(unit FROM t)."""
    try:
        name = parts.unit_of(unit, str(t))
    except TidemillError:
        return None
    return 0 if name == "epoch" and t.kind is Kind.DATE else _DIGITS.get(name, 0)


def _of_endless(name: str) -> Tree:
    if name in parts.GROWING:
        # numeric has no infinity here.
        return raise_error("22003", "value overflows numeric format")
    return cast(null(), _DECIMAL)


def _epoch(value: Tree, t: SqlType) -> Tree:
    if t.kind is Kind.TIME:
        return cast(_seconds_of(value), _DECIMAL)

    def finite(v: Tree) -> Tree:
        if t.kind is Kind.DATE:
            seconds: Tree = mul(cast(call("unix_date", v), "DECIMAL(12,0)"), decimal("86400", 5, 0))
        else:
            seconds = _seconds_of(call("unix_micros", v) if t.kind is Kind.TIMESTAMPTZ else micros_of(v))
        return if_(is_endless(v, t), _of_endless("epoch"), cast(seconds, _DECIMAL))

    return let(value, finite)


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
_TRUNC_TIMESTAMP = row_function("date_trunc", (TEXT, TIMESTAMP), TIMESTAMP, parts.trunc_timestamp)
_TRUNC_ZONED = row_function("date_trunc", (TEXT, TIMESTAMPTZ, TEXT), TIMESTAMPTZ, parts.trunc_timestamptz)
_TRUNC_INTERVAL = row_function("date_trunc", (TEXT, INTERVAL), INTERVAL, parts.trunc_interval)


def _truncated(args: Sequence[Tree]) -> Tree:
    written = _constant(args[0])
    name = None if written is None else _TRUNC.get(parts.unit_of(written, str(TIMESTAMP)))
    if name is None:
        return _TRUNC_TIMESTAMP(args)

    def finite(v: Tree) -> Tree:
        return if_(is_endless(v, TIMESTAMP), v, _cut(name, v))

    return let(args[1], finite)


def _cut(name: str, local: Tree) -> Tree:
    return cast(call("date_trunc", string(name), cast(local, "TIMESTAMP_LTZ")), "TIMESTAMP_NTZ")


def _truncated_instant(args: Sequence[Tree]) -> Tree:
    written = _constant(args[0])
    unit = "" if written is None else parts.unit_of(written, str(TIMESTAMPTZ))
    name = _TRUNC.get(unit)
    if name is None:
        return _TRUNC_ZONED([args[0], args[1], zone()])

    def finite(v: Tree) -> Tree:
        local = to_local(v)
        if unit in _CLOCK:
            # Within a day the offset does not change, even in a repeated hour.
            rest = sub(micros_of(local), micros_of(_cut(name, local.copy())))
            cut = call("timestamp_micros", sub(call("unix_micros", v), rest))
        else:
            cut = to_instant(_cut(name, local))
        return if_(is_endless(v, TIMESTAMPTZ), v, cut)

    return let(args[1], finite)


def _install() -> None:
    function("date_trunc", (TEXT, TIMESTAMP), TIMESTAMP, _truncated)
    function("date_trunc", (TEXT, TIMESTAMPTZ), TIMESTAMPTZ, _truncated_instant)
    function("date_trunc", (TEXT, TIMESTAMPTZ, TEXT), TIMESTAMPTZ, _TRUNC_ZONED)
    function("date_trunc", (TEXT, INTERVAL), INTERVAL, _TRUNC_INTERVAL)
    for t in (DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL):
        function("date_part", (TEXT, t), FLOAT8, lambda a, t=t: cast(extract(a[0], a[1], t), "DOUBLE"))


_install()
