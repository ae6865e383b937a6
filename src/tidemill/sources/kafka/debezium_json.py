"""The changes that Debezium writes in JSON. There is no schema: a row is the whole of `after`, as one jsonb.

Messages come with or without Kafka Connect's schema around them (`{"schema": ..., "payload": ...}`), keys
too. The text of `after` is cut out of the message and only that is decoded, so numbers keep their digits.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.sources.kafka.debezium import TRUNCATE
from tidemill.sources.kafka.values import Values
from tidemill.types.kernels import pc

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
        for at, value in enumerate(values.to_pylist()):
            after: str | None = None
            if value is not None:
                try:
                    after, truncate[at] = _change(value.decode())
                except (ValueError, RecursionError) as error:
                    errors[at] = _complaint(error)
            afters.append(None if after is None else after.encode())
        decoded = self._decoder.decode(pa.array(afters, pa.binary()))
        wrong = decoded.errors
        if errors:
            own = pa.array([errors.get(at) for at in range(count)], pa.string())
            wrong = own if wrong is None else pc.coalesce(own, wrong)
        missing = np.fromiter((after is None for after in afters), np.bool_, count)
        missing[list(errors)] = False
        return Values(decoded.columns, missing, wrong, truncate)


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


# Numbers are not looked at: they may have more digits than Python converts.
_read = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
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
