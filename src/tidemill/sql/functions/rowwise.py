"""Scalar functions in Python, one row at a time, where Spark has no function with PostgreSQL's result.

A family of the allow-list adds such a function with `by_row`. Trees call it by name through one Arrow
function per result type, which `python` registers. It may raise a TidemillError. The error is returned as a
value beside the result, and Spark raises it where the result is used, so a branch of CASE that is not taken
raises nothing. Rows with equal arguments are computed once per batch.

Values are storage values in Python's types: int for dates (days), times and timestamps (microseconds), a
triple of int for intervals, bytes for bytea and uuid, Decimal for numeric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from tidemill.errors import InvalidValue, TidemillError
from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.signature import Builder, RowFunction, function, operator
from tidemill.sql.functions.tree import RAISED, Tree, call, field, if_, is_null, let, string
from tidemill.types.arrow import INTERVAL_FIELDS, NUMERIC_PRECISION, NUMERIC_SCALE, arrow_type
from tidemill.types.model import TEXT, Kind, SqlType
from tidemill.types.spark import spark_type

# Wide enough for every intermediate product of 38-digit numbers.
_WIDE = Context(prec=120, rounding=ROUND_HALF_UP)
_UNIT = Decimal(1).scaleb(-NUMERIC_SCALE)
_NUMERIC_END = Decimal(10) ** (NUMERIC_PRECISION - NUMERIC_SCALE)


_ROWS: dict[str, RowFunction] = {}


def row_function(
    name: str,
    types: Sequence[SqlType],
    result: SqlType,
    run: Callable[..., Any],
    *,
    zoned: bool = False,
    nulls: bool = False,
) -> Builder:
    """The builder of a Python function's call. `zoned`: its last argument is the session's time zone."""
    given = (*types, TEXT) if zoned else tuple(types)
    key = _key(name, types)
    _ROWS[key] = RowFunction(key, given, result, run, zoned, nulls)

    def build(args: Sequence[Tree]) -> Tree:
        found = call(carrier(result), string(key), *args, *([zone()] if zoned else []))
        return let(found, _value_or_error)

    return build


def _value_or_error(found: Tree) -> Tree:
    raised = call("raise_error", call("concat", string(RAISED), field(found, "e")))
    return if_(is_null(field(found, "e")), field(found, "v"), raised)


def by_row(
    name: str,
    types: Sequence[SqlType],
    result: SqlType,
    run: Callable[..., Any],
    *,
    zoned: bool = False,
    brief: bool = True,
) -> None:
    """Add a function to the allow-list. Unless it is `brief`, it runs only in Spark's tasks, which can be
    stopped."""
    build = row_function(name, types, result, run, zoned=zoned)
    function(name, types, result, build, at_hand=_ROWS[_key(name, types)] if brief else None)


def by_row_operator(name: str, types: Sequence[SqlType], result: SqlType, run: Callable[..., Any]) -> None:
    build = row_function(name, types, result, run)
    operator(name, types, result, build, at_hand=_ROWS[_key(name, types)])


def _key(name: str, types: Sequence[SqlType]) -> str:
    return f"{name}({','.join(map(str, types))})"


def row_functions() -> dict[str, RowFunction]:
    return _ROWS


# --- the Spark side


def carrier(result: SqlType) -> str:
    """The name of the Arrow function for results of this type."""
    return f"tm_row_{_word(result)}"


def _word(t: SqlType) -> str:
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        return f"{_word(t.element)}_{t.kind.value}"
    return t.kind.value


def carriers() -> dict[str, SqlType]:
    return {carrier(f.result): f.result for f in _ROWS.values()}


def carrier_type(result: SqlType) -> str:
    return f"struct<v: {spark_type(result)}, e: string>"


def value_at_hand(row: RowFunction, args: Sequence[pa.Scalar], zone: str) -> pa.Scalar:
    """The function's value. Raises its error."""
    given = [*args, pa.scalar(zone)] if row.zoned else args
    columns = [pa.repeat(a, 1) if a.is_valid else pa.nulls(1, a.type) for a in given]
    values, errors = evaluate(row.result, pa.array([row.key]), columns).flatten()
    if errors[0].is_valid:
        sqlstate, _, primary = errors[0].as_py().partition(":")
        raise TidemillError(primary, sqlstate=sqlstate)
    return values[0]


def evaluate(result: SqlType, keys: pa.Array, columns: Sequence[pa.Array]) -> pa.Array:
    """Evaluates a batch of rows. All keys are equal: the constant of the call."""
    if not len(keys):
        return _answers(result, [], [])
    row = _ROWS[keys[0].as_py()]
    known: dict[tuple[Any, ...], tuple[Any, str | None]] = {}
    values: list[Any] = []
    errors: list[str | None] = []
    inputs = [_values(column, t) for column, t in zip(columns, row.types, strict=True)]
    for args in zip(*inputs, strict=True) if inputs else [()] * len(keys):
        found = known.get(args)
        if found is None:
            found = known[args] = _one(row, args)
        values.append(found[0])
        errors.append(found[1])
    return _answers(result, values, errors)


def _one(row: RowFunction, args: tuple[Any, ...]) -> tuple[Any, str | None]:
    if not row.nulls and None in args:
        return None, None
    try:
        return stored(row.run(*args), row.result), None
    except TidemillError as error:
        return None, f"{error.sqlstate}:{error.primary}"
    except Exception as error:
        # A bug here must not fail the whole job; the text names the function.
        return None, f"XX000:{row.key}: {type(error).__name__}: {error}"


def stored(value: Any, t: SqlType) -> Any:
    """A result, checked against the range of its type's storage form."""
    if value is None or t.kind is not Kind.NUMERIC:
        return value
    try:
        rounded = value.quantize(_UNIT, context=_WIDE)
    except InvalidOperation:
        rounded = None
    if rounded is None or not abs(rounded) < _NUMERIC_END:
        raise InvalidValue("value overflows numeric format", sqlstate="22003")
    return rounded


def _values(column: pa.Array, t: SqlType) -> list[Any]:
    kind = t.kind
    if kind is Kind.DATE:
        return column.cast(pa.int32()).to_pylist()
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return column.cast(pa.int64()).to_pylist()
    if kind is Kind.INTERVAL:
        triples = zip(*(column.field(f.name).to_pylist() for f in INTERVAL_FIELDS), strict=True)
        return [p if v else None for v, p in zip(column.is_valid().to_pylist(), triples, strict=True)]
    if kind is Kind.ARRAY:
        return [None if v is None else tuple(v) for v in column.to_pylist()]
    return column.to_pylist()


def _answers(result: SqlType, values: list[Any], errors: list[str | None]) -> pa.Array:
    fields = [pa.field("v", arrow_type(result)), pa.field("e", pa.string())]
    return pa.StructArray.from_arrays([_array(values, result), pa.array(errors, pa.string())], fields=fields)


def _array(values: list[Any], t: SqlType) -> pa.Array:
    want = arrow_type(t)
    if t.kind is Kind.DATE:
        return pa.array(values, pa.int32()).cast(want)
    if t.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return pa.array(values, pa.int64()).cast(want)
    if t.kind is Kind.INTERVAL:
        names = [f.name for f in INTERVAL_FIELDS]
        return pa.array([None if v is None else dict(zip(names, v, strict=True)) for v in values], want)
    return pa.array(values, want)
