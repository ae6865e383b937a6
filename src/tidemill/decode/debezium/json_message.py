"""One change of Debezium in JSON: the texts of its rows, and its source.

Called by `json_images`. Debezium always writes the members in one order; such a message is parsed once,
member by member, so that it is known where each stands. Any other order is read as `json_changes` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.scanner import make_scanner
from typing import Any, cast

from tidemill.decode.debezium.avro_changes import MISSING_AFTER
from tidemill.decode.debezium.json_changes import NotAChange, is_wrapped, text_of

# Numbers stay as they are spelt.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
scan = make_scanner(cast(Any, _DECODER))

_BEFORE, _AFTER, _SOURCE, _PAYLOAD = '{"before":', ',"after":', ',"source":', '"payload":'
_NOTHING: Mapping[str, Any] = {}


class Change:
    """One message: the texts of its rows, and their members."""

    __slots__ = ("after", "before", "new", "old", "op", "source")

    def __init__(
        self, before: str | None, old: Any, after: str | None, new: Any, source: Any, op: Any
    ) -> None:
        self.before, self.old, self.after, self.new = before, old, after, new
        self.source = source
        self.op: str | None = op if isinstance(op, str) and op.isascii() else None


class ChangeParser:
    def __init__(self) -> None:
        # What stands before the payload: the schema, which is the same in most messages.
        self._head = ""

    def parse(self, text: str) -> Change | None:
        """None for what is no change of a row. Raises ValueError."""
        head = self._head
        found = _parts(text, len(head), "}") if head and text.startswith(head) else _parts(text, 0, "")
        if found is not None:
            return found
        value = _DECODER.decode(text)
        if is_wrapped(value):
            value = value["payload"]
            if value is None:
                return None
            end = text.find(_PAYLOAD + _BEFORE) + len(_PAYLOAD)
            # Only what was before a payload that ended the message: text of the schema may look like it.
            if (
                text.startswith('{"schema":')
                and _parts(text, end, "}") is not None
                and _ends_schema(text[:end])
            ):
                self._head = text[:end]
        return _slowly(text, value)


def _parts(text: str, at: int, closing: str) -> Change | None:
    """A change that begins there, if its members stand as Debezium writes them and `closing` ends the text.
    Raises ValueError."""
    if not text.startswith(_BEFORE, at):
        return None
    try:
        start = at + len(_BEFORE)
        old, end = scan(text, start)
        before = None if old is None else text[start:end]
        if not text.startswith(_AFTER, end):
            return None
        start = end + len(_AFTER)
        new, end = scan(text, start)
        after = None if new is None else text[start:end]
        if not text.startswith(_SOURCE, end):
            return None
        source, end = scan(text, end + len(_SOURCE))
        if text[end : end + 1] != ",":
            return None
        tail = "{" + text[end + 1 :]
        rest, end = scan(tail, 0)
    except StopIteration:
        return None  # the decoder says what is wrong
    if tail[end:] != closing or not rest.keys().isdisjoint(("before", "after", "source")) or "op" not in rest:
        return None
    for row in (old, new, source):
        if row is not None and not isinstance(row, dict):
            return None
    return Change(before, old, after, new, source or _NOTHING, rest["op"])


def _ends_schema(head: str) -> bool:
    """Whether it is an object's schema, and then the name of the payload."""
    try:
        _, end = scan(head, len('{"schema":'))
    except (StopIteration, ValueError):
        return False
    return head[end:] == "," + _PAYLOAD


def _slowly(text: str, value: Any) -> Change | None:
    """A change of any order and spelling, from its value and the message's text."""
    if not isinstance(value, dict):
        raise NotAChange(MISSING_AFTER)
    members = cast("dict[str, Any]", value)
    if "op" not in members:
        raise NotAChange("'op' column missing from debezium input")
    rows: list[str | None] = []
    if members["op"] not in tuple("cudrt"):
        return None
    for name in ("before", "after", "source"):
        if name not in members:
            raise NotAChange(f"'{name}' column missing from debezium input")
        if members[name] is not None and not isinstance(members[name], dict):
            raise NotAChange(f"'{name}' of debezium input is no object")
    rows = [None if members[n] is None else text_of(text, n, members[n]) for n in ("before", "after")]
    return Change(
        rows[0], members["before"], rows[1], members["after"], members["source"] or {}, members["op"]
    )


def has_key(change: Change, key: str) -> bool:
    """Whether the rows have the members of the key. It mostly stands at the beginning of them."""
    begins, size = key[:-1], len(key) - 1
    wanted: Any = None
    for row, members in ((change.before, change.old), (change.after, change.new)):
        if row is None or (row.startswith(begins) and row[size : size + 1] in (",", "}")):
            continue
        if wanted is None:
            try:
                wanted = _DECODER.decode(key)
            except (ValueError, RecursionError):
                return True  # an error of its own
            if not isinstance(wanted, dict) or not wanted:
                return False
        for name, value in cast("dict[str, Any]", wanted).items():
            if name not in members or members[name] != value:
                return False
    return True
