"""The client's WebSocket messages, as JSON objects.

The first message identifies the client, or asks to cancel the statement of another connection. Each later
message contains statements, as the body of `POST /api/sql`, or cancels the running one. Pure: parses text,
and raises BadRequest for an invalid message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tidemill.server.http.request import BadRequest, RawNumber, Script, Single, parse_object, queries_of

_FIRST = 'The first message is {"user": "...", "password": "...", "options": {"name": "value"}}.'
_LATER = 'Send {"query": "..."}, {"queries": [{"query": "...", "params": ["1"]}]} or {"cancel": true}.'
# No number that names a connection has more digits.
_MAX_DIGITS = 12


@dataclass(frozen=True, slots=True)
class LoginMessage:
    """`password` is checked only if the server requires one."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CancelOther:
    """Cancels the statement of the connection with this BackendKeyData."""

    conn_id: int
    secret_key: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Queries:
    items: Sequence[Script | Single]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels the running statement."""


def parse_first(text: str) -> LoginMessage | CancelOther:
    fields = parse_object(text, _FIRST)
    if set(fields) == {"cancel"} and isinstance(fields["cancel"], dict):
        key = cast(dict[str, Any], fields["cancel"])
        if set(key) == {"conn_id", "secret_key"}:
            return CancelOther(_integer(key["conn_id"]), _integer(key["secret_key"]))
    if not set(fields) <= {"user", "password", "options"}:
        raise BadRequest("the first message must say who connects", hint=_FIRST)
    options = fields.get("options", {})
    if not isinstance(options, dict):
        raise BadRequest('"options" is not an object', hint=_FIRST)
    said = {name: _option(value) for name, value in cast(dict[str, Any], options).items()}
    return LoginMessage(_string(fields, "user"), _string(fields, "password"), said)


def parse_later(text: str) -> Queries | Cancel:
    fields = parse_object(text, _LATER)
    if set(fields) == {"cancel"} and fields["cancel"] is True:
        return Cancel()
    return Queries(queries_of(fields))


def _string(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or isinstance(value, RawNumber)):
        raise BadRequest(f'"{name}" is not a string', hint=_FIRST)
    return value


def _option(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str):
        raise BadRequest("an option's value must be a string, a number or a boolean", hint=_FIRST)
    return str(value)


def _integer(value: object) -> int:
    if not isinstance(value, RawNumber) or not value.isdigit() or len(value) > _MAX_DIGITS:
        raise BadRequest('"conn_id" and "secret_key" are the numbers of BackendKeyData')
    return int(value)
