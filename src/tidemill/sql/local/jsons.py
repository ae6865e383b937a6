"""JSON functions for local queries: to_jsonb, jsonb_build_object and jsonb_agg.

Called by `builtins`, `functions` and `grouping`. JSON is its canonical text. `LocalJsonText` distinguishes it
from a text that becomes a JSON string.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.local.kinds import INTEGERS, STRINGS, Reg
from tidemill.sql.local.model import NotLocal, Typed
from tidemill.types.json import canonical_json
from tidemill.types.model import Kind

# Types that JSON and Python show alike.
_PLAIN = (STRINGS | INTEGERS | {Kind.BOOL, Kind.JSONB, Kind.UNKNOWN}) - {Kind.OID}


class LocalJsonText(str):
    """The text of a JSON value, as distinct from a text that becomes a JSON string."""


def json_text(value: Any) -> LocalJsonText:
    return LocalJsonText(canonical_json(_spelt(value)))


def _spelt(value: Any) -> str:
    """Numbers within JSON stay as written: Python would make floats of them."""
    if isinstance(value, LocalJsonText):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_spelt(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spelt, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def json_operand(arg: Typed) -> Typed:
    """A value of a type that JSON and Python show alike; an OID is a string there, and needs the binder."""
    t = arg.type
    if isinstance(t, Reg) or t.kind not in _PLAIN:
        raise NotLocal(f"JSON of {t}")
    if t.kind is not Kind.JSONB:
        return arg
    run = arg.run
    return replace(arg, run=lambda e, rt: None if (v := run(e, rt)) is None else LocalJsonText(v))


def json_object(*pairs: Any) -> str:
    if len(pairs) % 2:
        raise Unsupported("argument list must have even number of elements", sqlstate="22023")
    names = [_json_key(n, v) for n, v in enumerate(pairs[::2])]
    return json_text(dict(zip(names, pairs[1::2], strict=True)))


def _json_key(n: int, value: Any) -> str:
    if value is None:
        raise InvalidValue(f"argument {2 * n + 1}: key must not be null", sqlstate="22023")
    if isinstance(value, LocalJsonText):
        raise InvalidValue("key value must be scalar, not array, composite, or json", sqlstate="22023")
    return str(value).lower() if isinstance(value, bool) else str(value)
