"""Answers of PubNub's interface: from their text to messages.

The payload of a message is kept as the text that was published: a number that went through a float, and back
into text, would be another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidemill.sources.pubnub.messages import HISTORY_REGION, MAX_TOKEN, Answer, Cursor, Received

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


class Malformed(ValueError):
    """The answer is not as documented. The text says why."""


def subscribe_answer(text: str) -> Answer:
    """{"t": {"t": "15...", "r": 4}, "m": [{"c": ..., "d": ..., "p": {"t": ..., "r": ...}, ...}]}"""
    cursor: Cursor | None = None
    messages: list[Received] = []
    for key, value, begin, _ in _members(text, _skip(text, 0)):
        if key == "t":
            cursor = Cursor(_token(_field(value, "t")), _region(_field(value, "r")))
        elif key == "m":
            messages += [m for at in _elements(text, begin) if (m := _message(text, at)) is not None]
    if cursor is None:
        raise Malformed("It has no timetoken.")
    return Answer(cursor, tuple(messages))


def history_answer(text: str, channel: str) -> list[Received]:
    """{"channels": {"ch": [{"message": ..., "timetoken": ..., "uuid": ...}]}}, by rising timetoken."""
    found: list[Received] = []
    for key, _, begin, _ in _members(text, _skip(text, 0)):
        if key != "channels":
            continue
        for _, _, inner, _ in _members(text, begin):
            for at in _elements(text, inner):
                message = _stored(text, at, channel)
                if message is not None:
                    found.append(message)
    return sorted(found, key=lambda message: message.token)


def refusal(text: str) -> str | None:
    """What the service says of a request that it refuses."""
    try:
        body: Any = json.loads(text)
    except ValueError:
        return None
    if isinstance(body, list) and len(body) > 1:  # pyright: ignore[reportUnknownArgumentType]
        return str(body[1])[:300]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(body, dict):
        said = body.get("error_message") or body.get("message")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return str(said)[:300] if said else None  # pyright: ignore[reportUnknownArgumentType]
    return None


def _message(text: str, at: int) -> Received | None:
    """None for what is no message: signals, events of objects and actions, files, presence."""
    fields: dict[str, Any] = {}
    payload = ""
    for key, value, begin, end in _members(text, at):
        fields[key] = value
        if key == "d":
            payload = text[begin:end]
    channel = fields.get("c")
    if not isinstance(channel, str) or "p" not in fields:
        raise Malformed("A message has no channel, or no timetoken.")
    if fields.get("e") not in (None, 0) or channel.endswith("-pnpres") or "d" not in fields:
        return None
    by, publisher = fields.get("b"), fields.get("i")
    return Received(
        _region(_field(fields["p"], "r")),
        _token(_field(fields["p"], "t")),
        channel,
        by if isinstance(by, str) and by != channel else None,
        publisher if isinstance(publisher, str) else None,
        *_said(fields["d"], payload),
    )


def _stored(text: str, at: int, channel: str) -> Received | None:
    fields: dict[str, Any] = {}
    payload = ""
    for key, value, begin, end in _members(text, at):
        fields[key] = value
        if key == "message":
            payload = text[begin:end]
    if "message" not in fields or "timetoken" not in fields:
        raise Malformed("A message of the history has no timetoken.")
    if fields.get("message_type") not in (None, 0, ""):
        return None
    publisher = fields.get("uuid")
    return Received(
        HISTORY_REGION,
        _token(fields["timetoken"]),
        channel,
        None,
        publisher if isinstance(publisher, str) and publisher else None,
        *_said(fields["message"], payload),
    )


def _said(value: Any, text: str) -> tuple[str, bool]:
    if isinstance(value, str):
        # Halves of surrogate pairs cannot be stored.
        return value.encode("utf-8", "replace").decode(), True
    return text, False


def _field(of: Any, name: str) -> Any:
    if not isinstance(of, dict) or name not in of:
        raise Malformed("It has no timetoken with a region.")
    found: Any = of[name]
    return found


def _token(value: Any) -> int:
    try:
        token = int(value)
    except (TypeError, ValueError):
        token = -1
    if not 0 <= token < MAX_TOKEN:
        raise Malformed(f"{str(value)[:50]!r} is no timetoken.")
    return token


def _region(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise Malformed(f"{str(value)[:50]!r} is no region.")
    return value


# -- places in a JSON text


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _members(text: str, at: int) -> Iterator[tuple[str, Any, int, int]]:
    """The members of an object: key, value, and where the value's text begins and ends."""
    at = _expect(text, at, "{")
    if text[at : at + 1] == "}":
        return
    while True:
        key, at = _value(text, at)
        if not isinstance(key, str):
            raise Malformed("A key is no text.")
        begin = _expect(text, at, ":")
        value, at = _value(text, begin)
        yield key, value, begin, at
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return
        at = _expect(text, at, ",")


def _elements(text: str, at: int) -> Iterator[int]:
    """Where the elements of a list begin."""
    at = _expect(text, at, "[")
    if text[at : at + 1] == "]":
        return
    while True:
        yield at
        _, at = _value(text, at)
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            return
        at = _expect(text, at, ",")


def _expect(text: str, at: int, symbol: str) -> int:
    """Behind the symbol, where the next token begins."""
    at = _skip(text, at)
    if text[at : at + 1] != symbol:
        raise Malformed("It is not the JSON that is documented.")
    return _skip(text, at + 1)


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as e:
        raise Malformed("It is no JSON.") from e
