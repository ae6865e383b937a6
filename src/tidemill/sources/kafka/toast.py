"""Large values that PostgreSQL did not send because an update left them unchanged (TOAST).

Debezium writes a placeholder in their place. In Avro it is a column's value (`debezium`); in JSON it is a
member of the row, which is one jsonb: `filled` puts the members of the key's row before in their place.
Called by the envelope, which knows that row.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from tidemill.types.json import canonical_json

# Debezium's default for unavailable.value.placeholder; of bytes it is the same letters, in JSON in base64.
PLACEHOLDER = "__debezium_unavailable_value"
JSON_PLACEHOLDERS = (PLACEHOLDER, base64.b64encode(PLACEHOLDER.encode()).decode())

# Numbers are not looked at: they may have more digits than Python converts.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


def lacks(row: str) -> bool:
    """Whether a row as JSON has a member that holds a placeholder."""
    value = _DECODER.decode(row)
    return isinstance(value, dict) and any(map(_is_placeholder, cast("dict[str, Any]", value).values()))


def filled(new: str, old: str) -> str:
    """A row as jsonb, its placeholders replaced by what `old`, the row before it, had there. What is not
    known from there is left as Debezium sent it: only the upstream knows it."""
    before = _members(old)
    parts: list[str] = []
    last = 0
    for name, (start, end, value) in _members(new).items():
        if name in before and _is_placeholder(value):
            then = before[name]
            parts += [new[last:start], old[then[0] : then[1]]]
            last = end
    return canonical_json("".join([*parts, new[last:]]))


def _is_placeholder(value: Any) -> bool:
    # That of an array is an array of it.
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    return isinstance(value, str) and value in JSON_PLACEHOLDERS


def _members(row: str) -> dict[str, tuple[int, int, Any]]:
    """The members of a row in canonical form (`types.json`): where each value stands, and what it is. None
    for what is no object."""
    members: dict[str, tuple[int, int, Any]] = {}
    at = 1
    while row[0] == "{" and row[at] != "}":
        name, end = _DECODER.raw_decode(row, at)
        start = end + len(": ")
        value, end = _DECODER.raw_decode(row, start)
        members[name] = (start, end, value)
        at = end + len(", ") if row[end] == "," else end
    return members
