"""jsonb functions and operators.

The storage form is canonical text, so equality is text equality, and Spark builds documents by concatenating
text. Python takes documents apart (`jsonb_values`), because Spark's JSON functions reformat numbers and lose
digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidemill.sql.functions import jsonb_values as values
from tidemill.sql.functions.any_texts import document_tree
from tidemill.sql.functions.lattice import INTEGERS, STRINGS
from tidemill.sql.functions.refuse import refused_function
from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import Builder, Poly, function, not_yet, operator
from tidemill.sql.functions.tree import (
    Tree,
    boolean,
    call,
    case,
    cast,
    eq,
    if_,
    integer,
    is_null,
    lambda_,
    let,
    null,
    string,
    variable,
)
from tidemill.types.json import canonical_json
from tidemill.types.model import (
    BOOL,
    BYTEA,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    JSONB,
    NUMERIC,
    TEXT,
    Kind,
    SqlType,
    array,
)

_TEXTS = array(TEXT)
_JSON_HINT = "Use jsonb: its functions are named jsonb_..., and json is read as jsonb."

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def _typeof(document: Tree) -> Tree:
    first = call("left", document, integer(1))
    branches = [(eq(first, string(ch)), string(kind)) for ch, kind in _KINDS.items()]
    return case((call("isnull", document), document), *branches, otherwise=string("number"))


# --- building


# Characters that JSON escapes: the two signs, five with a letter, the other control characters.
_LETTERS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}


def quoted(value: Tree) -> Tree:
    """A text as a JSON string."""

    def escaped(v: Tree) -> Tree:
        result = call(
            "replace", call("replace", v.copy(), string("\\"), string("\\\\")), string('"'), string('\\"')
        )
        for code in range(1, 32):
            shown = f"\\{_LETTERS[code]}" if code in _LETTERS else f"\\u{code:04x}"
            result = call("replace", result, call("chr", integer(code)), string(shown))
        odd = call("rlike", v.copy(), string('[\\x00-\\x1f"\\\\]'))
        return if_(odd, result, v.copy())

    return call("concat", string('"'), let(value, escaped), string('"'))


_PLAIN = INTEGERS | {Kind.BOOL, Kind.NUMERIC}


def document(value: Tree, t: SqlType) -> Tree:
    """A value as jsonb; NULL stays NULL."""
    if t.kind is Kind.JSONB:
        return value
    if t.kind is Kind.NUMERIC:
        return call("regexp_replace", cast(value, "STRING"), string(r"\.0*$|(\.\d*[1-9])0+$"), string("$1"))
    if t.kind in _PLAIN:
        return cast(value, "STRING")
    if t.kind in STRINGS:
        return quoted(value)
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None and _is_native(t.element):
        inner = call("coalesce", document(variable("d"), t.element), string("null"))
        return joined(call("transform", value, lambda_("d", inner)))
    return document_tree(value, t)


def _is_native(t: SqlType) -> bool:
    """Whether Spark can write it without Python (which a lambda cannot contain)."""
    if t.kind in (Kind.ARRAY, Kind.LIST):
        # Nested lambdas would need separate names.
        return False
    return t.kind in _PLAIN or t.kind in STRINGS or t.kind is Kind.JSONB


def joined(documents: Tree) -> Tree:
    """An array of documents as one; NULL for a NULL array."""
    return call("concat", string("["), call("array_join", documents, string(", ")), string("]"))


_object = row_function(
    "jsonb_object",
    (_TEXTS, array(JSONB)),
    JSONB,
    lambda keys, documents: _made_object(keys, documents),
)


def _made_object(keys: Sequence[str | None], documents: Sequence[str]) -> str:
    if any(key is None for key in keys):
        raise values.refused("22023", "field name must not be null")
    return values.written(dict(zip(keys, map(values.parse, documents), strict=True)))


def object_of(keys: Tree, documents: Tree) -> Tree:
    """An object of an array of keys and one of documents; the last of equal keys counts."""
    return _object([keys, documents])


_built = row_function(
    "jsonb_build_object",
    (_TEXTS, array(JSONB)),
    JSONB,
    lambda keys, documents: _built_object(keys, documents),
)


def _built_object(keys: Sequence[str | None], documents: Sequence[str]) -> str:
    for i, key in enumerate(keys):
        if key is None:
            raise values.refused("22023", f"argument {2 * i + 1}: key must not be null")
    return _made_object(keys, documents)


def built_object(keys: Tree, documents: Tree) -> Tree:
    """`object_of` for jsonb_build_object, whose error has the position of a NULL key."""
    return _built([keys, documents])


# --- casts


def _number(name: str) -> Callable[[str], str | None]:
    def run(document_: str) -> str | None:
        value = values.parse(document_)
        if value is None:
            return None
        if isinstance(value, values.JsonNumber):
            return str(value)
        raise values.refused("22023", f"cannot cast jsonb {_kind(value)} to type {name}")

    return run


def _truth(document_: str) -> bool | None:
    value = values.parse(document_)
    if value is None or isinstance(value, bool):
        return value
    raise values.refused("22023", f"cannot cast jsonb {_kind(value)} to type boolean")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {dict: "object", list: "array", values.JsonNumber: "numeric"}.get(type(value), "string")


_DIGITS = {
    t.kind: row_function(f"jsonb_number_{t.kind.value}", (JSONB,), TEXT, _number(str(t)))
    for t in (INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC)
}
_BOOL = row_function("jsonb_bool", (JSONB,), BOOL, _truth)
_PARSE = row_function("jsonb_in", (TEXT,), JSONB, canonical_json)
_SORT_KEY = row_function("jsonb_key", (JSONB,), BYTEA, lambda d: values.sort_key(values.parse(d)))


def cast_tree(value: Tree, source: SqlType, target: SqlType) -> Tree | None:
    """The casts from and to jsonb; None if this module has no such cast."""
    if source.kind is Kind.JSONB:
        return _from_jsonb(value, target)
    return _PARSE([value]) if source.kind in STRINGS else None


def _from_jsonb(value: Tree, target: SqlType) -> Tree | None:
    """A scalar."""
    if target.kind is Kind.BOOL:
        return _BOOL([value])
    digits = _DIGITS.get(target.kind)
    if digits is None:
        return None
    from tidemill.sql.functions.casts import cast_tree as cast_values

    if target.kind in (Kind.FLOAT4, Kind.FLOAT8):
        return cast_values(digits([value]), TEXT, target, explicit=True)
    exact = cast_values(digits([value]), TEXT, NUMERIC, explicit=True)
    return cast_values(exact, NUMERIC, target, explicit=True)


def sort_key(value: Tree) -> Tree:
    """Bytes that compare as PostgreSQL compares jsonb."""
    return _SORT_KEY([value])


# --- taking apart and changing


def _path(run: Callable[[Any, list[str | None]], Any]) -> Callable[[str, Sequence[str | None]], Any]:
    return lambda document_, path: run(values.parse(document_), list(path))


def _written(value: Any) -> str | None:
    return None if value is values.MISSING else values.written(value)


def _each(document_: str, function_name: str, shown: Callable[[Any], str | None]) -> list[str | None]:
    """Keys and members alternate."""
    pairs = values.pairs(values.parse(document_), function_name)
    return [part for key, found in pairs.items() for part in (key, shown(found))]


ELEMENTS = row_function(
    "jsonb_array_elements",
    (JSONB,),
    array(JSONB),
    lambda d: [values.written(v) for v in values.elements(values.parse(d))],
)
ELEMENTS_TEXT = row_function(
    "jsonb_array_elements_text",
    (JSONB,),
    _TEXTS,
    lambda d: [values.as_text(v) for v in values.elements(values.parse(d))],
)
KEYS = row_function("jsonb_object_keys", (JSONB,), _TEXTS, lambda d: values.keys(values.parse(d)))
EACH = row_function("jsonb_each", (JSONB,), _TEXTS, lambda d: _each(d, "jsonb_each", values.written))
EACH_TEXT = row_function(
    "jsonb_each_text", (JSONB,), _TEXTS, lambda d: _each(d, "jsonb_each_text", values.as_text)
)

_GET_PATH = row_function("#>", (JSONB, _TEXTS), JSONB, _path(lambda v, p: _written(values.at_path(v, p))))
_GET_PATH_TEXT = row_function(
    "#>>", (JSONB, _TEXTS), TEXT, _path(lambda v, p: values.as_text(values.at_path(v, p)))
)


def at_path(value: Tree, steps: Sequence[Tree]) -> Tree:
    """value[step][step]..., steps as texts."""
    return _GET_PATH([value, call("array", *steps)])


def _pair(run: Callable[[Any, Any], Any]) -> Callable[[str, str], Any]:
    return lambda a, b: run(values.parse(a), values.parse(b))


def _keyed(run: Callable[[Any, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda document_, key: run(values.parse(document_), key)


def _any_key(value: Any, keys: Sequence[str | None]) -> bool:
    return any(values.has_key(value, k) for k in keys if k is not None)


def _all_keys(value: Any, keys: Sequence[str | None]) -> bool:
    return all(values.has_key(value, k) for k in keys if k is not None)


def _row_operator(name: str, args: tuple[SqlType, ...], result: SqlType, run: Callable[..., Any]) -> Builder:
    build = row_function(name, args, result, run)
    operator(name, args, result, build)
    return build


def _operators() -> None:
    for key in (TEXT, INT4):
        operator("->", (JSONB, key), JSONB, lambda a: call("tm_jsonb_get", *a))
        operator("->>", (JSONB, key), TEXT, lambda a: call("tm_jsonb_get_text", *a))
    operator("#>", (JSONB, _TEXTS), JSONB, _GET_PATH)
    operator("#>>", (JSONB, _TEXTS), TEXT, _GET_PATH_TEXT)
    contains = _row_operator("@>", (JSONB, JSONB), BOOL, _pair(values.contains))
    operator("<@", (JSONB, JSONB), BOOL, lambda a: contains([a[1], a[0]]))
    _row_operator("?", (JSONB, TEXT), BOOL, _keyed(values.has_key))
    _row_operator("?|", (JSONB, _TEXTS), BOOL, _keyed(_any_key))
    _row_operator("?&", (JSONB, _TEXTS), BOOL, _keyed(_all_keys))
    _row_operator("||", (JSONB, JSONB), JSONB, _pair(lambda a, b: values.written(values.concat(a, b))))
    _row_operator("-", (JSONB, TEXT), JSONB, _keyed(lambda v, k: values.written(values.delete_key(v, [k]))))
    _row_operator(
        "-", (JSONB, _TEXTS), JSONB, _keyed(lambda v, k: values.written(values.delete_key(v, list(k))))
    )
    _row_operator("-", (JSONB, INT4), JSONB, _keyed(lambda v, i: values.written(values.delete_index(v, i))))
    delete = _path(lambda v, p: values.written(values.delete_path(v, p)))
    function("jsonb_delete_path", (JSONB, _TEXTS), JSONB, _row_operator("#-", (JSONB, _TEXTS), JSONB, delete))


def _set(document_: str, path: Sequence[str | None], new: str, create: bool) -> str:
    found = values.set_path(values.parse(document_), list(path), values.parse(new), create=create)
    return values.written(found)


def _insert(document_: str, path: Sequence[str | None], new: str, after: bool) -> str:
    found = values.insert_path(values.parse(document_), list(path), values.parse(new), after=after)
    return values.written(found)


def _functions() -> None:
    function("jsonb_typeof", (JSONB,), TEXT, lambda a: _typeof(a[0]))
    by_row("jsonb_array_length", (JSONB,), INT4, lambda d: values.array_length(values.parse(d)))
    by_row("jsonb_pretty", (JSONB,), TEXT, lambda d: values.pretty(values.parse(d)))
    strip = row_function(
        "jsonb_strip_nulls",
        (JSONB, BOOL),
        JSONB,
        lambda d, arrays: values.written(values.strip_nulls(values.parse(d), in_arrays=arrays)),
    )
    function("jsonb_strip_nulls", (JSONB, BOOL), JSONB, strip)
    function("jsonb_strip_nulls", (JSONB,), JSONB, lambda a: strip([a[0], boolean(False)]))
    paths = (JSONB, _TEXTS, JSONB)
    for name, run, default in (("jsonb_set", _set, True), ("jsonb_insert", _insert, False)):
        build = row_function(name, (*paths, BOOL), JSONB, run)
        function(name, (*paths, BOOL), JSONB, build)
        function(name, paths, JSONB, _with_flag(build, default))
    for name, result, build in (
        ("jsonb_extract_path", JSONB, _GET_PATH),
        ("jsonb_extract_path_text", TEXT, _GET_PATH_TEXT),
    ):
        function(name, (JSONB, TEXT), result, _gathered(build), variadic=True)
    function(
        "jsonb_object", (_TEXTS, _TEXTS), JSONB, row_function("jsonb_pairs", (_TEXTS, _TEXTS), JSONB, _pairs)
    )
    function("jsonb_object", (_TEXTS,), JSONB, row_function("jsonb_flat", (_TEXTS,), JSONB, _flat))


def _with_flag(build: Builder, flag: bool) -> Builder:
    return lambda a: build([*a, boolean(flag)])


def _gathered(build: Builder) -> Builder:
    """The arguments after the first as one array; NULL if one of them is NULL."""

    def made(a: Sequence[Tree]) -> Tree:
        missing = a[1:]
        path = call("array", *missing)
        held = call("exists", path, lambda_("s", is_null(variable("s"))))
        return build([a[0], if_(held, cast(null(), "ARRAY<STRING>"), path.copy())])

    return made


def _pairs(keys: Sequence[str | None], texts: Sequence[str | None]) -> str:
    if len(keys) != len(texts):
        raise values.refused("2202E", "mismatched array dimensions")
    if any(k is None for k in keys):
        raise values.refused("22004", "null value not allowed for object key")
    return values.written(dict(zip(keys, texts, strict=True)))


def _flat(parts: Sequence[str | None]) -> str:
    if len(parts) % 2:
        raise values.refused("2202E", "array must have even number of elements")
    return _pairs(parts[::2], parts[1::2])


def _install() -> None:
    _operators()
    _functions()
    for name in (
        *("to_json", "row_to_json", "array_to_json", "json_typeof", "json_array_length"),
        *("json_extract_path", "json_extract_path_text", "json_strip_nulls"),
    ):
        refused_function(name, (Poly.ANY,), JSONB, _JSON_HINT, variadic=True)
    not_yet(
        """
        jsonb_path_query jsonb_path_query_array jsonb_path_query_first jsonb_path_exists jsonb_path_match
        jsonb_path_exists_tz jsonb_path_match_tz jsonb_path_query_tz jsonb_populate_record
        jsonb_populate_recordset jsonb_to_record jsonb_to_recordset jsonb_set_lax json_build_object
        json_build_array json_object json_array_elements json_array_elements_text json_each json_each_text
        json_object_keys json_to_record json_to_recordset json_populate_record json_populate_recordset
        json_value json_query json_exists json_scalar json_serialize json_array
        """
    )


_install()
