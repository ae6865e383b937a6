"""Operators on numbers, with PostgreSQL's result types, ranges and errors.

An overflow error must name its type. 16- and 32-bit results are therefore computed one size wider and cast
back: Spark's cast error names the type, its arithmetic error does not. A bare arithmetic overflow can then
only be bigint's. numeric is decimal(38,18) throughout. Spark's product of two such values has too few
fractional digits, so `_numeric_product` adds up parts that are each exact. This module relies on `SPARK_CONF`
(see `__init__`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.sql.functions.casts import unsigned
from tidemill.sql.functions.rowwise import by_row_operator
from tidemill.sql.functions.signature import Builder, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    binary,
    call,
    case,
    cast,
    cast_to,
    divide,
    double,
    eq,
    if_,
    int_divide,
    integer,
    is_infinite,
    let_all,
    lt,
    mul,
    not_,
    or_,
    raise_error,
    remainder,
    sub,
)
from tidemill.sql.scalar import numbers
from tidemill.types.model import (
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    UINT2,
    UINT4,
    UINT8,
    Kind,
    SqlType,
)

_DECIMAL = "DECIMAL(38,18)"
_WIDER = {Kind.INT2: ("INT", "SMALLINT"), Kind.INT4: ("BIGINT", "INT")}

Binary = Callable[[Tree, Tree], Tree]


def _widened(t: SqlType, op: Binary) -> Builder:
    wide, narrow = _WIDER[t.kind]
    return lambda a: cast(op(cast(a[0], wide), cast(a[1], wide)), narrow)


def _plain(op: Binary) -> Builder:
    return lambda a: op(a[0], a[1])


def _cast(op: Binary, ddl: str) -> Builder:
    return lambda a: cast(op(a[0], a[1]), ddl)


def _unsigned(t: SqlType, op: Binary) -> Builder:
    wide = "DECIMAL(38,0)" if t.kind is Kind.UINT8 else "BIGINT"
    return lambda a: unsigned(op(cast(a[0], wide), cast(a[1], wide)), t.kind)


def _decimal_quotient(a: Tree, b: Tree) -> Tree:
    """The quotient of two integral decimals, truncated toward zero."""
    return divide(sub(a, remainder(a, b)), b)


def numeric_product(a: Tree, b: Tree) -> Tree:
    """a*b rounded half away from zero to 18 digits. With a = ai+af and b = bi+bf (truncated toward zero, so
    all four products have the sign of a*b): a*bi and ai*bf have at most 18 fractional digits and are exact;
    af*bf has 36, and rounding it alone rounds the sum."""

    for x, y in ((a, b), (b, a)):
        if _is_whole_literal(y):
            return cast(mul(x, cast(y, "DECIMAL(20,0)")), _DECIMAL)

    def parts(v: list[Tree]) -> Tree:
        x, y = v
        xi, yi = _integer_part(x), _integer_part(y)
        xf, yf = cast(sub(x, xi), "DECIMAL(18,18)"), cast(sub(y, yi), "DECIMAL(18,18)")
        whole = cast(mul(x, yi), _DECIMAL)
        cross = cast(mul(xi, yf), _DECIMAL)
        return cast(add(cast(add(whole, cross), _DECIMAL), cast(mul(xf, yf), _DECIMAL)), _DECIMAL)

    return let_all([a, b], parts)


def _is_whole_literal(v: Tree) -> bool:
    """A constant without a fraction, in the form of `bind.literal`: this common case needs only one
    product."""
    if not isinstance(v, exp.Cast) or not isinstance(v.this, exp.Literal):
        return False
    return bool(str(v.this.this).rstrip("0").endswith("."))


def _integer_part(v: Tree) -> Tree:
    return cast(if_(lt(v, cast(_zero(), _DECIMAL)), call("ceil", v), call("floor", v)), "DECIMAL(20,0)")


def _zero() -> Tree:
    return exp.Literal.number(0)


def float_guard(op: Binary, ddl: str, *, product: bool = False) -> Builder:
    """A float operation that may not overflow: infinite from finite operands (and zero from non-zero factors)
    is an error in PostgreSQL."""

    def build(args: list[Tree]) -> Tree:
        def guarded(v: list[Tree]) -> Tree:
            result = cast(op(v[0], v[1]), ddl)
            overflow = and_(is_infinite(result), not_(or_(is_infinite(v[0]), is_infinite(v[1]))))
            branches = [(overflow, raise_error("22003", "value out of range: overflow"))]
            if product:
                zero = double("0")
                lost = and_(eq(result, zero), not_(or_(eq(v[0], zero), eq(v[1], zero))))
                branches.append((lost, raise_error("22003", "value out of range: underflow")))
            return case(*branches, otherwise=result)

        return let_all(list(args), guarded)

    return lambda a: build(list(a))


def float_quotient(ddl: str) -> Builder:
    """A quotient of floats, with the range errors of `float_guard`."""

    def build(args: list[Tree]) -> Tree:
        def guarded(v: list[Tree]) -> Tree:
            zero = double("0")
            result = cast(divide(cast(v[0], "DOUBLE"), cast(v[1], "DOUBLE")), ddl)
            overflow = and_(is_infinite(result), not_(is_infinite(v[0])))
            lost = and_(eq(result, zero), not_(or_(eq(v[0], zero), is_infinite(v[1]))))
            nan_over_zero = and_(eq(v[1], zero), not_(call("isnan", v[0])))
            return case(
                (nan_over_zero, raise_error("22012", "division by zero")),
                # NaN / 0 is NaN; Spark would raise.
                (eq(v[1], zero), v[0]),
                (overflow, raise_error("22003", "value out of range: overflow")),
                (lost, raise_error("22003", "value out of range: underflow")),
                otherwise=result,
            )

        return let_all(args, guarded)

    return lambda a: build(list(a))


def power(args: list[Tree]) -> Tree:
    def guarded(v: list[Tree]) -> Tree:
        x, y = v
        zero = double("0")
        result = call("power", x, y)
        whole = eq(call("rint", y), y)
        both_finite = not_(or_(is_infinite(x), is_infinite(y)))
        complex_ = "a negative number raised to a non-integer power yields a complex result"
        return case(
            (
                and_(eq(x, zero), lt(y, zero)),
                raise_error("2201F", "zero raised to a negative power is undefined"),
            ),
            (
                and_(lt(x, zero), not_(whole), not_(is_infinite(y)), not_(call("isnan", y))),
                raise_error("2201F", complex_),
            ),
            (eq(x, double("1")), double("1")),
            (
                and_(is_infinite(result), both_finite),
                raise_error("22003", "value out of range: overflow"),
            ),
            (
                and_(eq(result, zero), both_finite, not_(eq(x, zero))),
                raise_error("22003", "value out of range: underflow"),
            ),
            otherwise=result,
        )

    return let_all(args, guarded)


def _negative(t: SqlType) -> Builder:
    def minus(v: Tree) -> Tree:
        return exp.Paren(this=exp.Neg(this=v))

    if t.kind in _WIDER:
        wide, narrow = _WIDER[t.kind]
        return lambda a: cast(minus(cast(a[0], wide)), narrow)
    return lambda a: minus(a[0])


def _install() -> None:
    ops: dict[str, Binary] = {"+": add, "-": sub, "*": mul}
    for t in (INT2, INT4):
        for name, op in ops.items():
            operator(name, (t, t), t, _widened(t, op))
        operator("/", (t, t), t, _cast(int_divide, _WIDER[t.kind][1]))
        operator("%", (t, t), t, _cast(remainder, _WIDER[t.kind][1]))
    for name, op in ops.items():
        operator(name, (INT8, INT8), INT8, _plain(op))
    operator("/", (INT8, INT8), INT8, _plain(int_divide))
    operator("%", (INT8, INT8), INT8, _plain(remainder))
    for t in (UINT2, UINT4, UINT8):
        for name, op in ops.items():
            operator(name, (t, t), t, _unsigned(t, op))
        quotient = _decimal_quotient if t.kind is Kind.UINT8 else int_divide
        operator("/", (t, t), t, _unsigned(t, quotient))
        operator("%", (t, t), t, _unsigned(t, remainder))
    for left in (FLOAT4, FLOAT8):
        for right in (FLOAT4, FLOAT8):
            t = FLOAT4 if left is right is FLOAT4 else FLOAT8
            ddl = "FLOAT" if t is FLOAT4 else "DOUBLE"
            for name, op in ops.items():
                operator(name, (left, right), t, float_guard(op, ddl, product=name == "*"))
            operator("/", (left, right), t, float_quotient(ddl))
    operator("+", (NUMERIC, NUMERIC), NUMERIC, _cast(add, _DECIMAL))
    operator("-", (NUMERIC, NUMERIC), NUMERIC, _cast(sub, _DECIMAL))
    operator("*", (NUMERIC, NUMERIC), NUMERIC, _plain(numeric_product))
    operator("/", (NUMERIC, NUMERIC), NUMERIC, _cast(divide, _DECIMAL))
    operator("%", (NUMERIC, NUMERIC), NUMERIC, _cast(remainder, _DECIMAL))
    operator("^", (FLOAT8, FLOAT8), FLOAT8, lambda a: power(list(a)))
    by_row_operator("^", (NUMERIC, NUMERIC), NUMERIC, numbers.power)
    for t in (INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC):
        operator("-", (t,), t, _negative(t))
    for t in (INT2, INT4, INT8):
        _bits(t)


def _bits(t: SqlType) -> None:
    def bit(kind: type[exp.Binary]) -> Builder:
        return lambda a: cast_to(binary(kind, a[0], a[1]), t)

    operator("&", (t, t), t, bit(exp.BitwiseAnd))
    operator("|", (t, t), t, bit(exp.BitwiseOr))
    operator("#", (t, t), t, bit(exp.BitwiseXor))
    operator("~", (t,), t, lambda a: cast_to(exp.Paren(this=exp.BitwiseNot(this=a[0])), t))
    for name, shift in (("<<", "shiftleft"), (">>", "shiftright")):
        operator(name, (t, INT4), t, _shifted(shift) if t is not INT2 else _shifted_short(shift))


def _shifted(shift: str) -> Builder:
    return lambda a: call(shift, a[0], a[1])


def _shifted_short(shift: str) -> Builder:
    """Shifts as an int and keeps the low 16 bits; the highest of them is the sign."""

    def build(a: Sequence[Tree]) -> Tree:
        whole = call(shift, cast_to(a[0], INT4), a[1])
        return cast_to(call("shiftright", call("shiftleft", whole, integer(16)), integer(16)), INT2)

    return build


_install()
