"""The changes that Debezium writes in JSON. There is no schema: a row is the whole of `after`, as one jsonb.

Messages come with or without Kafka Connect's schema around them (`{"schema": ..., "payload": ...}`), keys
too. The text of `after` is cut out of the message and only that is decoded, so numbers keep their digits.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder, with_original
from tidemill.sources.kafka.debezium import PLACEHOLDER, TRUNCATE
from tidemill.sources.kafka.values import Values
from tidemill.types.json import canonical_json
from tidemill.types.kernels import pc

# In JSON, bytes are written in base64.
_PLACEHOLDERS = (PLACEHOLDER, base64.b64encode(PLACEHOLDER.encode()).decode())

MISSING_AFTER = "'after' column missing from debezium input"

# Where a value stands in a text: from, to.
_Span = tuple[int, int]


class JsonChanges:
    """Values as JSON; the row is `after`, in the decoder's one column."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def read(self, values: pa.Array) -> Values:
        count = len(values)
        afters: list[bytes | None] = []
        errors: dict[int, str] = {}
        truncate = np.zeros(count, np.bool_)
        unavailable = np.zeros(count, np.bool_)
        suspects = self._suspects(values)
        for at, value in enumerate(values.to_pylist()):
            after: str | None = None
            if value is not None:
                try:
                    after, truncate[at] = _change(value.decode())
                except (ValueError, RecursionError) as error:
                    errors[at] = with_original(_complaint(error), value)
            if after is not None and suspects[at]:
                unavailable[at] = _has_placeholder(after)
            afters.append(None if after is None else after.encode())
        decoded = self._decoder.decode(pa.array(afters, pa.binary()))
        wrong = decoded.errors
        if errors:
            own = pa.array([errors.get(at) for at in range(count)], pa.string())
            wrong = own if wrong is None else pc.coalesce(own, wrong)
        missing = np.fromiter((after is None for after in afters), np.bool_, count)
        missing[list(errors)] = False
        marks = {0: unavailable} if unavailable.any() else None
        return Values(decoded.columns, missing, wrong, truncate, marks)

    def _suspects(self, values: pa.Array) -> np.ndarray:
        """Which messages may hold a placeholder: most have none, and are not looked into."""
        found = np.zeros(len(values), np.bool_)
        for placeholder in _PLACEHOLDERS:
            hits = pc.match_substring(values, placeholder)
            found |= pc.fill_null(hits, False).to_numpy(zero_copy_only=False)
        return found


class _NoAfter(ValueError):
    pass


def _complaint(error: ValueError | RecursionError) -> str:
    if isinstance(error, _NoAfter):
        return MISSING_AFTER
    if isinstance(error, RecursionError):
        return "json deserialization error: it is nested too deeply"
    return f"json deserialization error: {error}"


def _change(text: str) -> tuple[str | None, bool]:
    """The text of `after`, None where that is null; and whether the change is a truncate."""
    members = _members(text)
    if _wrapped(members):
        begin, _ = members["payload"]
        if text.startswith("null", begin):
            return None, False
        members = _members(text, begin)
    if "after" not in members:
        raise _NoAfter
    start, end = members["after"]
    op = members.get("op")
    truncated = op is not None and json.loads(text[slice(*op)]) == TRUNCATE
    after = text[start:end]
    return (None if after == "null" else after), truncated


def _wrapped(members: dict[str, _Span]) -> bool:
    return members.keys() == {"schema", "payload"}


_read = json.JSONDecoder().raw_decode
_SPACE = " \t\n\r"


def _members(text: str, at: int = 0) -> dict[str, _Span]:
    """The members of the object that begins at `at`, and where their values stand. Values are read in C and
    let go: only where they end is of interest. Behind the outermost object nothing may follow."""
    members: dict[str, _Span] = {}
    outermost = at == 0
    at = _skip(text, at)
    if not text.startswith("{", at):
        raise ValueError("an object was expected")
    at = _skip(text, at + 1)
    while not text.startswith("}", at):
        if members:
            at = _skip(text, _expect(text, ",", at))
        if not text.startswith('"', at):
            raise ValueError(f"a name was expected at character {at}")
        name, at = _read(text, at)
        start = _skip(text, _expect(text, ":", _skip(text, at)))
        _, end = _read(text, start)
        members[name] = (start, end)
        at = _skip(text, end)
    if outermost and _skip(text, at + 1) != len(text):
        raise ValueError(f"nothing was expected at character {at + 1}")
    return members


def _expect(text: str, sign: str, at: int) -> int:
    if not text.startswith(sign, at):
        raise ValueError(f"'{sign}' was expected at character {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _has_placeholder(text: str) -> bool:
    value = json.loads(text)
    return isinstance(value, dict) and any(map(_is_placeholder, cast("dict[str, Any]", value).values()))


def _is_placeholder(value: Any) -> bool:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    return isinstance(value, str) and value in _PLACEHOLDERS


def filled(new: str, old: str | None) -> str:
    """A row as jsonb, with its placeholders replaced by what `old`, the row before it, had there. A member
    that is not known from there is left as Debezium sent it: only the upstream knows its value."""
    if old is None:
        return new
    before = _members(old)
    parts: list[str] = []
    last = 0
    for name, (start, end) in _members(new).items():
        if name in before and _is_placeholder(json.loads(new[start:end])):
            parts += [new[last:start], old[slice(*before[name])]]
            last = end
    return canonical_json("".join([*parts, new[last:]]))


def bare_keys(keys: pa.Array) -> pa.Array:
    """Keys without Kafka Connect's schema around them; the same array where none has it."""
    wrapped = pc.fill_null(pc.starts_with(keys, '{"schema":'), False)
    if not wrapped.true_count:
        return keys
    return pa.array([_bare(key) if key is not None else None for key in keys.to_pylist()], pa.binary())


def _bare(key: bytes) -> bytes:
    try:
        text = key.decode()
        members = _members(text)
    except (ValueError, RecursionError):
        return key  # the decoder says what is wrong with it
    if not _wrapped(members):
        return key
    return text[slice(*members["payload"])].encode()
