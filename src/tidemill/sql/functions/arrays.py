"""Lists, and arrays of one dimension with lower bound 1.

A NULL element is an element; a NULL array in a concatenation counts as empty. Elements compare as PostgreSQL
compares values of their type (`comparison.comparable`), which can differ from Spark's equality: '24:00' and
'1 day' are the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.sql.functions.any_texts import texts_tree
from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.lattice import INTEGERS, STRINGS
from tidemill.sql.functions.refuse import refused_function
from tidemill.sql.functions.signature import Builder, Declared, Poly, function, not_yet, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    boolean,
    call,
    case,
    cast,
    cast_to,
    eq,
    ge,
    gt,
    if_,
    integer,
    is_null,
    lambda_,
    let_all,
    lt,
    not_,
    null,
    or_,
    raise_error,
    string,
    sub,
    variable,
)
from tidemill.types.model import BOOL, INT4, INT8, TEXT, SqlType, array

_A, _E, _L = Poly.ARRAY, Poly.ELEMENT, Poly.LIST
_TEXTS = "ARRAY<STRING>"
_INTS = array(INT4)
# PostgreSQL's limit.
MAX_FILLED = 134_217_727

Typed = Callable[[Sequence[Tree], Sequence[SqlType]], Tree]


def _strict(args: Sequence[Tree], ddl: str, body: Callable[[list[Tree]], Tree]) -> Tree:
    """NULL if an argument is NULL, else the body over the arguments, each computed once."""

    def build(v: list[Tree]) -> Tree:
        return if_(or_(*(is_null(x) for x in v)), cast(null(), ddl), body([x.copy() for x in v]))

    return let_all(list(args), build)


def _same(element: Tree, wanted: Tree, t: SqlType) -> Tree:
    return exp.Paren(this=exp.NullSafeEQ(this=comparable(element, t), expression=comparable(wanted, t)))


def _element(t: SqlType) -> SqlType:
    assert t.element is not None
    return t.element


def _in_dimension(value: Callable[[Tree], Tree], ddl: str = "INT") -> Builder:
    """f(array, dimension): NULL for an empty array and for a dimension that it does not have."""

    def build(args: Sequence[Tree]) -> Tree:
        def body(v: list[Tree]) -> Tree:
            there = and_(gt(call("size", v[0]), integer(0)), eq(v[1], integer(1)))
            return if_(there, value(v[0].copy()), cast(null(), ddl))

        return _strict(args, ddl, body)

    return build


def _size(value: Tree) -> Tree:
    return call("size", value)


def cardinality(args: Sequence[Tree]) -> Tree:
    return if_(is_null(args[0]), cast(null(), "INT"), call("size", args[0]))


def _append(args: Sequence[Tree]) -> Tree:
    return call("concat", _or_empty(args[0]), call("array", args[1]))


def _prepend(args: Sequence[Tree]) -> Tree:
    return call("concat", call("array", args[0]), _or_empty(args[1]))


def _or_empty(value: Tree) -> Tree:
    return call("coalesce", value, call("array"))


def _cat(args: Sequence[Tree]) -> Tree:
    """NULL only if both are NULL."""
    return let_all(
        list(args),
        lambda v: case((is_null(v[0]), v[1]), (is_null(v[1]), v[0]), otherwise=call("concat", v[0], v[1])),
    )


# --- looking for elements


def _places(v: Sequence[Tree], t: SqlType) -> Tree:
    """The indexes of the elements equal to the wanted one; NULL matches NULL."""
    indexed = call("sequence", integer(1), call("size", v[0]))
    found = _same(call("get", v[0].copy(), sub(variable("i"), integer(1))), v[1], _element(t))
    some = gt(call("size", v[0].copy()), integer(0))
    return if_(some, call("filter", indexed, lambda_("i", found)), cast(call("array"), "ARRAY<INT>"))


def _positions(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        return if_(is_null(v[0]), cast(null(), "ARRAY<INT>"), _places([v[0].copy(), v[1]], types[0]))

    return let_all(list(args), build)


def _position(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        places = _places([v[0].copy(), v[1]], types[0])
        if len(v) == 3:
            places = call("filter", places, lambda_("p", ge(variable("p"), v[2].copy())))
        found = if_(is_null(v[0]), cast(null(), "INT"), call("get", places, integer(0)))
        if len(v) < 3:
            return found
        # Nothing is searched in an empty array, nor a NULL in an array without NULLs.
        absent = and_(is_null(v[1]), not_(call("exists", v[0].copy(), lambda_("e", is_null(variable("e"))))))
        return case(
            (or_(is_null(v[0]), eq(call("size", v[0].copy()), integer(0)), absent), cast(null(), "INT")),
            (is_null(v[2]), raise_error("22004", "initial position must not be null")),
            otherwise=found,
        )

    return let_all(list(args), build)


def _remove(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        kept = not_(_same(variable("e"), v[1], _element(types[0])))
        return call("filter", v[0], lambda_("e", kept))

    return let_all(list(args), build)


def _replace(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        put = if_(_same(variable("e"), v[1], _element(types[0])), v[2], variable("e"))
        return call("transform", v[0], lambda_("e", put))

    return let_all(list(args), build)


def _contains(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    """Every element of the second is in the first; a NULL element is never contained."""
    t = _element(types[0])

    def body(v: list[Tree]) -> Tree:
        keys = call("transform", v[0], lambda_("e", comparable(variable("e"), t)))
        there = call("coalesce", call("array_contains", keys, comparable(variable("w"), t)), boolean(False))
        none = is_null(variable("w"))
        return call("forall", v[1], lambda_("w", if_(none, boolean(False), there)))

    return _strict(args, "BOOLEAN", body)


def _overlap(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    t = _element(types[0])

    def body(v: list[Tree]) -> Tree:
        sides = [
            call("array_compact", call("transform", x, lambda_("e", comparable(variable("e"), t)))) for x in v
        ]
        return call("arrays_overlap", *sides)

    return _strict(args, "BOOLEAN", body)


# --- cutting and making


def slice_of(value: Tree, low: Tree | None, high: Tree | None) -> Tree:
    """value[low:high]: the part within the array's bounds; NULL if a bound is NULL."""
    given = [value, *(b for b in (low, high) if b is not None)]

    def build(v: list[Tree]) -> Tree:
        size = call("size", v[0].copy())
        rest = list(v[1:])
        start = call("greatest", rest.pop(0).copy(), integer(1)) if low is not None else integer(1)
        stop = call("least", rest.pop(0).copy(), size) if high is not None else size
        length = call("greatest", add(sub(stop, start.copy()), integer(1)), integer(0))
        cut = call("slice", v[0].copy(), start, length)
        missing = [is_null(x.copy()) for x in v]
        return if_(or_(*missing), null(), cut) if missing else cut

    return let_all(given, build)


def _trim(args: Sequence[Tree]) -> Tree:
    def body(v: list[Tree]) -> Tree:
        size = call("size", v[0])
        text = call(
            "concat", string("number of elements to trim must be between 0 and "), cast(size.copy(), "STRING")
        )
        wrong = or_(lt(v[1], integer(0)), gt(v[1].copy(), size))
        cut = call("slice", v[0].copy(), integer(1), sub(size.copy(), v[1].copy()))
        return if_(wrong, raise_error("2202E", text), cut)

    def build(v: list[Tree]) -> Tree:
        return if_(or_(*(is_null(x) for x in v)), null(), body([x.copy() for x in v]))

    return let_all(list(args), build)


def _fill(args: Sequence[Tree]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        too_large = raise_error("54000", f"array size exceeds the maximum allowed ({MAX_FILLED})")
        sizes = call("size", v[1].copy())
        empty = call("slice", call("array", v[0].copy()), integer(1), integer(0))
        count = call("get", v[1].copy(), integer(0))
        made = call("array_repeat", v[0], count.copy())
        return case(
            (is_null(v[1]), raise_error("22004", "dimension array or low bound array cannot be null")),
            (eq(sizes, integer(0)), empty),
            (
                gt(sizes.copy(), integer(1)),
                raise_error("0A000", "arrays of more than one dimension are not supported"),
            ),
            (is_null(count), raise_error("22004", "dimension values cannot be null")),
            (or_(lt(count.copy(), integer(0)), gt(count.copy(), integer(MAX_FILLED))), too_large),
            otherwise=made,
        )

    return let_all(list(args), build)


def sorted_array(value: Tree, t: SqlType, descending: Tree, nulls_first: Tree) -> Tree:
    """Ordered as PostgreSQL orders values of type `t`; the flags are trees."""
    keys = call(
        "named_struct",
        *(string("n"), is_null(variable("e")), string("k"), comparable(variable("e"), t)),
        *(string("v"), variable("e")),
    )
    present = call(
        "filter", call("transform", value, lambda_("e", keys)), _on("e", lambda e: not_(_field(e, "n")))
    )
    nulls = call("filter", value.copy(), lambda_("e", is_null(variable("e"))))
    up = call("sort_array", present, boolean(True))
    ordered = call(
        "transform", if_(descending, call("reverse", up), up.copy()), _on("e", lambda e: _field(e, "v"))
    )
    return if_(nulls_first, call("concat", nulls, ordered), call("concat", ordered.copy(), nulls.copy()))


def _on(name: str, body: Callable[[Tree], Tree]) -> Tree:
    return lambda_(name, body(variable(name)))


def _field(value: Tree, name: str) -> Tree:
    return exp.Dot(this=exp.Paren(this=value), expression=exp.to_identifier(name))


def _sort(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    def build(v: list[Tree]) -> Tree:
        descending = v[1] if len(v) > 1 else boolean(False)
        nulls_first = v[2] if len(v) > 2 else descending.copy()
        made = sorted_array(v[0].copy(), _element(types[0]), descending, nulls_first)
        return if_(or_(*(is_null(x.copy()) for x in v)), cast_to(null(), types[0]), made)

    return let_all(list(args), build)


# --- texts


def _to_string(args: Sequence[Tree], types: Sequence[SqlType]) -> Tree:
    element = _element(types[0])
    native = element.kind in STRINGS or element.kind in INTEGERS
    texts = cast(args[0], _TEXTS) if native else texts_tree(args[0], types[0])
    if len(args) == 2:
        return call("array_join", texts, args[1])

    def build(v: list[Tree]) -> Tree:
        plain = call("array_join", v[0], v[1])
        return if_(is_null(v[2]), plain, call("array_join", v[0].copy(), v[1].copy(), v[2].copy()))

    return let_all([texts, args[1], args[2]], build)


def from_string(args: Sequence[Tree]) -> Tree:
    """string_to_array: parts between delimiters, or the characters without a delimiter."""

    def build(v: list[Tree]) -> Tree:
        text, delimiter = v[0], v[1]
        places = call("sequence", integer(1), call("length", text.copy()))
        characters = call(
            "transform", places, lambda_("i", call("substring", text.copy(), variable("i"), integer(1)))
        )
        # \Q...\E quotes the delimiter; a \E in it is written as two characters.
        literal = call("replace", delimiter.copy(), string("\\E"), string("\\E\\\\E\\Q"))
        pattern = call("concat", string("\\Q"), literal, string("\\E"))
        parts = case(
            (is_null(text.copy()), cast(null(), _TEXTS)),
            (eq(text.copy(), string("")), cast(call("array"), _TEXTS)),
            (is_null(delimiter.copy()), characters),
            (eq(delimiter.copy(), string("")), call("array", text.copy())),
            otherwise=call("split", text.copy(), pattern, integer(-1)),
        )
        if len(v) < 3:
            return parts
        return call("transform", parts, lambda_("e", call("nullif", variable("e"), v[2].copy())))

    return let_all(list(args), build)


def _typed(name: str, args: Sequence[Declared], result: Declared, build: Typed) -> None:
    function(name, args, result, _untyped, typed=build)


def _typed_operator(name: str, args: Sequence[Declared], result: Declared, build: Typed) -> None:
    operator(name, args, result, _untyped, typed=build)


def _untyped(_args: Sequence[Tree]) -> Tree:
    raise AssertionError("this row is built with its types")


def _install() -> None:
    function("array_length", (_A, INT4), INT4, _in_dimension(_size))
    function("array_upper", (_A, INT4), INT4, _in_dimension(_size))
    function("array_lower", (_A, INT4), INT4, _in_dimension(lambda _a: integer(1)))
    ndims = _in_dimension(lambda _a: integer(1))
    function("array_ndims", (_A,), INT4, lambda a: ndims([a[0], integer(1)]))
    dims = _in_dimension(
        lambda a: call("concat", string("[1:"), cast(call("size", a), "STRING"), string("]")), "STRING"
    )
    function("array_dims", (_A,), TEXT, lambda a: dims([a[0], integer(1)]))
    function("cardinality", (_A,), INT4, cardinality)
    function("array_append", (_A, _E), _A, _append)
    function("array_prepend", (_E, _A), _A, _prepend)
    function("array_cat", (_A, _A), _A, _cat)
    _typed("array_position", (_A, _E), INT4, _position)
    _typed("array_position", (_A, _E, INT4), INT4, _position)
    _typed("array_positions", (_A, _E), _INTS, _positions)
    _typed("array_remove", (_A, _E), _A, _remove)
    _typed("array_replace", (_A, _E, _E), _A, _replace)
    function("array_reverse", (_A,), _A, lambda a: call("reverse", a[0]))
    for extra in ((), (BOOL,), (BOOL, BOOL)):
        _typed("array_sort", (_A, *extra), _A, _sort)
    function("array_fill", (_E, _INTS), _A, _fill)
    refused_function("array_fill", (_E, _INTS, _INTS), _A, "Arrays begin at index 1.")
    function("trim_array", (_A, INT4), _A, _trim)
    _typed("array_to_string", (_A, TEXT), TEXT, _to_string)
    _typed("array_to_string", (_A, TEXT, TEXT), TEXT, _to_string)
    for args in ((TEXT, TEXT), (TEXT, TEXT, TEXT)):
        function("string_to_array", args, array(TEXT), from_string)
    operator("||", (_A, _A), _A, _cat)
    operator("||", (_A, _E), _A, _append)
    operator("||", (_E, _A), _A, _prepend)
    _typed_operator("@>", (_A, _A), BOOL, _contains)
    _typed_operator("<@", (_A, _A), BOOL, lambda a, t: _contains([a[1], a[0]], t))
    _typed_operator("&&", (_A, _A), BOOL, _overlap)
    _lists()
    not_yet("array_sample array_shuffle")


def _lists() -> None:
    function("list_length", (_L,), INT8, lambda a: cast(cardinality(a), "BIGINT"))
    function("list_append", (_L, _E), _L, _append)
    function("list_prepend", (_E, _L), _L, _prepend)
    function("list_cat", (_L, _L), _L, _cat)
    _typed("list_remove", (_L, _E), _L, _remove)
    operator("||", (_L, _L), _L, _cat)
    operator("||", (_L, _E), _L, _append)
    operator("||", (_E, _L), _L, _prepend)


_install()
