"""Aggregates over all rows of a group at once.

The rows are collected into an array, in the requested order and with DISTINCT if requested. `rows` is an
array of structs with the arguments as fields a0, a1, ... A finisher takes it and the arguments' types, and
returns the result. Over no rows it is NULL. A group needs memory for all its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext

from sqlglot import exp

from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.json import joined, object_of
from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    call,
    cast,
    cast_to,
    eq,
    field,
    gt,
    if_,
    integer,
    is_null,
    lambda_,
    lambda_pair,
    let,
    mul,
    not_,
    null,
    or_,
    string,
    sub,
    variable,
)
from tidemill.types.model import NUMERIC, SqlType, array

Finisher = Callable[[Tree, Sequence[SqlType]], Tree]


def _values(rows: Tree, name: str = "a0") -> Tree:
    return call("transform", rows, lambda_("r", field(variable("r"), name)))


def _present(rows: Tree, name: str = "a0") -> Tree:
    """The rows whose argument is not NULL."""
    return call("filter", rows, lambda_("r", not_(is_null(field(variable("r"), name)))))


def _or_null(array_: Tree, made: Callable[[Tree], Tree]) -> Tree:
    """NULL for an empty array, else the result of the function."""
    return let(array_, lambda v: if_(gt(call("size", v), integer(0)), made(v.copy()), null()))


def _array(rows: Tree, types: Sequence[SqlType]) -> Tree:
    return cast_to(_or_null(_values(rows), lambda v: v), array(types[0]))


def _text(rows: Tree, _types: Sequence[SqlType]) -> Tree:
    """Each value after its own delimiter, except the first."""
    item = variable("r")
    delimiter = call("coalesce", field(item, "a1"), string(""))
    part = if_(
        eq(variable("i"), integer(0)),
        field(item.copy(), "a0"),
        call("concat", delimiter, field(item.copy(), "a0")),
    )
    return _or_null(
        _present(rows),
        lambda v: call("array_join", call("transform", v, lambda_pair("r", "i", part)), string("")),
    )


def _bytes(rows: Tree, _types: Sequence[SqlType]) -> Tree:
    nothing = cast(string(""), "BINARY")
    item = variable("r")
    delimiter = call("coalesce", field(item, "a1"), nothing)
    whole, part = variable("s"), field(item.copy(), "a0")
    longer = if_(is_null(whole), part, call("concat", whole.copy(), delimiter, part.copy()))
    return call("aggregate", _present(rows), cast(null(), "BINARY"), lambda_pair("s", "r", longer))


def _documents(rows: Tree, _types: Sequence[SqlType]) -> Tree:
    return _or_null(_values(rows), joined)


def _documents_strict(rows: Tree, _types: Sequence[SqlType]) -> Tree:
    """Without NULLs; an empty array if all are NULL."""
    return _or_null(rows, lambda v: joined(_values(_present(v))))


def _object(rows: Tree, _types: Sequence[SqlType]) -> Tree:
    some = gt(call("size", rows.copy()), integer(0))
    return object_of(if_(some, _values(rows), null()), _values(rows.copy(), "a1"))


def _object_strict(rows: Tree, types: Sequence[SqlType]) -> Tree:
    """Without members that are NULL or JSON null. A NULL key still raises."""
    some = gt(call("size", rows.copy()), integer(0))
    row = variable("r")
    value = field(row.copy(), "a1")
    there = and_(not_(is_null(value)), not_(eq(value.copy(), string("null"))))
    kept = call("filter", rows, lambda_("r", or_(is_null(field(row, "a0")), there)))
    return object_of(if_(some, _values(kept), null()), _values(kept.copy(), "a1"))


# --- ordered sets: `rows` has the fraction as a0, the value as a1, and is in order


def _percentile_disc(values: Tree, fraction: Tree) -> Tree:
    """The first value at or after the fraction's position."""
    place = call("ceil", mul(fraction, cast(call("size", values), "DOUBLE")))
    at = call("greatest", sub(cast(place, "INT"), integer(1)), integer(0))
    return call("get", values.copy(), at)


def _percentile_cont(values: Tree, fraction: Tree) -> Tree:
    """Interpolates between the two values around the fraction's position."""

    def between(place: Tree) -> Tree:
        low = call("floor", place.copy())
        at = [call("get", values.copy(), cast(x, "INT")) for x in (low, call("ceil", place.copy()))]
        rest = sub(place.copy(), cast(low.copy(), "DOUBLE"))
        inside = add(at[0], mul(rest, sub(at[1], at[0].copy())))
        return if_(eq(low.copy(), call("ceil", place.copy())), at[0].copy(), inside)

    size = cast(sub(call("size", values), integer(1)), "DOUBLE")
    return let(mul(fraction, size), between)


def percentile(values: Tree, fraction: Tree, result: SqlType, *, continuous: bool, several: bool) -> Tree:
    """`values` in order and without NULLs; `fraction` is a DOUBLE, or, for several, an array of them."""
    one = _percentile_cont if continuous else _percentile_disc

    def made(v: Tree) -> Tree:
        if not several:
            return if_(is_null(fraction.copy()), null(), one(v, fraction.copy()))
        item = variable("f")
        return call(
            "transform", fraction.copy(), lambda_("f", if_(is_null(item), null(), one(v, item.copy())))
        )

    return cast_to(_or_null(values, made), result)


def mode(values: Tree, t: SqlType, result: SqlType) -> Tree:
    """The most frequent of sorted values; of several the first. Each run of equal values is counted, and the
    longest run so far is kept."""
    state, item = variable("s"), variable("x")
    same = exp.NullSafeEQ(this=comparable(field(state, "c"), t), expression=comparable(item.copy(), t))
    count = if_(exp.Paren(this=same), add(field(state.copy(), "n"), integer(1)), integer(1))

    def struct(best: Tree, most: Tree, current: Tree, run: Tree) -> Tree:
        return call(
            "named_struct",
            *(string("b"), best, string("m"), most),
            *(string("c"), current, string("n"), run),
        )

    better = struct(item.copy(), count.copy(), item.copy(), count.copy())
    other = struct(field(state.copy(), "b"), field(state.copy(), "m"), item.copy(), count.copy())
    step = if_(gt(count, field(state.copy(), "m")), better, other)
    nothing = cast_to(null(), t)
    start = struct(nothing, integer(0), nothing.copy(), integer(0))
    best = call(
        "aggregate", values, start, lambda_pair("s", "x", step), lambda_("s", field(variable("s"), "b"))
    )
    return cast_to(best, result)


# --- variance and standard deviation of exact numbers


def _statistic(sample: bool, root: bool) -> Callable[[Sequence[Decimal | None]], Decimal | None]:
    def run(given: Sequence[Decimal | None]) -> Decimal | None:
        values = [v for v in given if v is not None]
        count = len(values)
        if count < (2 if sample else 1):
            return None
        with localcontext(prec=120, rounding=ROUND_HALF_UP):
            total, squares = sum(values, Decimal(0)), sum((v * v for v in values), Decimal(0))
            above = count * squares - total * total
            if above <= 0:
                return Decimal(0)
            below = Decimal(count * (count - 1 if sample else count))
            scale = _quotient_scale(above, below, max(-_exponent(v) for v in values) * 2)
            unit = Decimal(1).scaleb(-scale)
            quotient = (above / below).quantize(unit)
            return quotient.sqrt().quantize(unit) if root else quotient

    return run


def _exponent(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return min(exponent, 0) if isinstance(exponent, int) else 0


def _quotient_scale(above: Decimal, below: Decimal, least: int) -> int:
    """The number of digits of PostgreSQL's quotients: 16 significant ones, in steps of four, and at least as
    many as the operands have (numeric.c: select_div_scale)."""
    weights: list[int] = []
    firsts: list[int] = []
    for value in (above, below):
        weight = value.adjusted() // 4
        weights.append(weight)
        firsts.append(int(value.scaleb(-weight * 4)))
    places = weights[0] - weights[1] - (firsts[0] <= firsts[1])
    return max(16 - places * 4, least, 0)


_STATISTICS = {
    "var_samp": (True, False),
    "variance": (True, False),
    "var_pop": (False, False),
    "stddev_samp": (True, True),
    "stddev": (True, True),
    "stddev_pop": (False, True),
}


def _numbers(name: str) -> Finisher:
    build = row_function(f"numeric {name}", (array(NUMERIC),), NUMERIC, _statistic(*_STATISTICS[name]))
    return lambda rows, _types: build([_values(rows)])


# The aggregate that ARRAY(query) is made of: all rows of its column, an empty array without rows.
ROWS = "rows as array"

FINISHERS: dict[str, Finisher] = {
    ROWS: lambda rows, _types: _values(rows),
    "array_agg": _array,
    "list_agg": _array,
    "string_agg": _text,
    "string_agg bytea": _bytes,
    "jsonb_agg": _documents,
    "jsonb_agg_strict": _documents_strict,
    "jsonb_object_agg": _object,
    "jsonb_object_agg_strict": _object_strict,
    **{f"{name} numeric": _numbers(name) for name in _STATISTICS},
}
