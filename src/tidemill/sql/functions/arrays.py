"""Arrays of one dimension whose first index is 1. A NULL element is an element; a NULL array in a
concatenation counts as empty."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sql.functions.signature import Poly, function, not_yet, operator
from tidemill.sql.functions.tree import (
    Tree,
    boolean,
    call,
    case,
    cast,
    eq,
    gt,
    if_,
    integer,
    is_null,
    lambda_,
    let_all,
    null,
    or_,
    raise_error,
    variable,
)
from tidemill.types.model import BOOL, INT2, INT4, INT8, TEXT, array

_A, _E = Poly.ARRAY, Poly.ELEMENT
_TEXTS = "ARRAY<STRING>"


def _length(args: Sequence[Tree]) -> Tree:
    """NULL for an empty array and for a dimension that it does not have."""

    def build(v: list[Tree]) -> Tree:
        some = gt(call("size", v[0]), integer(0))
        return case(
            (or_(is_null(v[0]), is_null(v[1])), cast(null(), "INT")),
            (eq(v[1], integer(1)), if_(some, call("size", v[0]), cast(null(), "INT"))),
            otherwise=cast(null(), "INT"),
        )

    return let_all(list(args), build)


def _cardinality(args: Sequence[Tree]) -> Tree:
    return if_(is_null(args[0]), cast(null(), "INT"), call("size", args[0]))


def _append(args: Sequence[Tree]) -> Tree:
    return call("concat", _or_empty(args[0]), call("array", args[1]))


def _prepend(args: Sequence[Tree]) -> Tree:
    return call("concat", call("array", args[0]), _or_empty(args[1]))


def _or_empty(value: Tree) -> Tree:
    return call("coalesce", value, call("array"))


def _cat(args: Sequence[Tree]) -> Tree:
    """NULL only where both are."""
    return let_all(
        list(args),
        lambda v: case((is_null(v[0]), v[1]), (is_null(v[1]), v[0]), otherwise=call("concat", v[0], v[1])),
    )


def _position(args: Sequence[Tree]) -> Tree:
    """NULL where it is not in it; a NULL is looked for like a value."""

    def build(v: list[Tree]) -> Tree:
        wanted = if_(
            is_null(v[1]),
            raise_error("0A000", "array_position() of NULL is not supported"),
            call("array_position", v[0], v[1]),
        )
        found = call("nullif", cast(wanted, "INT"), integer(0))
        return if_(is_null(v[0]), cast(null(), "INT"), found)

    return let_all(list(args), build)


def _contains(args: Sequence[Tree]) -> Tree:
    """Every element of the second is in the first; a NULL element is in none."""

    def build(v: list[Tree]) -> Tree:
        missing = call("array_except", v[1], v[0])
        has_null = call("exists", v[1], lambda_("x", is_null(variable("x"))))
        return case(
            (or_(is_null(v[0]), is_null(v[1])), cast(null(), "BOOLEAN")),
            (has_null, boolean(False)),
            otherwise=eq(call("size", missing), integer(0)),
        )

    return let_all(list(args), build)


def _overlap(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        return if_(
            or_(is_null(v[0]), is_null(v[1])),
            cast(null(), "BOOLEAN"),
            gt(call("size", call("array_compact", call("array_intersect", v[0], v[1]))), integer(0)),
        )

    return let_all(list(args), build)


def _install() -> None:
    function("array_length", (_A, INT4), INT4, _length)
    function("cardinality", (_A,), INT4, _cardinality)
    function("array_append", (_A, _E), _A, _append)
    function("array_prepend", (_E, _A), _A, _prepend)
    function("array_cat", (_A, _A), _A, _cat)
    function("array_position", (_A, _E), INT4, _position)
    for t in (TEXT, INT2, INT4, INT8):
        for args in ((array(t), TEXT), (array(t), TEXT, TEXT)):
            function("array_to_string", args, TEXT, lambda a: call("array_join", cast(a[0], _TEXTS), *a[1:]))
    operator("||", (_A, _A), _A, _cat)
    operator("||", (_A, _E), _A, _append)
    operator("||", (_E, _A), _A, _prepend)
    operator("@>", (_A, _A), BOOL, _contains)
    operator("<@", (_A, _A), BOOL, lambda a: _contains([a[1], a[0]]))
    operator("&&", (_A, _A), BOOL, _overlap)
    not_yet(
        """
        array_dims array_ndims array_lower array_upper array_positions array_remove array_replace array_fill
        array_sample array_shuffle array_sort array_reverse trim_array unnest generate_series
        generate_subscripts """
    )


_install()
