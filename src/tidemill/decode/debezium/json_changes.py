"""Debezium changes in JSON. Without a schema, a row is the whole of `after`, as one jsonb.

Messages and keys may have the schema of Kafka Connect around them (`{"schema": ..., "payload": ...}`). The
text of `after` is cut out of the message and decoded alone, so numbers keep their digits.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.avro_changes import MISSING_AFTER, TRUNCATE
from tidemill.decode.debezium.placeholders import TRACES, lacks
from tidemill.decode.record_values import RecordValues
from tidemill.types.columns import spans
from tidemill.types.kernels import pc

# Numbers keep their text: they are compared, and may have more digits than Python converts.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_NAMES = {name: re.compile(rf'"{name}"\s*:\s*') for name in ("before", "after", "payload")}


class JsonChanges:
    """Values as JSON; the row is `after`, in the decoder's one column."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def read(self, values: pa.Array) -> RecordValues:
        count = len(values)
        afters: list[bytes | None] = []
        errors: dict[int, str] = {}
        truncate = np.zeros(count, np.bool_)
        partial = np.zeros(count, np.bool_)
        likely = suspects(values)
        for at, value in enumerate(values.to_pylist()):
            after: str | None = None
            if value is not None:
                try:
                    after, truncate[at] = _change(value.decode())
                except (ValueError, RecursionError) as error:
                    errors[at] = complaint(self._decoder, value, error)
            if after is not None and likely[at]:
                partial[at] = lacks(after)
            afters.append(None if after is None else after.encode())
        decoded = self._decoder.decode(pa.array(afters, pa.binary()))
        wrong = decoded.errors
        if errors:
            own = pa.array([errors.get(at) for at in range(count)], pa.string())
            wrong = own if wrong is None else pc.coalesce(own, wrong)
        missing = np.fromiter((after is None for after in afters), np.bool_, count)
        missing[list(errors)] = False
        return RecordValues(
            decoded.columns, missing, wrong, truncate, partial=partial if partial.any() else None
        )


class NotAChange(ValueError):
    """JSON that Debezium does not write; the text is what clients see."""


def complaint(decoder: Decoder, value: bytes, error: ValueError | RecursionError) -> str:
    """The reason why a message is not a change. The decoder reports invalid JSON, as in any other source."""
    if isinstance(error, NotAChange):
        return str(error)
    said = decoder.decode(pa.array([value], pa.binary())).errors
    return f"json deserialization error: {error}" if said is None else said[0].as_py()


def suspects(values: pa.Array) -> np.ndarray:
    """The messages that may contain a placeholder. Most do not, and are not examined further."""
    found = np.zeros(len(values), np.bool_)
    offsets, data = spans(values)
    # All at once: nearly always there is none in the whole batch.
    whole = data[offsets[0] : offsets[-1]].tobytes()
    for trace in TRACES:
        if trace.encode() in whole:
            hits = pc.match_substring(values, trace)
            found |= pc.fill_null(hits, False).to_numpy(zero_copy_only=False)
    return found


def _change(text: str) -> tuple[str | None, bool]:
    """The text of `after`, None if it is null; and whether the change is a truncate."""
    change = _DECODER.decode(text)
    if is_wrapped(change):
        change = change["payload"]
        if change is None:
            return None, False
    if not isinstance(change, dict) or "after" not in change:
        raise NotAChange(MISSING_AFTER)
    members = cast("dict[str, Any]", change)
    after = members["after"]
    return None if after is None else text_of(text, "after", after), members.get("op") == TRUNCATE


def is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and cast("dict[str, Any]", value).keys() == {"schema", "payload"}


def text_of(text: str, name: str, value: Any) -> str:
    """The text of a member's value. Nested members of the same name are skipped, unless their value is
    equal."""
    for found in _NAMES[name].finditer(text):
        try:
            same, end = _DECODER.raw_decode(text, found.end())
        except ValueError:
            continue  # it is inside a text
        if same == value:
            return text[found.end() : end]
    raise ValueError("a member's name is written with escapes")


def bare_keys(keys: pa.Array) -> pa.Array:
    """Keys without the envelope of Kafka Connect's schema. Returns the same array if no key has one."""
    wrapped = pc.fill_null(pc.starts_with(keys, '{"schema":'), False)
    if not wrapped.true_count:
        return keys
    return pa.array([_bare(key) if key is not None else None for key in keys.to_pylist()], pa.binary())


def _bare(key: bytes) -> bytes:
    try:
        text = key.decode()
        value = _DECODER.decode(text)
        return text_of(text, "payload", value["payload"]).encode() if is_wrapped(value) else key
    except (ValueError, RecursionError):
        return key  # the decoder reports the error
