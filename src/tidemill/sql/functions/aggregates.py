"""Aggregates. Over no rows all but count give NULL. Sums have PostgreSQL's types: int2 and int4 sum to int8,
int8 and numeric to numeric, averages of whole numbers are numeric."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.refuse import refused_aggregate
from tidemill.sql.functions.signature import Builder, Poly, aggregate, not_yet
from tidemill.sql.functions.tree import (
    Tree,
    call,
    cast,
    divide,
    field,
    integer,
    lambda_,
    string,
    variable,
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
    MZ_TIMESTAMP,
    NUMERIC,
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
    *(INT2, INT4, INT8, UINT2, UINT4, UINT8, FLOAT4, FLOAT8, NUMERIC, TEXT, BYTEA),
    *(DATE, TIME, TIMESTAMP, TIMESTAMPTZ, MZ_TIMESTAMP),
)


def _sum(wide: str, ddl: str) -> Builder:
    return lambda a: cast(call("sum", cast(a[0], wide)), ddl)


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


def collected(value: Tree) -> Tree:
    """All values, NULLs too (collect_list alone drops them); NULL instead of an empty array."""
    rows = call("collect_list", call("named_struct", string("v"), value))
    return _filled(call("transform", rows, lambda_("r", field(variable("r"), "v"))))


def _filled(array: Tree) -> Tree:
    return call("nullif", array, call("array"))


def _min_char(name: str) -> Builder:
    t = SqlType(Kind.CHAR)
    return lambda a: call(f"{name}_by", a[0], comparable(a[0], t))


def _install() -> None:
    aggregate("count", (), INT8, lambda a: exp.Count(this=exp.Star()))
    aggregate("count", (Poly.ANY,), INT8, "count")
    for t in (INT2, INT4):
        aggregate("sum", (t,), INT8, _sum("BIGINT", "BIGINT"))
        aggregate("avg", (t,), NUMERIC, _average("DECIMAL(20,0)"))
    for t in (INT8, UINT2, UINT4, UINT8):
        aggregate("sum", (t,), NUMERIC, _sum("DECIMAL(20,0)", _DECIMAL))
        aggregate("avg", (t,), NUMERIC, _average("DECIMAL(20,0)"))
    aggregate("sum", (NUMERIC,), NUMERIC, _sum(_DECIMAL, _DECIMAL))
    aggregate("avg", (NUMERIC,), NUMERIC, _average(_DECIMAL))
    aggregate("sum", (FLOAT4,), FLOAT4, _sum("DOUBLE", "FLOAT"))
    aggregate("sum", (FLOAT8,), FLOAT8, "sum")
    for t in (FLOAT4, FLOAT8):
        aggregate("avg", (t,), FLOAT8, lambda a: call("avg", cast(a[0], "DOUBLE")))
    for t in _ORDERED:
        for name in ("min", "max"):
            aggregate(name, (t,), t, name)
    for name in ("min", "max"):
        aggregate(name, (SqlType(Kind.CHAR),), SqlType(Kind.CHAR), _min_char(name))
    for name, spark in (("bool_and", "every"), ("every", "every"), ("bool_or", "some")):
        aggregate(name, (BOOL,), BOOL, spark)
    for name in ("bit_and", "bit_or", "bit_xor"):
        for t in (INT2, INT4, INT8):
            aggregate(name, (t,), t, name)
    for name in ("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"):
        aggregate(name, (FLOAT8,), FLOAT8, name)
        for t in (INT2, INT4, INT8, NUMERIC):
            refused_aggregate(name, (t,), NUMERIC, "Cast the argument to double precision.")
    aggregate("array_agg", (Poly.ELEMENT,), Poly.ARRAY, lambda a: collected(a[0]), windowed=False)
    aggregate("string_agg", (TEXT, TEXT), TEXT, _string_agg, windowed=False)
    refused_aggregate("string_agg", (BYTEA, BYTEA), BYTEA)
    aggregate("any_value", (Poly.ELEMENT,), Poly.ELEMENT, lambda a: call("any_value", a[0], exp.true()))
    not_yet(
        """
        json_agg jsonb_agg json_object_agg jsonb_object_agg corr covar_pop covar_samp regr_slope
        regr_intercept regr_count regr_r2 regr_avgx regr_avgy regr_sxx regr_syy regr_sxy percentile_cont
        percentile_disc mode range_agg xmlagg grouping range_intersect_agg
        """
    )


def _string_agg(args: Sequence[Tree]) -> Tree:
    return call("listagg", *args)


_install()
