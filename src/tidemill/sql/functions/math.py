"""Mathematical functions.

float8 follows IEEE in both systems. Where PostgreSQL raises an error for NaN or infinity from finite
arguments, so do these. Except for rounding, numeric functions run in Python with PostgreSQL's digits
(`scalar.numbers`): Spark's double has fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.arithmetic import float_guard, float_quotient, power
from tidemill.sql.functions.refuse import refused_function
from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import Builder, function, not_yet
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    call,
    case,
    cast,
    cast_to,
    decimal,
    divide,
    double,
    eq,
    ge,
    gt,
    if_,
    integer,
    is_infinite,
    let,
    let_all,
    lt,
    mul,
    not_,
    or_,
    raise_error,
    remainder,
    sub,
)
from tidemill.sql.scalar import numbers, sizes
from tidemill.types.model import FLOAT4, FLOAT8, INT2, INT4, INT8, NUMERIC, TEXT, SqlType

_DECIMAL = "DECIMAL(38,18)"
_WIDER = {INT2: "INT", INT4: "BIGINT", INT8: "BIGINT"}
# From this value on every double is an integer, and Spark's ceil and floor (which return BIGINT) would soon
# overflow.
_ALL_WHOLE = str(2**52)


def _whole_double(name: str) -> Builder:
    def build(v: Tree) -> Tree:
        return _if_small(v, cast(call(name, v), "DOUBLE"))

    return lambda a: let(a[0], build)


def _if_small(v: Tree, whole: Tree) -> Tree:
    """`whole`, which was computed as an integer, with the sign of a negative zero restored."""
    kept = or_(eq(v, double("0")), ge(call("abs", v), double(_ALL_WHOLE)))
    zero = and_(eq(whole, double("0")), lt(v, double("0")))
    return case((kept, v), (zero, double("-0.0")), otherwise=whole)


def _trunc_double(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        return _if_small(v, cast(if_(lt(v, double("0")), call("ceil", v), call("floor", v)), "DOUBLE"))

    return let(args[0], build)


def _decimal_call(name: str) -> Builder:
    return lambda a: cast(call(name, *a), _DECIMAL)


def _is_small_constant(scale: Tree) -> bool:
    """A scale that Spark accepts: a literal, within the digits of numeric."""
    text = scale.this if isinstance(scale, exp.Cast) else None
    number = text.this if isinstance(text, exp.Neg) else text
    return isinstance(number, exp.Literal) and str(number.this).isdigit() and int(str(number.this)) <= 18


_ROUND = row_function("round", (NUMERIC, INT4), NUMERIC, numbers.round_to)
_TRUNC = row_function("trunc", (NUMERIC, INT4), NUMERIC, numbers.trunc_to)


def _round_to(args: Sequence[Tree]) -> Tree:
    if not _is_small_constant(args[1]):
        return _ROUND(args)
    return cast(call("round", args[0], args[1]), _DECIMAL)


def _trunc_to(args: Sequence[Tree]) -> Tree:
    scale = args[1]
    if not _is_small_constant(scale):
        return _TRUNC(args)

    def build(v: Tree) -> Tree:
        return cast(if_(lt(v, decimal("0")), call("ceil", v, scale), call("floor", v, scale)), _DECIMAL)

    return let(args[0], build)


def _trunc_decimal(args: Sequence[Tree]) -> Tree:
    return let(
        args[0],
        lambda v: cast(if_(lt(v, decimal("0")), call("ceil", v), call("floor", v)), _DECIMAL),
    )


def _div(args: Sequence[Tree]) -> Tree:
    """The integral quotient: the dividend is first made a multiple, so that nothing is rounded."""
    return let_all(list(args), lambda v: cast(divide(sub(v[0], remainder(v[0], v[1])), v[1]), _DECIMAL))


def _domain(name: str, zero: str | None, negative: str, sqlstate: str) -> Builder:
    def build(v: Tree) -> Tree:
        branches = [(lt(v, double("0")), raise_error(sqlstate, negative))]
        if zero is not None:
            branches.append((eq(v, double("0")), raise_error(sqlstate, zero)))
        return case(*branches, otherwise=call(name, v))

    return lambda a: let(a[0], build)


def _exp(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        result = call("exp", v)
        return case(
            (
                and_(is_infinite(result), not_(is_infinite(v))),
                raise_error("22003", "value out of range: overflow"),
            ),
            (
                and_(eq(result, double("0")), not_(is_infinite(v))),
                raise_error("22003", "value out of range: underflow"),
            ),
            otherwise=result,
        )

    return let(args[0], build)


def _trigonometric(name: str) -> Builder:
    def build(v: Tree) -> Tree:
        return if_(is_infinite(v), raise_error("22003", "input is out of range"), call(name, v))

    return lambda a: let(a[0], build)


def _inverse(name: str) -> Builder:
    def build(v: Tree) -> Tree:
        outside = and_(gt(call("abs", v), double("1")), not_(call("isnan", v)))
        return if_(outside, raise_error("22003", "input is out of range"), call(name, v))

    return lambda a: let(a[0], build)


def _sign(t: SqlType) -> Builder:
    def build(v: Tree) -> Tree:
        zero = cast_to(integer(0), t)
        return case(
            (call("isnull", v), v),
            *([(call("isnan", v), zero)] if t is FLOAT8 else []),
            (gt(v, zero), cast_to(integer(1), t)),
            (lt(v, zero), cast_to(integer(-1), t)),
            otherwise=zero,
        )

    return lambda a: let(a[0], build)


def _abs(t: SqlType) -> Builder:
    wide = _WIDER.get(t)
    if wide is None:
        return lambda a: call("abs", a[0])
    return lambda a: cast_to(call("abs", cast(a[0], wide)), t)


# Three draws of 32 bits: the probabilities of up to 64-bit values differ by at most one in 2^32.
_DRAWS = 3


def _random(t: SqlType) -> Builder:
    """A random number in min, ..., max. The bounds appear more than once; lambdas cannot contain `rand`."""

    def build(a: Sequence[Tree]) -> Tree:
        low, high = (cast(v, "DECIMAL(38,0)") for v in a)
        drawn: Tree = cast(integer(0), "DECIMAL(38,0)")
        for _ in range(_DRAWS):
            draw = cast(call("floor", mul(call("rand"), double(str(2**32)))), "DECIMAL(10,0)")
            drawn = cast(add(mul(drawn, decimal(str(2**32), 10, 0)), draw), "DECIMAL(38,0)")
        size = cast(add(sub(high, low.copy()), decimal("1", 1, 0)), "DECIMAL(38,0)")
        found = cast_to(add(low.copy(), cast(remainder(drawn, size), "DECIMAL(20,0)")), t)
        wrong = raise_error("22023", "lower bound must be less than or equal to upper bound")
        return case((gt(a[0].copy(), a[1].copy()), wrong), otherwise=found)

    return build


def _install() -> None:
    for t in (INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC):
        function("abs", (t,), t, _abs(t))
    for t in (INT2, INT4, INT8):
        function("mod", (t, t), t, lambda a, t=t: cast_to(remainder(a[0], a[1]), t))
    function("mod", (NUMERIC, NUMERIC), NUMERIC, lambda a: cast(remainder(a[0], a[1]), _DECIMAL))
    function("div", (NUMERIC, NUMERIC), NUMERIC, _div)
    function("round", (FLOAT8,), FLOAT8, "rint")
    function("round", (NUMERIC,), NUMERIC, _decimal_call("round"))
    function("round", (NUMERIC, INT4), NUMERIC, _round_to)
    function("trunc", (FLOAT8,), FLOAT8, _trunc_double)
    function("trunc", (NUMERIC,), NUMERIC, _trunc_decimal)
    function("trunc", (NUMERIC, INT4), NUMERIC, _trunc_to)
    for name, spark in (("ceil", "ceil"), ("ceiling", "ceil"), ("floor", "floor")):
        function(name, (FLOAT8,), FLOAT8, _whole_double(spark))
        function(name, (NUMERIC,), NUMERIC, _decimal_call(spark))
    function("sign", (FLOAT8,), FLOAT8, _sign(FLOAT8))
    function("sign", (NUMERIC,), NUMERIC, _sign(NUMERIC))
    for name in ("power", "pow"):
        function(name, (FLOAT8, FLOAT8), FLOAT8, lambda a: power(list(a)))
        by_row(name, (NUMERIC, NUMERIC), NUMERIC, numbers.power)
    root = _domain("sqrt", None, "cannot take square root of a negative number", "2201F")
    function("sqrt", (FLOAT8,), FLOAT8, root)
    zero, negative = "cannot take logarithm of zero", "cannot take logarithm of a negative number"
    function("ln", (FLOAT8,), FLOAT8, _domain("ln", zero, negative, "2201E"))
    for name in ("log", "log10"):
        function(name, (FLOAT8,), FLOAT8, _domain("log10", zero, negative, "2201E"))
        by_row(name, (NUMERIC,), NUMERIC, numbers.log10)
    by_row("log", (NUMERIC, NUMERIC), NUMERIC, numbers.log)
    function("exp", (FLOAT8,), FLOAT8, _exp)
    for name, run in (("sqrt", numbers.sqrt), ("ln", numbers.ln), ("exp", numbers.exp)):
        by_row(name, (NUMERIC,), NUMERIC, run)
    function("cbrt", (FLOAT8,), FLOAT8, "cbrt")
    # As in PostgreSQL, including the last digit and the errors.
    degree = double("0.0174532925199432957692")
    function("degrees", (FLOAT8,), FLOAT8, lambda a: float_quotient("DOUBLE")([a[0], degree.copy()]))
    product = float_guard(mul, "DOUBLE", product=True)
    function("radians", (FLOAT8,), FLOAT8, lambda a: product([a[0], degree.copy()]))
    function("pi", (), FLOAT8, "pi")
    for name in ("sin", "cos", "tan"):
        function(name, (FLOAT8,), FLOAT8, _trigonometric(name))
    for name in ("asin", "acos"):
        function(name, (FLOAT8,), FLOAT8, _inverse(name))
    function("atan", (FLOAT8,), FLOAT8, "atan")
    function("atan2", (FLOAT8, FLOAT8), FLOAT8, "atan2")
    function("random", (), FLOAT8, "rand", volatile=True)
    for t in (INT4, INT8):
        function("random", (t, t), t, _random(t), volatile=True)
    hint = "Take a whole number at random and divide it."
    refused_function("random", (NUMERIC, NUMERIC), NUMERIC, hint)
    for t in (INT8, NUMERIC):
        by_row("pg_size_pretty", (t,), TEXT, sizes.pretty)
    by_row("pg_size_bytes", (TEXT,), INT8, sizes.in_bytes)
    _install_whole()
    not_yet("setseed random_normal")


def _install_whole() -> None:
    for t, gcd, lcm in (
        (INT4, numbers.gcd4, numbers.lcm4),
        (INT8, numbers.gcd8, numbers.lcm8),
        (NUMERIC, numbers.gcd_numeric, numbers.lcm_numeric),
    ):
        by_row("gcd", (t, t), t, gcd)
        by_row("lcm", (t, t), t, lcm)
    by_row("factorial", (INT8,), NUMERIC, numbers.factorial)
    by_row("min_scale", (NUMERIC,), INT4, numbers.min_scale)
    function("trim_scale", (NUMERIC,), NUMERIC, lambda a: a[0])
    # If the digits are known, the binder evaluates the call.
    hint = "A stored numeric keeps no zeros at its end; min_scale() tells how many digits it needs."
    refused_function("scale", (NUMERIC,), INT4, hint)
    by_row("width_bucket", (FLOAT8, FLOAT8, FLOAT8, INT4), INT4, numbers.width_bucket_float)
    by_row("width_bucket", (NUMERIC, NUMERIC, NUMERIC, INT4), INT4, numbers.width_bucket_numeric)


_install()
