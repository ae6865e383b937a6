"""Set-returning functions: the columns of each, and the array that its rows are expanded from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sql.bind.coerce import to_type, unify
from tidemill.sql.bind.digits import digits_of, with_digits
from tidemill.sql.bind.errors import unsupported
from tidemill.sql.bind.forms.series_range import counted_series
from tidemill.sql.functions import json
from tidemill.sql.functions.arrays import from_string
from tidemill.sql.functions.lattice import INTEGERS, can_coerce
from tidemill.sql.functions.regexp import MATCHES
from tidemill.sql.functions.series import number_series, numeric_series, timestamp_series
from tidemill.sql.functions.signature import Builder
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    boolean,
    call,
    cast,
    eq,
    gt,
    if_,
    int_divide,
    integer,
    lambda_,
    let_all,
    mul,
    string,
    variable,
)
from tidemill.sql.plan.expressions import BoundNode, Const
from tidemill.sql.plan.operators import Series
from tidemill.types.arrow import element_type
from tidemill.types.model import (
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
    array,
)

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


@dataclass(frozen=True, slots=True)
class RowSource:
    """`build` creates an array from the lowered args: of values for one column, or of structs with the fields
    c0, c1, ... for several columns."""

    columns: tuple[tuple[str, SqlType], ...]
    args: tuple[BoundNode, ...]
    build: Builder
    # The same rows as a series between constants: without an array, and in several partitions if they are
    # many.
    counted: Series | None = None


Make = Callable[["Binder", Sequence[BoundNode], "int | None"], RowSource]


def _unnest(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    if not nodes or any(n.type.kind not in (Kind.ARRAY, Kind.LIST) for n in nodes):
        if any(n.type.kind is Kind.UNKNOWN for n in nodes):
            raise TidemillError("function unnest(unknown) is not unique", sqlstate="42725", position=position)
        raise b.no_function("unnest", nodes, position)
    columns = tuple(("unnest", element_type(n.type)) for n in nodes)
    if len(nodes) == 1:
        return RowSource(columns, tuple(nodes), lambda a: a[0])
    return RowSource(columns, tuple(nodes), _zipped)


def _zipped(args: Sequence[Tree]) -> Tree:
    """Rows of several arrays side by side; shorter arrays are filled with NULLs."""

    def build(v: list[Tree]) -> Tree:
        sizes = [call("coalesce", call("size", x.copy()), integer(0)) for x in v]
        count = call("greatest", *sizes)
        parts: list[Tree] = []
        for i, x in enumerate(v):
            parts += [string(f"c{i}"), call("get", x.copy(), variable("i"))]
        row = lambda_("i", call("named_struct", *parts))
        # One index more than needed, because a sequence has at least one element; the last one is removed.
        made = call("transform", call("sequence", integer(0), count), row)
        return call("slice", made, integer(1), count.copy())

    return let_all(list(args), build)


def _subscripts(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    if len(nodes) not in (2, 3) or nodes[0].type.kind is not Kind.ARRAY:
        raise b.no_function("generate_subscripts", nodes, position)
    if len(nodes) == 3:
        raise unsupported("generate_subscripts() with three arguments", position, "Order its rows.")
    dimension = to_type(b.ctx, nodes[1], INT4, position=position)

    def build(a: Sequence[Tree]) -> Tree:
        def made(v: list[Tree]) -> Tree:
            size = call("size", v[0])
            there = eq(v[1], integer(1))
            some = call("sequence", integer(1), size.copy())
            none = call("slice", call("array", integer(1)), integer(1), integer(0))
            wanted = call("coalesce", and_(there, gt(size, integer(0))), boolean(False))
            return if_(wanted, some, none)

        return let_all(list(a), made)

    return RowSource((("generate_subscripts", INT4),), (nodes[0], dimension), build)


def _series(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    if len(nodes) not in (2, 3):
        raise b.no_function("generate_series", nodes, position)
    kinds = {n.type.kind for n in nodes}
    if kinds & {Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL}:
        return _times(b, nodes, position)
    if kinds == {Kind.UNKNOWN}:
        raise TidemillError(
            f"function generate_series({', '.join(str(n.type) for n in nodes)}) is not unique",
            sqlstate="42725",
            position=position,
        )
    if not kinds <= INTEGERS | {Kind.NUMERIC, Kind.UNKNOWN}:
        raise b.no_function("generate_series", nodes, position)
    typed, t = unify(b.ctx, list(nodes), "generate_series")
    if t.kind is Kind.NUMERIC:
        return _numerics(b, typed)
    if t not in (INT4, INT8):
        wide = INT4 if t.kind in (Kind.INT2, Kind.UINT2) else INT8 if t.kind is Kind.UINT4 else NUMERIC
        typed, t = [to_type(b.ctx, n, wide) for n in typed], wide
        if t is NUMERIC:
            return _numerics(b, typed)
    return RowSource((("generate_series", t),), tuple(typed), number_series(t), counted_series(typed, t))


def _numerics(b: Binder, nodes: Sequence[BoundNode]) -> RowSource:
    """If the step has more digits than the start, all values except the first have them, too."""
    typed = tuple(to_type(b.ctx, n, NUMERIC) for n in nodes)
    first, *steps = (digits_of(n.type) for n in (typed[0], *typed[2:]))
    known = first is not None and all(s is not None and s <= first for s in steps)
    t = with_digits(NUMERIC, first if known else None)
    return RowSource((("generate_series", t),), typed, numeric_series)


def _times(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    ends, steps = nodes[:2], nodes[2:]
    plain = all(n.type.kind in (Kind.TIMESTAMP, Kind.UNKNOWN) for n in ends)
    t = TIMESTAMP if plain and any(n.type.kind is Kind.TIMESTAMP for n in ends) else TIMESTAMPTZ
    fits = all(n.type.kind is Kind.UNKNOWN or can_coerce(n.type, t) for n in ends)
    if not fits or not steps or steps[0].type.kind not in (Kind.INTERVAL, Kind.UNKNOWN):
        raise b.no_function("generate_series", nodes, position)
    typed = [*(to_type(b.ctx, n, t, position=position) for n in ends), to_type(b.ctx, steps[0], INTERVAL)]
    return RowSource((("generate_series", t),), tuple(typed), timestamp_series(t, _constant(typed[2])))


def _constant(step: BoundNode) -> tuple[int, int, int] | None:
    if not isinstance(step, Const) or not isinstance(step.value, pa.Scalar) or not step.value.is_valid:
        return None
    parts = step.value.as_py()
    return parts["months"], parts["days"], parts["micros"]


def _documents(name: str, t: SqlType, build: Builder) -> Make:
    def make(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
        column = name if name == "jsonb_object_keys" else "value"
        return RowSource(((column, t),), _document(b, name, nodes, position), build)

    return make


def _document(
    b: Binder, name: str, nodes: Sequence[BoundNode], position: int | None
) -> tuple[BoundNode, ...]:
    if len(nodes) != 1 or nodes[0].type.kind not in (Kind.JSONB, Kind.UNKNOWN):
        raise b.no_function(name, nodes, position)
    return (to_type(b.ctx, nodes[0], JSONB, position=position),)


def _each(name: str, t: SqlType, build: Builder) -> Make:
    """Keys and values alternate; each pair is a row."""

    def rows(a: Sequence[Tree]) -> Tree:
        def made(v: list[Tree]) -> Tree:
            at = mul(variable("i"), integer(2))
            parts = (
                *(string("c0"), call("get", v[0].copy(), at)),
                *(string("c1"), call("get", v[0].copy(), add(at.copy(), integer(1)))),
            )
            places = call("sequence", integer(0), cast(_half(call("size", v[0].copy())), "INT"))
            row = call("transform", places, lambda_("i", call("named_struct", *parts)))
            return call("slice", row, integer(1), cast(_half(call("size", v[0].copy())), "INT"))

        return let_all([build(a)], made)

    def make(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
        return RowSource((("key", TEXT), ("value", t)), _document(b, name, nodes, position), rows)

    return make


def _half(size: Tree) -> Tree:
    return int_divide(size, integer(2))


def _split(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    if len(nodes) not in (2, 3):
        raise b.no_function("string_to_table", nodes, position)
    texts = tuple(to_type(b.ctx, n, TEXT, position=position) for n in nodes)
    return RowSource((("string_to_table", TEXT),), texts, from_string)


def _of_array(name: str, function: str) -> Make:
    """A function whose rows are the elements of another function's result."""

    def make(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
        from tidemill.sql.functions.resolve import resolve_function

        if resolve_function(function, [n.type for n in nodes]) is None:
            raise b.no_function(name, nodes, position)
        found = b.apply(function, nodes, position)
        return RowSource(((name, element_type(found.type)),), (found,), lambda a: a[0])

    return make


def _matches(b: Binder, nodes: Sequence[BoundNode], position: int | None) -> RowSource:
    types = [n.type for n in nodes]
    if len(nodes) not in MATCHES or not all(can_coerce(t, TEXT) for t in types):
        raise b.no_function("regexp_matches", nodes, position)
    texts = tuple(to_type(b.ctx, n, TEXT, position=position) for n in nodes)
    return RowSource((("regexp_matches", array(TEXT)),), texts, MATCHES[len(nodes)])


SOURCES: dict[str, Make] = {
    "unnest": _unnest,
    "generate_series": _series,
    "generate_subscripts": _subscripts,
    "jsonb_array_elements": _documents("jsonb_array_elements", JSONB, json.ELEMENTS),
    "jsonb_array_elements_text": _documents("jsonb_array_elements_text", TEXT, json.ELEMENTS_TEXT),
    "jsonb_object_keys": _documents("jsonb_object_keys", TEXT, json.KEYS),
    "jsonb_each": _each("jsonb_each", JSONB, json.EACH),
    "jsonb_each_text": _each("jsonb_each_text", TEXT, json.EACH_TEXT),
    "string_to_table": _split,
    "regexp_matches": _matches,
    "regexp_split_to_table": _of_array("regexp_split_to_table", "regexp_split_to_array"),
}
