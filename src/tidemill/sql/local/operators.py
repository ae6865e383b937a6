"""Operators on numbers, text and arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from tidemill.caches import cached
from tidemill.errors import InvalidValue, TidemillError
from tidemill.sql.bind.operators import BINARY
from tidemill.sql.local.cast import beside, common, comparable, explicit, hashable, to_type
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.kinds import Category, Type, category
from tidemill.sql.local.model import Env, NotLocal, Runtime, Typed
from tidemill.sql.scalar import regexes
from tidemill.types import model
from tidemill.types.arrow import element_type
from tidemill.types.model import BOOL, TEXT, Kind, SqlType

__all__ = ["BINARY", "binary", "like", "like_regex"]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def binary(ctx: LocalContext, name: str, a: Typed, b: Typed) -> Typed:
    if name in _COMPARE:
        return _comparison(ctx, name, a, b)
    if name in ("~", "~*"):
        return _regex(ctx, a, b, insensitive=name == "~*")
    if name == "||":
        return _joined(ctx, a, b)
    if name in _INTEGER:
        return _arithmetic(ctx, name, a, b)
    if name in ("@>", "<@", "&&"):
        return _sets(ctx, name, a, b)
    raise NotLocal(f"operator {name}")


def strict(t: Type, fn: Callable[[Any, Any], Any], a: Typed, b: Typed) -> Typed:
    """NULL where one operand is."""
    left, right = a.run, b.run

    def run(e: Env, rt: Runtime) -> Any:
        x = left(e, rt)
        if x is None:
            return None
        y = right(e, rt)
        return None if y is None else fn(x, y)

    return Typed(t, run, a.refs | b.refs)


def _comparison(ctx: LocalContext, name: str, a: Typed, b: Typed) -> Typed:
    a, b = comparable(ctx, a, b)
    if name not in ("=", "<>") and Category.ARRAY in (category(a.type), category(b.type)):
        raise NotLocal("the order of arrays")
    found = strict(BOOL, _COMPARE[name], a, b)
    if name == "=" and hashable(a.type) and hashable(b.type):
        found.sides = (a, b)
    return found


def _joined(ctx: LocalContext, a: Typed, b: Typed) -> Typed:
    kinds = {category(a.type), category(b.type)}
    if Category.ARRAY in kinds:
        return _appended(ctx, a, b)
    if not kinds & {Category.STRING, Category.UNKNOWN}:
        raise NotLocal("|| of these")
    texts = [to_type(ctx, v, TEXT) if v.untyped or _open(v) else explicit(ctx, v, TEXT) for v in (a, b)]
    return strict(TEXT, operator.add, texts[0], texts[1])


def _open(value: Typed) -> bool:
    return value.param is not None and value.type == model.UNKNOWN


def _appended(ctx: LocalContext, a: Typed, b: Typed) -> Typed:
    """Arrays put together; one that is NULL counts as none, and both give NULL."""
    whole = a.type if category(a.type) is Category.ARRAY else b.type
    assert isinstance(whole, SqlType)
    element = element_type(whole)
    for v in (a, b):
        if not v.untyped:
            one = (
                element_type(v.type) if isinstance(v.type, SqlType) and v.type.kind is Kind.ARRAY else v.type
            )
            if common(element, one) != element:
                raise NotLocal(f"|| of {a.type} and {b.type}")
    parts: list[Callable[[Env, Runtime], Any]] = []
    for v in (a, b):
        if category(v.type) is Category.ARRAY or v.untyped:
            parts.append(to_type(ctx, v, whole).run)
        else:
            one = to_type(ctx, v, element).run
            parts.append(lambda e, rt, one=one: [one(e, rt)])
    left, right = parts

    def run(e: Env, rt: Runtime) -> Any:
        x, y = left(e, rt), right(e, rt)
        if x is None or y is None:
            return x if y is None else y
        return [*x, *y]

    return Typed(whole, run, a.refs | b.refs)


def _arithmetic(ctx: LocalContext, name: str, a: Typed, b: Typed) -> Typed:
    if Category.NUMBER not in (category(a.type), category(b.type)):
        raise NotLocal(f"{name} of {a.type} and {b.type}")
    if a.untyped or _open(a):
        a = to_type(ctx, a, beside(b.type))
    if b.untyped or _open(b):
        b = to_type(ctx, b, beside(a.type))
    if category(a.type) is not Category.NUMBER or category(b.type) is not Category.NUMBER:
        raise NotLocal(f"{name} of {a.type} and {b.type}")
    t = common(a.type, b.type)
    if not isinstance(t, SqlType) or t.kind not in (Kind.INT2, Kind.INT4, Kind.INT8):
        raise NotLocal(f"{name} of {a.type} and {b.type}")
    return strict(t, _INTEGER[name](t), a, b)


_LIMITS = {Kind.INT2: (15, "smallint"), Kind.INT4: (31, "integer"), Kind.INT8: (63, "bigint")}


def _checked(fn: Callable[[int, int], int]) -> Callable[[SqlType], Callable[[int, int], int]]:
    def typed(t: SqlType) -> Callable[[int, int], int]:
        bits, name = _LIMITS[t.kind]
        low, high = -(1 << bits), (1 << bits) - 1

        def run(x: int, y: int) -> int:
            found = fn(x, y)
            if not low <= found <= high:
                raise InvalidValue(f"{name} out of range", sqlstate="22003")
            return found

        return run

    return typed


# Without division: if its operands are constants, PostgreSQL divides before it reads any row.
_INTEGER: dict[str, Callable[[SqlType], Callable[[int, int], int]]] = {
    "+": _checked(operator.add),
    "-": _checked(operator.sub),
    "*": _checked(operator.mul),
    "&": _checked(operator.and_),
    "|": _checked(operator.or_),
}


def _sets(ctx: LocalContext, name: str, a: Typed, b: Typed) -> Typed:
    if a.untyped:
        a = to_type(ctx, a, b.type)
    elif b.untyped:
        b = to_type(ctx, b, a.type)
    if {category(a.type), category(b.type)} != {Category.ARRAY}:
        raise NotLocal(f"{name} of {a.type} and {b.type}")
    a, b = comparable(ctx, a, b)
    if name == "<@":
        a, b = b, a

    def contains(x: list[Any], y: list[Any]) -> bool:
        return all(v is not None and v in x for v in y)

    def overlaps(x: list[Any], y: list[Any]) -> bool:
        return any(v is not None and v in x for v in y)

    return strict(BOOL, overlaps if name == "&&" else contains, a, b)


# --- patterns


def _texts(ctx: LocalContext, a: Typed, b: Typed) -> tuple[Typed, Typed]:
    for v in (a, b):
        if category(v.type) not in (Category.STRING, Category.UNKNOWN):
            raise NotLocal(f"a pattern over {v.type}")
    return to_type(ctx, a, TEXT), to_type(ctx, b, TEXT)


def _regex(ctx: LocalContext, a: Typed, b: Typed, *, insensitive: bool) -> Typed:
    a, b = _texts(ctx, a, b)
    return strict(BOOL, regexes.matches_any_case if insensitive else regexes.matches, a, b)


def like(ctx: LocalContext, a: Typed, b: Typed, insensitive: bool, escape: str) -> Typed:
    a, b = _texts(ctx, a, b)
    return strict(BOOL, lambda v, p: like_regex(p, insensitive, escape).fullmatch(v) is not None, a, b)


@cached(512)
def like_regex(pattern: str, insensitive: bool = False, escape: str = "\\") -> re.Pattern[str]:
    """A LIKE pattern: % any text, _ one character."""
    out: list[str] = []
    chars = iter(pattern)
    for c in chars:
        if c == escape:
            following = next(chars, None)
            if following is None:
                raise TidemillError("LIKE pattern must not end with escape character", sqlstate="22025")
            out.append(re.escape(following))
        else:
            out.append({"%": ".*", "_": "."}.get(c) or re.escape(c))
    return re.compile("".join(out), re.DOTALL | (re.IGNORECASE if insensitive else 0))
