"""Placeholders of large values that PostgreSQL did not send because an update left them unchanged (TOAST).

Called by the envelope, which knows the previous row of the key. In Avro the placeholder is a column value
(`avro_changes`). In JSON it is a member of the row, which is one jsonb: `filled` replaces it by the member of
the previous row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from typing import Any, cast

from tidemill.types.json import canonical_json

# Debezium's default for unavailable.value.placeholder. For bytes it is the same letters, in JSON in base64.
# An array has it as its only element, except arrays of numbers and dates, whose elements are its letters. A
# map (hstore, which is JSON or a map) has it as its only key. Debezium 3.6 writes these forms. For other
# types it writes null, which cannot be distinguished from a real null.
PLACEHOLDER = "__debezium_unavailable_value"
NUMBERS = tuple(PLACEHOLDER.encode())
UUID = uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3)
MAP_TEXT = canonical_json(json.dumps({PLACEHOLDER: PLACEHOLDER}))
JSON_PLACEHOLDERS = (PLACEHOLDER, base64.b64encode(PLACEHOLDER.encode()).decode())

_SPELT = tuple(map(str, NUMBERS))
# The parts of a message with a placeholder, with or without blanks between numbers.
TRACES = (*JSON_PLACEHOLDERS, str(UUID), ",".join(_SPELT), ", ".join(_SPELT))

# Numbers are not converted: they may have more digits than Python converts.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


def lacks(row: str) -> bool:
    """Whether a row as JSON has a member that contains a placeholder."""
    value = _DECODER.decode(row)
    return isinstance(value, dict) and any(map(_is_placeholder, cast("dict[str, Any]", value).values()))


def filled(new: str, old: str) -> str:
    """A row as jsonb whose placeholders are replaced by the values of `old`, the previous row. Values that
    `old` does not have stay as Debezium sent them: only the upstream knows them."""
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
    if isinstance(value, list):
        elements = cast("list[Any]", value)
        if len(elements) != 1:
            return len(elements) == len(_SPELT) and tuple(elements) == _SPELT
        return elements[0] == str(UUID) or _is_letters(elements[0])
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).keys() == {PLACEHOLDER}
    return _is_letters(value)


def _is_letters(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return value in JSON_PLACEHOLDERS or value.replace(" ", "") == MAP_TEXT.replace(" ", "")


def _members(row: str) -> dict[str, tuple[int, int, Any]]:
    """The members of a row in canonical form (`types.json`): the position of each value, and the value. None
    if the text is not an object."""
    members: dict[str, tuple[int, int, Any]] = {}
    at = 1
    while row[0] == "{" and row[at] != "}":
        name, end = _DECODER.raw_decode(row, at)
        start = end + len(": ")
        value, end = _DECODER.raw_decode(row, start)
        members[name] = (start, end, value)
        at = end + len(", ") if row[end] == "," else end
    return members
