"""Comparison operators, and the order of the values of each type.

Text compares by bytes (collation "C"). NaN equals itself and is greater than all numbers. Spark does the same
for both. char(n) compares without trailing blanks, intervals by length (a month is 30 days, a day 24 hours).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    lambda_,
    let_all,
    mul,
    not_,
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
    """An interval's length in microseconds for PostgreSQL's comparison; wider than 64 bits."""
    days = add(mul(cast(field(v, "months"), "DECIMAL(12,0)"), decimal("30", 2, 0)), field(v, "days"))
    return add(
        mul(cast(days, "DECIMAL(14,0)"), decimal(str(MICROS_PER_DAY), 11, 0)),
        cast(field(v, "micros"), "DECIMAL(20,0)"),
    )


def comparable(value: Tree, t: SqlType) -> Tree:
    """A key that gives Spark the same order and equality as PostgreSQL's for the value."""
    if t.kind is Kind.CHAR:
        return call("rtrim", value)
    if t.kind is Kind.INTERVAL:
        return interval_length(value)
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        return _elements(value, t.element)
    return value


def _elements(value: Tree, t: SqlType) -> Tree:
    """An array's key: the keys of its elements, with NULL as the largest."""
    # Depth in the name: an array's element may be a list.
    name = f"k{str(t).count('list') + str(t).count('[]')}"
    item = variable(name)
    key = call("named_struct", string("n"), call("isnull", item), string("k"), comparable(item.copy(), t))
    return call("transform", value, lambda_(name, key))


def sortable(value: Tree, t: SqlType) -> Tree:
    """A key that Spark sorts in PostgreSQL's order of the value; `comparable` suffices for equality."""
    if t.kind is Kind.JSONB:
        from tidemill.sql.functions.json import sort_key

        return sort_key(value)
    return comparable(value, t)


def check_ordered(t: SqlType, what: str) -> None:
    """Raises for an order that Spark would define differently (`what` is "ORDER BY", "min", ...)."""
    if t.kind in (Kind.JSONB, Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD):
        raise Unsupported(f"{what} of type {t} is not supported")


def check_sorted(t: SqlType, what: str) -> None:
    """Raises for types without a key in `sortable`."""
    inner = t
    while inner.kind in (Kind.ARRAY, Kind.LIST) and inner.element is not None:
        inner = inner.element
    # Documents are ordered in Python, which cannot be called for each element of an array.
    if inner.kind in (Kind.MAP, Kind.RECORD) or (inner.kind is Kind.JSONB and inner is not t):
        raise Unsupported(f"{what} of type {t} is not supported")


def check_grouped(t: SqlType, what: str) -> None:
    """Raises for grouping by a type whose equal values have different forms: '24:00' = '1 day'."""
    if t.kind in (Kind.INTERVAL, Kind.MAP) or (t.element is not None and t.element.kind is Kind.INTERVAL):
        raise Unsupported(f"{what} of type {t} is not supported")


def _compare(t: SqlType, kind: type[exp.Binary]) -> Builder:
    return lambda a: binary(kind, comparable(a[0], t), comparable(a[1], t))


def _compare_doubles(kind: type[exp.Binary]) -> Builder:
    return lambda a: binary(kind, cast(a[0], "DOUBLE"), cast(a[1], "DOUBLE"))


def _compare_with_time(t: SqlType, kind: type[exp.Binary], *, turned: bool = False) -> Builder:
    """A time in milliseconds with a timestamp in microseconds: neither is rounded."""

    def build(a: Sequence[Tree]) -> Tree:
        number, time = (a[1], a[0]) if turned else (a[0], a[1])
        moment = call("timestamp_millis", number)
        if t.kind is not Kind.TIMESTAMPTZ:
            moment, time = cast(moment, "TIMESTAMP_NTZ"), cast(time, "TIMESTAMP_NTZ")
        return binary(kind, time, moment) if turned else binary(kind, moment, time)

    return build


def _compare_documents(kind: type[exp.Binary]) -> Builder:
    return lambda a: binary(kind, sortable(a[0], JSONB), sortable(a[1], JSONB))


def _compare_nested(kind: type[exp.Binary]) -> Callable[[Sequence[Tree], Sequence[SqlType]], Tree]:
    def build(a: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
        if kind not in (exp.EQ, exp.NEQ):
            check_sorted(types[0], "the order")
        return binary(kind, comparable(a[0], types[0]), comparable(a[1], types[0]))

    return build


def _install() -> None:
    for t in _ORDERED:
        for name, kind in _SYMBOLS.items():
            operator(name, (t, t), BOOL, _compare(t, kind))
    for name, kind in _SYMBOLS.items():
        # As double precision: a bigint compared with a real is converted too, and keeps its digits.
        for mixed in ((FLOAT4, FLOAT8), (FLOAT8, FLOAT4)):
            operator(name, mixed, BOOL, _compare_doubles(kind))
        for t in (TIMESTAMP, TIMESTAMPTZ, DATE):
            operator(name, (MZ_TIMESTAMP, t), BOOL, _compare_with_time(t, kind))
            operator(name, (t, MZ_TIMESTAMP), BOOL, _compare_with_time(t, kind, turned=True))
        equality = name in ("=", "<>")
        operator(name, (JSONB, JSONB), BOOL, _compare(JSONB, kind) if equality else _compare_documents(kind))
        for nested in (Poly.ARRAY, Poly.LIST):
            operator(name, (nested, nested), BOOL, _compare(BOOL, kind), typed=_compare_nested(kind))


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
