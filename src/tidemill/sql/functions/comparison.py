"""Comparison operators and how values of each type are ordered.

Text compares by bytes (collation "C"), NaN is equal to itself and above all numbers: Spark does both alike.
char(n) compares without its trailing blanks, intervals by their length (a month is 30 days, a day 24 hours).
"""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

from tidemill.errors import Unsupported
from tidemill.sql.functions.casts_time import MICROS_PER_DAY
from tidemill.sql.functions.signature import Builder, Poly, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    binary,
    call,
    case,
    cast,
    decimal,
    field,
    let_all,
    mul,
    not_,
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
    NAME,
    NUMERIC,
    OID,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UINT2,
    UINT4,
    UINT8,
    UUID,
    Kind,
    SqlType,
)

_SYMBOLS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ,
    "<>": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
}

_ORDERED = (
    BOOL,
    INT2,
    INT4,
    INT8,
    UINT2,
    UINT4,
    UINT8,
    FLOAT4,
    FLOAT8,
    NUMERIC,
    OID,
    TEXT,
    NAME,
    SqlType(Kind.CHAR),
    BYTEA,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    INTERVAL,
    UUID,
    MZ_TIMESTAMP,
)


def interval_length(v: Tree) -> Tree:
    """An interval's length in microseconds as PostgreSQL compares it; wider than 64 bits."""
    days = add(mul(cast(field(v, "months"), "DECIMAL(12,0)"), decimal("30", 2, 0)), field(v, "days"))
    return add(
        mul(cast(days, "DECIMAL(14,0)"), decimal(str(MICROS_PER_DAY), 11, 0)),
        cast(field(v, "micros"), "DECIMAL(20,0)"),
    )


def comparable(value: Tree, t: SqlType) -> Tree:
    """A key that Spark compares, sorts and finds equal as PostgreSQL does the value."""
    if t.kind is Kind.CHAR:
        return call("rtrim", value)
    if t.kind is Kind.INTERVAL:
        return interval_length(value)
    return value


def check_ordered(t: SqlType, what: str) -> None:
    """Refuse an order that Spark would make up (`what` is "ORDER BY", "min", ...)."""
    if t.kind in (Kind.JSONB, Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD):
        raise Unsupported(f"{what} of type {t} is not supported")


def check_grouped(t: SqlType, what: str) -> None:
    """Refuse grouping where equal values have different forms: '24:00' = '1 day'."""
    if t.kind in (Kind.INTERVAL, Kind.MAP) or (t.element is not None and t.element.kind is Kind.INTERVAL):
        raise Unsupported(f"{what} of type {t} is not supported")


def _compare(t: SqlType, kind: type[exp.Binary]) -> Builder:
    return lambda a: binary(kind, comparable(a[0], t), comparable(a[1], t))


def _install() -> None:
    for t in _ORDERED:
        for name, kind in _SYMBOLS.items():
            operator(name, (t, t), BOOL, _compare(t, kind))
    for name in ("=", "<>"):
        operator(name, (JSONB, JSONB), BOOL, _compare(JSONB, _SYMBOLS[name]))
        operator(name, (Poly.ARRAY, Poly.ARRAY), BOOL, _compare(JSONB, _SYMBOLS[name]))


def extreme(t: SqlType, *, largest: bool) -> Builder:
    """GREATEST or LEAST by `comparable`; the first of equals."""
    better = exp.GT if largest else exp.LT

    def of_two(a: Tree, b: Tree) -> Tree:
        return let_all(
            [a, b],
            lambda v: case(
                (call("isnull", v[0]), v[1]),
                (binary(better, comparable(v[1], t), comparable(v[0], t)), v[1]),
                otherwise=v[0],
            ),
        )

    return lambda a: reduce(of_two, a)


def distinct_from(a: Tree, b: Tree, t: SqlType) -> Tree:
    return not_(not_distinct_from(a, b, t))


def not_distinct_from(a: Tree, b: Tree, t: SqlType) -> Tree:
    return exp.Paren(this=exp.NullSafeEQ(this=comparable(a, t), expression=comparable(b, t)))


_install()
