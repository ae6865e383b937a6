"""Functions that depend only on their arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.functions.signature import Poly
from tidemill.sql.local.functions import Declared, Function
from tidemill.sql.local.jsons import json_object, json_text
from tidemill.sql.local.model import LocalTooLarge
from tidemill.sql.names import quote_ident
from tidemill.sql.scalar import inputs, regexes, sizes, strings
from tidemill.types import model
from tidemill.types.model import BOOL, INT4, INT8, JSONB, NUMERIC, TEXT, Column

_A, _E, _ANY = Poly.ARRAY, Poly.ELEMENT, Poly.ANY
# The limit of values that generate_series and repeat produce: it bounds memory and has no other meaning.
MAX_VALUES = 100_000


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that depends only on its values."""
    return lambda rt, *args: fn(*args)


def _f(
    name: str, args: Sequence[Declared], result: Declared, fn: Callable[..., Any], **more: Any
) -> Function:
    return Function(name, tuple(args), result, _plain(fn), **more)


def _substring(text: str, start: int, length: int | None = None) -> str:
    if length is None:
        return text[max(start - 1, 0) :]
    if length < 0:
        raise InvalidValue("negative substring length not allowed", sqlstate="22011")
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


def _letters(text: str, change: Callable[[str], str]) -> str:
    """Changes case letter by letter. A letter that would become two stays, except the dotted I, which becomes
    a plain one.
    """
    plain = {"İ": "i"} if change is str.lower else {}
    return "".join(plain.get(c, c) if len(new := change(c)) != 1 else new for c in text)


def _array_cat(a: list[Any] | None, b: list[Any] | None) -> list[Any] | None:
    if a is None or b is None:
        return a if b is None else b
    return [*a, *b]


def _left(text: str, n: int) -> str:
    return text[:n]


def _right(text: str, n: int) -> str:
    return text[-n:] if n > 0 else text[-n:] if n < 0 else ""


def _array_to_string(
    items: Sequence[Any] | None, separator: str | None, null: str | None = None
) -> str | None:
    if items is None or separator is None:
        return None
    texts = [null if v is None else _shown(v) for v in items]
    return separator.join(t for t in texts if t is not None)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _concat(*items: Any) -> str:
    return "".join(_shown(v) for v in items if v is not None)


def _concat_ws(separator: str | None, *items: Any) -> str | None:
    return None if separator is None else separator.join(_shown(v) for v in items if v is not None)


def _length(items: Sequence[Any], dimension: int) -> int | None:
    return len(items) if dimension == 1 and items else None


def _lower_bound(items: Sequence[Any], dimension: int) -> int | None:
    return 1 if dimension == 1 and items else None


def _same(a: Any, b: Any) -> bool:
    """Not distinct: NULL equals NULL, NaN equals NaN."""
    return a == b or (a is not None and b is not None and a != a and b != b)


def _position(items: Sequence[Any] | None, value: Any) -> int | None:
    return next((n for n, v in enumerate(items or (), 1) if _same(v, value)), None)


def _without(items: Sequence[Any] | None, value: Any) -> list[Any] | None:
    return None if items is None else [v for v in items if not _same(v, value)]


def _series(start: int, stop: int, step: int | None = None) -> list[int]:
    step = 1 if step is None else step
    if step == 0:
        raise Unsupported("step size cannot equal zero", sqlstate="22023")
    found = range(start, stop + (1 if step > 0 else -1), step)
    if len(found) > MAX_VALUES:
        raise LocalTooLarge(f"generate_series() of more than {MAX_VALUES} values over system relations")
    return list(found)


def _subscripts(items: Sequence[Any], dimension: int, reverse: bool | None = None) -> list[int]:
    found = list(range(1, len(items) + 1)) if dimension == 1 else []
    return found[::-1] if reverse else found


def _expand(items: Sequence[Any]) -> list[tuple[Any, int]]:
    return [(v, n) for n, v in enumerate(items, 1)]


def _split_part(text: str, separator: str, at: int) -> str:
    if at == 0:
        raise InvalidValue("field position must not be zero", sqlstate="22023")
    parts = text.split(separator) if separator else [text]
    at = at - 1 if at > 0 else at
    return parts[at] if -len(parts) <= at < len(parts) else ""


def _string_to_array(text: str | None, separator: str | None) -> list[str] | None:
    if text is None:
        return None
    if separator is None:
        return list(text)
    if not text:
        return []
    return text.split(separator) if separator else [text]


def _format(template: str | None, *args: Any) -> str | None:
    if template is None:
        return None
    return strings.format_text(template, [None if v is None else _shown(v) for v in args])


_ENCODINGS = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}

_EXPANDED = model.record(Column("x", model.INT8), Column("n", INT4))

_FUNCTIONS: list[Function] = [
    *(
        _f(name, (TEXT,), TEXT, fn)
        for name, fn in {
            "lower": lambda s: _letters(s, str.lower),
            "upper": lambda s: _letters(s, str.upper),
            "quote_ident": quote_ident,
            "quote_literal": strings.quote_literal,
            "btrim": lambda s: s.strip(" "),
            "ltrim": lambda s: s.lstrip(" "),
            "rtrim": lambda s: s.rstrip(" "),
            "md5": lambda s: hashlib.md5(s.encode(), usedforsecurity=False).hexdigest(),
            "reverse": lambda s: s[::-1],
        }.items()
    ),
    *(_f(name, (TEXT,), INT4, len) for name in ("length", "char_length", "character_length")),
    _f("octet_length", (TEXT,), INT4, lambda s: len(s.encode())),
    _f("btrim", (TEXT, TEXT), TEXT, lambda s, c: s.strip(c)),
    _f("ltrim", (TEXT, TEXT), TEXT, lambda s, c: s.lstrip(c)),
    _f("rtrim", (TEXT, TEXT), TEXT, lambda s, c: s.rstrip(c)),
    # Before those with numbers: a literal is a pattern.
    _f("substring", (TEXT, TEXT), TEXT, regexes.extract),
    _f("substring", (TEXT, TEXT, TEXT), TEXT, regexes.similar_extract),
    *(_f(name, (TEXT, INT4, INT4), TEXT, _substring, optional=1) for name in ("substring", "substr")),
    _f("left", (TEXT, INT4), TEXT, _left),
    _f("right", (TEXT, INT4), TEXT, _right),
    _f("replace", (TEXT, TEXT, TEXT), TEXT, lambda s, a, b: s.replace(a, b) if a else s),
    _f("strpos", (TEXT, TEXT), INT4, lambda s, t: s.find(t) + 1),
    _f("position", (TEXT, TEXT), INT4, lambda s, t: s.find(t) + 1),
    _f("starts_with", (TEXT, TEXT), BOOL, str.startswith),
    _f("split_part", (TEXT, TEXT, INT4), TEXT, _split_part),
    _f("concat", (_ANY,), TEXT, _concat, variadic=True, lenient=True),
    _f("concat_ws", (TEXT, _ANY), TEXT, _concat_ws, variadic=True, lenient=True),
    _f("format", (TEXT, _ANY), TEXT, _format, variadic=True, lenient=True),
    _f("quote_nullable", (TEXT,), TEXT, strings.quote_nullable, lenient=True),
    _f("regexp_replace", (TEXT, TEXT, TEXT), TEXT, regexes.replace),
    _f("regexp_replace", (TEXT, TEXT, TEXT, TEXT), TEXT, regexes.replace),
    _f("regexp_match", (TEXT, TEXT), model.array(TEXT), regexes.match),
    _f("regexp_match", (TEXT, TEXT, TEXT), model.array(TEXT), regexes.match),
    *(_f("regexp_matches", (TEXT,) * n, model.array(TEXT), regexes.all_matches, rows=True) for n in (2, 3)),
    _f("regexp_like", (TEXT, TEXT), BOOL, regexes.like),
    _f("regexp_split_to_array", (TEXT, TEXT), model.array(TEXT), regexes.split),
    _f("initcap", (TEXT,), TEXT, strings.initcap),
    _f("string_to_array", (TEXT, TEXT), model.array(TEXT), _string_to_array, lenient=True),
    _f("parse_ident", (TEXT,), model.array(TEXT), strings.parse_ident),
    _f("parse_ident", (TEXT, BOOL), model.array(TEXT), strings.parse_ident),
    *(
        # Of booleans apart: they are written t and f, and true and false as texts.
        _f("array_to_string", (model.array(t), TEXT, TEXT), TEXT, _array_to_string, optional=1, lenient=True)
        for t in (TEXT, BOOL)
    ),
    _f("array_length", (_A, INT4), INT4, _length),
    _f("array_upper", (_A, INT4), INT4, _length),
    _f("array_lower", (_A, INT4), INT4, _lower_bound),
    _f("array_ndims", (_A,), INT4, lambda a: 1 if a else None),
    _f("cardinality", (_A,), INT4, len),
    _f("array_position", (_A, _E), INT4, _position, lenient=True),
    _f("array_append", (_A, _E), _A, lambda a, v: [*(a or []), v], lenient=True),
    _f("array_prepend", (_E, _A), _A, lambda v, a: [v, *(a or [])], lenient=True),
    _f("array_cat", (_A, _A), _A, _array_cat, lenient=True),
    _f("array_remove", (_A, _E), _A, _without, lenient=True),
    _f("unnest", (_A,), _E, list, rows=True),
    _f("generate_subscripts", (_A, INT4, BOOL), INT4, _subscripts, rows=True, optional=1),
    _f("generate_series", (INT4, INT4, INT4), INT4, _series, rows=True, optional=1, typed=True),
    _f("generate_series", (INT8, INT8, INT8), INT8, _series, rows=True, optional=1),
    _f("_pg_expandarray", (_A,), _EXPANDED, _expand, rows=True),
    *(_f("pg_size_pretty", (t,), TEXT, sizes.pretty, typed=True, exact=True) for t in (INT8, NUMERIC)),
    _f("pg_size_bytes", (TEXT,), INT8, sizes.in_bytes),
    _f("pg_input_is_valid", (TEXT, TEXT), BOOL, inputs.is_valid),
    _f("pg_encoding_to_char", (INT4,), model.NAME, lambda n: _ENCODINGS.get(n, "")),
    *(
        _f(name, (_ANY,), JSONB, json_object, variadic=True, lenient=True, json=True)
        for name in ("json_build_object", "jsonb_build_object")
    ),
    *(_f(name, (_ANY,), JSONB, json_text, typed=True, json=True) for name in ("to_json", "to_jsonb")),
]


def builtins() -> Mapping[str, Sequence[Function]]:
    found: dict[str, list[Function]] = {}
    for fn in _FUNCTIONS:
        found.setdefault(fn.name, []).append(fn)
    return found
