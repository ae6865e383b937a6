"""PostgreSQL's jsonb functions on parsed documents.

Called by `json` inside Spark's Python tasks. A document is the result of `parse`: dicts, lists, strings,
booleans, None, and numbers as `JsonNumber`, which keeps the digits as written. Functions return a new value
and never change their arguments. They raise PostgreSQL's errors.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tidemill.errors import InvalidValue, LimitExceeded
from tidemill.types.json import canonical_json


class JsonNumber(str):
    """A number with its original digits, which json would convert to a float. It is canonical: equal numbers
    have equal texts."""

    __slots__ = ()


def refused(sqlstate: str, text: str) -> InvalidValue:
    return InvalidValue(text, sqlstate=sqlstate)


# The value of a missing member (None is JSON's null).
MISSING: Any = object()

_DECODER = json.JSONDecoder(parse_float=JsonNumber, parse_int=JsonNumber)


def parse(document: str) -> Any:
    try:
        return _DECODER.decode(document)
    except RecursionError:
        raise LimitExceeded("stack depth limit exceeded", sqlstate="54001") from None


def written(value: Any) -> str:
    """The canonical text; the keys of objects are put in order."""
    return canonical_json(_spelt(value))


def _spelt(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_spelt(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_spelt, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str | None:
    """A member as ->> returns it: a string without its quotes, null as NULL."""
    if value is MISSING or value is None:
        return None
    if isinstance(value, str) and not isinstance(value, JsonNumber):
        return value
    return written(value)


def is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def same(a: Any, b: Any) -> bool:
    """Equal as jsonb: by kind and value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


# --- reading


# As in C: leading blanks are allowed, and nothing after the number.
_INDEX = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]{1,20}", re.ASCII)


def _index(text: str) -> int | None:
    """A path's element as an index; None if it is not one."""
    return int(text) if _INDEX.fullmatch(text) and abs(int(text)) < 1 << 31 else None


def at_path(value: Any, path: list[str | None]) -> Any:
    for step in path:
        if step is None:
            return MISSING
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list):
            at = _index(step)
            value = value[at] if at is not None and -len(value) <= at < len(value) else MISSING
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def contains(a: Any, b: Any, *, top: bool = True) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(k in a and contains(a[k], v, top=False) for k, v in b.items())
    if isinstance(a, list) and isinstance(b, list):
        return all(_has(a, item) for item in b)
    if top and isinstance(a, list) and is_scalar(b):
        return _has(a, b)
    return is_scalar(a) and same(a, b)


def _has(items: list[Any], wanted: Any) -> bool:
    if is_scalar(wanted):
        return any(same(item, wanted) for item in items)
    return any(type(item) is type(wanted) and contains(item, wanted, top=False) for item in items)


def has_key(value: Any, key: str) -> bool:
    """A key of an object, a string of an array, or the string itself."""
    if isinstance(value, dict):
        return key in value
    items = value if isinstance(value, list) else [value]
    return any(type(item) is str and item == key for item in items)


def array_length(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    kind = "scalar" if is_scalar(value) else "non-array"
    raise refused("22023", f"cannot get array length of a {kind}")


def elements(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    kind = "a scalar" if is_scalar(value) else "an object"
    raise refused("22023", f"cannot extract elements from {kind}")


def pairs(value: Any, function: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise refused("22023", f"cannot call {function} on a non-object")


def keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return list(value)
    kind = "an array" if isinstance(value, list) else "a scalar"
    raise refused("22023", f"cannot call jsonb_object_keys on {kind}")


def pretty(value: Any, indent: int = 0) -> str:
    """One member per line, four blanks a level."""
    if is_scalar(value):
        return _spelt(value)
    inner, outer = " " * (indent + 4), " " * indent
    if isinstance(value, dict):
        lines = [
            f"{inner}{json.dumps(k, ensure_ascii=False)}: {pretty(v, indent + 4)}" for k, v in value.items()
        ]
        opened, closed = "{", "}"
    else:
        lines = [f"{inner}{pretty(v, indent + 4)}" for v in value]
        opened, closed = "[", "]"
    body = ",\n".join(lines)
    return f"{opened}\n{body}\n{outer}{closed}" if lines else f"{opened}\n{outer}{closed}"


# --- changing


def concat(a: Any, b: Any) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        return a | b
    left = a if isinstance(a, list) else [a]
    right = b if isinstance(b, list) else [b]
    return left + right


def delete_key(value: Any, names: list[str | None]) -> Any:
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if k not in names}
    if isinstance(value, list):
        return [v for v in value if not (type(v) is str and v in names)]
    raise refused("22023", "cannot delete from scalar")


def delete_index(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        raise refused("22023", "cannot delete from object using integer index")
    if not isinstance(value, list):
        raise refused("22023", "cannot delete from scalar")
    if not -len(value) <= index < len(value):
        return value
    at = index % len(value) if value else 0
    return value[:at] + value[at + 1 :]


def strip_nulls(value: Any, *, in_arrays: bool = False) -> Any:
    if isinstance(value, dict):
        return {k: strip_nulls(v, in_arrays=in_arrays) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        kept = [v for v in value if v is not None] if in_arrays else value
        return [strip_nulls(v, in_arrays=in_arrays) for v in kept]
    return value


def delete_path(value: Any, path: list[str | None]) -> Any:
    if is_scalar(value):
        raise refused("22023", "cannot delete path in scalar")
    return _changed(value, path, 0, MISSING, "delete") if value and path else value


def set_path(value: Any, path: list[str | None], new: Any, *, create: bool) -> Any:
    if is_scalar(value):
        raise refused("22023", "cannot set path in scalar")
    if not path or (not value and not create):
        return value
    return _changed(value, path, 0, new, "create" if create else "replace")


def insert_path(value: Any, path: list[str | None], new: Any, *, after: bool) -> Any:
    if is_scalar(value):
        raise refused("22023", "cannot set path in scalar")
    return _changed(value, path, 0, new, "after" if after else "before") if path else value


# Operations that insert a value where none exists.
_CREATES = frozenset({"create", "before", "after"})


def _changed(value: Any, path: list[str | None], level: int, new: Any, how: str) -> Any:
    step = path[level]
    if step is None:
        raise refused("22004", f"path element at position {level + 1} is null")
    last = level == len(path) - 1
    if isinstance(value, dict):
        return _changed_object(value, path, level, new, how, step, last)
    if isinstance(value, list):
        return _changed_array(value, path, level, new, how, step, last)
    return value


def _changed_object(
    value: dict[str, Any], path: list[str | None], level: int, new: Any, how: str, step: str, last: bool
) -> Any:
    if step not in value:
        return {**value, step: new} if last and how in _CREATES else value
    if not last:
        return {**value, step: _changed(value[step], path, level + 1, new, how)}
    if how in ("before", "after"):
        raise refused("22023", "cannot replace existing key")
    if how == "delete":
        return {k: v for k, v in value.items() if k != step}
    return {**value, step: new}


def _changed_array(
    value: list[Any], path: list[str | None], level: int, new: Any, how: str, step: str, last: bool
) -> Any:
    at = _index(step)
    if at is None:
        raise refused("22P02", f'path element at position {level + 1} is not an integer: "{step}"')
    count = len(value)
    before_all = at < -count
    at = min(at if at >= 0 else count + at, count)
    if last and how in _CREATES and (before_all or not value):
        return [new, *value]
    if before_all or at == count:
        return [*value, new] if last and how in _CREATES and not before_all else value
    if not last:
        return [*value[:at], _changed(value[at], path, level + 1, new, how), *value[at + 1 :]]
    put = {
        "create": [new],
        "replace": [new],
        "before": [new, value[at]],
        "after": [value[at], new],
        "delete": [],
    }[how]
    return [*value[:at], *put, *value[at + 1 :]]


# --- order


def sort_key(value: Any) -> bytes:
    """Bytes that compare as PostgreSQL compares jsonb: null, strings, numbers, booleans, arrays, objects; a
    longer array or object after a shorter one. An empty top-level array comes before all others (a historical
    exception in PostgreSQL)."""
    if isinstance(value, list) and not value:
        return b"\x00"
    return _key(value)


def _key(value: Any) -> bytes:
    if value is None:
        return b"\x01"
    if isinstance(value, JsonNumber):
        return b"\x03" + _number_key(value)
    if isinstance(value, str):
        return b"\x02" + value.encode() + b"\x00"
    if isinstance(value, bool):
        return b"\x04" + bytes([value])
    head = len(value).to_bytes(4, "big")
    if isinstance(value, list):
        return b"\x05" + head + b"".join(map(_key, value))
    return b"\x06" + head + b"".join(_key(k) + _key(v) for k, v in value.items())


def _number_key(number: str) -> bytes:
    """Sign, then the power of ten, then the digits; the complement for negative numbers."""
    from decimal import Decimal

    sign, digits, exponent = Decimal(str(number)).as_tuple()
    if not any(digits):
        return b"\x01"
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    power = len(text) + exponent + (1 << 31)
    # Digits as 1..10, the end as 0.
    body = power.to_bytes(4, "big") + bytes(int(d) + 1 for d in text.rstrip("0")) + b"\x00"
    return b"\x00" + bytes(255 - b for b in body) if sign else b"\x02" + body
