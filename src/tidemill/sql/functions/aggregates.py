"""Aggregates, with PostgreSQL's result types.

Over no rows all but count return NULL. int2 and int4 sum to int8, int8 and numeric to numeric; averages of
integers are numeric. `collected` computes aggregates that need all rows of a group at once. The binder
handles ordered sets (percentile_cont, mode).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.refuse import refused_aggregate
from tidemill.sql.functions.signature import Builder, Poly, aggregate, not_yet
from tidemill.sql.functions.spans import divided
from tidemill.sql.functions.tree import (
    Tree,
    and_,
    bigint,
    call,
    case,
    cast,
    divide,
    eq,
    field,
    gt,
    if_,
    integer,
    is_infinite,
    null,
    or_,
    raise_error,
    string,
)
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    MZ_TIMESTAMP,
    NUMERIC,
    OID,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UINT2,
    UINT4,
    UINT8,
    Kind,
    SqlType,
)

_DECIMAL = "DECIMAL(38,18)"
_ORDERED = (
    *(INT2, INT4, INT8, UINT2, UINT4, UINT8, FLOAT4, FLOAT8, NUMERIC, OID, TEXT, BYTEA),
    *(DATE, TIME, TIMESTAMP, TIMESTAMPTZ, MZ_TIMESTAMP),
)
_JSON_HINT = "Use the function of jsonb: json is read as jsonb."


def _sum(wide: str, ddl: str) -> Builder:
    return lambda a: cast(call("sum", cast(a[0], wide)), ddl)


def _finite(build: Builder) -> Builder:
    """A float result: infinite if an input is infinite, else an overflow is out of range."""

    def made(args: Sequence[Tree]) -> Tree:
        total = build(args)
        endless = call("count", if_(is_infinite(args[0].copy()), integer(1), null()))
        overflow = and_(is_infinite(total.copy()), eq(endless, _zero()))
        return if_(overflow, raise_error("22003", "value out of range: overflow"), total)

    return made


def _average(wide: str) -> Builder:
    """Sum over count. Spark's own average of decimals would leave too few digits before the point."""
    return lambda a: cast(
        divide(
            cast(call("sum", cast(a[0], wide)), _DECIMAL),
            cast(call("nullif", call("count", a[0]), _zero()), _DECIMAL),
        ),
        _DECIMAL,
    )


def _zero() -> Tree:
    return cast(integer(0), "BIGINT")


def _interval_sum(args: Sequence[Tree]) -> Tree:
    """The sum by field. An infinite interval makes the sum infinite; infinities of opposite signs are an
    error.
    """
    span = args[0]
    ends = [_endless(span, end) for end in (_LAST, _FIRST)]
    fields: list[Tree] = []
    for name, ddl in (("months", "INT"), ("days", "INT"), ("micros", "BIGINT")):
        finite = if_(or_(*(e.copy() for e in ends)), null(), cast(field(span.copy(), name), "BIGINT"))
        fields += [string(name), cast(call("sum", finite), ddl)]
    up, down = (gt(call("count", if_(e, integer(1), null())), _zero()) for e in ends)
    return case(
        (eq(call("count", span.copy()), _zero()), cast(null(), _INTERVAL)),
        (and_(up, down), raise_error("22008", "interval out of range")),
        (up.copy(), _end(_LAST)),
        (down.copy(), _end(_FIRST)),
        otherwise=call("named_struct", *fields),
    )


_INTERVAL = "STRUCT<months: INT, days: INT, micros: BIGINT>"
# The storage form of infinite intervals: every field has the largest, or the smallest, value.
_LAST = ((1 << 31) - 1, (1 << 31) - 1, (1 << 63) - 1)
_FIRST = (-(1 << 31), -(1 << 31), -(1 << 63))


def _endless(span: Tree, end: tuple[int, int, int]) -> Tree:
    return eq(field(span.copy(), "micros"), bigint(end[2]))


def _end(end: tuple[int, int, int]) -> Tree:
    months, days, micros = end
    parts = (string("months"), integer(months), string("days"), integer(days), string("micros"))
    return call("named_struct", *parts, bigint(micros))


def _interval_average(args: Sequence[Tree]) -> Tree:
    count = cast(call("nullif", call("count", args[0].copy()), _zero()), "DOUBLE")
    return divided([_interval_sum(args), count])


def _extreme(name: str, t: SqlType) -> Builder:
    """min or max by a key, for values that Spark orders differently."""
    return lambda a: call(f"{name}_by", a[0], comparable(a[0].copy(), t))


def _extreme_array(name: str) -> None:
    def build(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
        return _extreme(name, types[0])(args)

    aggregate(name, (Poly.ARRAY,), Poly.ARRAY, _collected, typed=build)


def _collected(_args: Sequence[Tree]) -> Tree:
    raise AssertionError("this aggregate is made of all its rows")


def _sums() -> None:
    for t in (INT2, INT4):
        aggregate("sum", (t,), INT8, _sum("BIGINT", "BIGINT"))
        aggregate("avg", (t,), NUMERIC, _average("DECIMAL(20,0)"))
    for t in (INT8, UINT2, UINT4, UINT8):
        aggregate("sum", (t,), NUMERIC, _sum("DECIMAL(20,0)", _DECIMAL))
        aggregate("avg", (t,), NUMERIC, _average("DECIMAL(20,0)"))
    aggregate("sum", (NUMERIC,), NUMERIC, _sum(_DECIMAL, _DECIMAL))
    aggregate("avg", (NUMERIC,), NUMERIC, _average(_DECIMAL))
    aggregate("sum", (FLOAT4,), FLOAT4, _finite(_sum("DOUBLE", "FLOAT")))
    aggregate("sum", (FLOAT8,), FLOAT8, _finite(lambda a: call("sum", a[0])))
    aggregate("sum", (INTERVAL,), INTERVAL, _interval_sum)
    aggregate("avg", (INTERVAL,), INTERVAL, _interval_average)
    for t in (FLOAT4, FLOAT8):
        aggregate("avg", (t,), FLOAT8, _finite(lambda a: call("avg", cast(a[0], "DOUBLE"))))


def _extremes() -> None:
    for name in ("min", "max"):
        for t in _ORDERED:
            aggregate(name, (t,), t, name)
        for t in (SqlType(Kind.CHAR), INTERVAL):
            aggregate(name, (t,), t, _extreme(name, t))
        _extreme_array(name)


def _statistics() -> None:
    for name in ("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"):
        for t in (FLOAT4, FLOAT8):
            aggregate(name, (t,), FLOAT8, _of_double(name))
        for t in (INT2, INT4, INT8, NUMERIC):
            aggregate(name, (t,), NUMERIC, _collected)
    for name in ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2"):
        aggregate(name, (FLOAT8, FLOAT8), FLOAT8, name)
    for name in ("regr_avgx", "regr_avgy", "regr_sxx", "regr_sxy", "regr_syy"):
        aggregate(name, (FLOAT8, FLOAT8), FLOAT8, name)
    aggregate("regr_count", (FLOAT8, FLOAT8), INT8, "regr_count")


def _of_double(name: str) -> Builder:
    return lambda a: call(name, cast(a[0], "DOUBLE"))


def _install() -> None:
    aggregate("count", (), INT8, lambda a: exp.Count(this=exp.Star()))
    aggregate("count", (Poly.ANY,), INT8, "count")
    _sums()
    _extremes()
    for name, spark in (("bool_and", "every"), ("every", "every"), ("bool_or", "some")):
        aggregate(name, (BOOL,), BOOL, spark)
    for name in ("bit_and", "bit_or", "bit_xor"):
        for t in (INT2, INT4, INT8):
            aggregate(name, (t,), t, name)
    _statistics()
    aggregate("array_agg", (Poly.ELEMENT,), Poly.ARRAY, _collected)
    aggregate("list_agg", (Poly.ELEMENT,), Poly.LIST, _collected)
    aggregate("string_agg", (TEXT, TEXT), TEXT, _collected)
    aggregate("string_agg", (BYTEA, BYTEA), BYTEA, _collected)
    for name in ("jsonb_agg", "jsonb_agg_strict"):
        aggregate(name, (JSONB,), JSONB, _collected)
    for name in ("jsonb_object_agg", "jsonb_object_agg_strict"):
        aggregate(name, (TEXT, JSONB), JSONB, _collected)
    for name in ("json_agg", "json_agg_strict"):
        refused_aggregate(name, (Poly.ANY,), JSONB, _JSON_HINT)
    for name in ("json_object_agg", "json_object_agg_strict"):
        refused_aggregate(name, (Poly.ANY, Poly.ANY), JSONB, _JSON_HINT)
    aggregate("any_value", (Poly.ELEMENT,), Poly.ELEMENT, lambda a: call("any_value", a[0], exp.true()))
    not_yet("range_agg xmlagg range_intersect_agg jsonb_object_agg_unique jsonb_object_agg_unique_strict")


_install()
