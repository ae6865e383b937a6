"""Mathematical functions. float8 follows IEEE in both systems; where PostgreSQL raises on NaN or infinity out
of finite arguments, so do these. numeric has only what decimal(38,18) can answer exactly; the transcendental
ones are refused for numeric (PostgreSQL computes them to more digits than Spark's double has)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.errors import Unsupported
from tidemill.sql.functions.arithmetic import power
from tidemill.sql.functions.refuse import refused_function
from tidemill.sql.functions.signature import Builder, function, not_yet
from tidemill.sql.functions.tree import (
    Tree,
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
    not_,
    raise_error,
    remainder,
    sub,
)
from tidemill.types.model import FLOAT4, FLOAT8, INT2, INT4, INT8, NUMERIC, SqlType

_DECIMAL = "DECIMAL(38,18)"
_WIDER = {INT2: "INT", INT4: "BIGINT", INT8: "BIGINT"}
# From here on every double is whole, and Spark's ceil and floor (which give BIGINT) would soon overflow.
_ALL_WHOLE = str(2**52)

_NUMERIC_HINT = "Cast the argument to double precision."


def _whole_double(name: str) -> Builder:
    def build(v: Tree) -> Tree:
        return if_(ge(call("abs", v), double(_ALL_WHOLE)), v, cast(call(name, v), "DOUBLE"))

    return lambda a: let(a[0], build)


def _trunc_double(args: Sequence[Tree]) -> Tree:
    def build(v: Tree) -> Tree:
        cut = cast(if_(lt(v, double("0")), call("ceil", v), call("floor", v)), "DOUBLE")
        return if_(ge(call("abs", v), double(_ALL_WHOLE)), v, cut)

    return let(args[0], build)


def _decimal_call(name: str) -> Builder:
    return lambda a: cast(call(name, *a), _DECIMAL)


def _needs_constant(scale: Tree, name: str) -> Tree:
    if any(isinstance(n, exp.Column) for n in scale.walk()):
        raise Unsupported(f"{name}() with a scale that is no constant is not supported")
    return scale


def _round_to(args: Sequence[Tree]) -> Tree:
    return cast(call("round", args[0], _needs_constant(args[1], "round")), _DECIMAL)


def _trunc_to(args: Sequence[Tree]) -> Tree:
    scale = _needs_constant(args[1], "trunc")

    def build(v: Tree) -> Tree:
        return cast(if_(lt(v, decimal("0")), call("ceil", v, scale), call("floor", v, scale)), _DECIMAL)

    return let(args[0], build)


def _trunc_decimal(args: Sequence[Tree]) -> Tree:
    return let(
        args[0],
        lambda v: cast(if_(lt(v, decimal("0")), call("ceil", v), call("floor", v)), _DECIMAL),
    )


def _div(args: Sequence[Tree]) -> Tree:
    """The quotient without its fraction: what is divided is first made a multiple, so that nothing is
    rounded."""
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
        refused_function(name, (NUMERIC, NUMERIC), NUMERIC, _NUMERIC_HINT)
    root = _domain("sqrt", None, "cannot take square root of a negative number", "2201F")
    function("sqrt", (FLOAT8,), FLOAT8, root)
    zero, negative = "cannot take logarithm of zero", "cannot take logarithm of a negative number"
    function("ln", (FLOAT8,), FLOAT8, _domain("ln", zero, negative, "2201E"))
    for name in ("log", "log10"):
        function(name, (FLOAT8,), FLOAT8, _domain("log10", zero, negative, "2201E"))
        refused_function(name, (NUMERIC,), NUMERIC, _NUMERIC_HINT)
    refused_function("log", (NUMERIC, NUMERIC), NUMERIC, _NUMERIC_HINT)
    function("exp", (FLOAT8,), FLOAT8, _exp)
    for name in ("sqrt", "ln", "exp"):
        refused_function(name, (NUMERIC,), NUMERIC, _NUMERIC_HINT)
    function("cbrt", (FLOAT8,), FLOAT8, "cbrt")
    function("degrees", (FLOAT8,), FLOAT8, "degrees")
    function("radians", (FLOAT8,), FLOAT8, "radians")
    function("pi", (), FLOAT8, "pi")
    for name in ("sin", "cos", "tan"):
        function(name, (FLOAT8,), FLOAT8, _trigonometric(name))
    for name in ("asin", "acos"):
        function(name, (FLOAT8,), FLOAT8, _inverse(name))
    function("atan", (FLOAT8,), FLOAT8, "atan")
    function("atan2", (FLOAT8, FLOAT8), FLOAT8, "atan2")
    function("random", (), FLOAT8, "rand", volatile=True)
    not_yet(
        """
        gcd lcm factorial width_bucket scale min_scale trim_scale sinh cosh tanh erf erfc setseed
        """
    )


_install()
