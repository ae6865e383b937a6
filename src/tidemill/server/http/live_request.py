"""The parameters of `GET /api/subscribe`: parses the query string and Last-Event-ID into a subscription
request. Raises an error for invalid parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tidemill.engine.api import ConsumeRequest, SubscribeRequest
from tidemill.errors import LimitExceeded
from tidemill.server.http.limits import MAX_PARAMETERS
from tidemill.server.http.request import BadRequest
from tidemill.server.limits import MAX_QUERY_BYTES

_TRUE, _FALSE = ("", "true", "on", "yes", "1"), ("false", "off", "no", "0")
_ONCE = (
    *("query", "envelope", "snapshot", "progress", "as_of", "up_to", "database"),
    *("subscription", "position", "share"),
)
# The others of a request for a durable subscription.
_OF_SUBSCRIPTION = frozenset({"subscription", "position", "share", "progress", "database"})
# Times have 63 bits: 19 digits.
_MAX_TIME_DIGITS = 19


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """`subscribe` always requests progress, from which events are made; `progress`: send it to the client.
    `fresh`: for a client that reconnects, the request to use if the history is gone, which returns a new
    snapshot; None if the client wants no snapshot."""

    subscribe: SubscribeRequest | ConsumeRequest
    progress: bool
    database: str | None
    fresh: SubscribeRequest | None = None
    # The client has already received everything up to UP TO.
    over: bool = False


def parse_live(items: Sequence[tuple[str, str]], last_event_id: str | None) -> LiveRequest:
    """`items` are the decoded parameters in their order. Raises BadRequest, LimitExceeded."""
    if len(items) > MAX_PARAMETERS:
        raise LimitExceeded(f"more than {MAX_PARAMETERS} parameters")
    said: dict[str, str] = {}
    keys: list[str] = []
    for name, value in items:
        if name == "key":
            keys.append(_text(name, value))
        elif name not in _ONCE:
            raise BadRequest(f'unknown parameter "{name}"', hint=f"There are key, {', '.join(_ONCE)}.")
        elif name in said:
            raise BadRequest(f'the parameter "{name}" is given twice')
        else:
            said[name] = _text(name, value)
    if "subscription" in said:
        return _consumed(said, keys, last_event_id)
    if not said.get("query", "").strip():
        raise BadRequest(
            'the parameter "query" is missing', hint="Give the name of a relation, or a SELECT, as query=..."
        )
    if len(said["query"].encode()) > MAX_QUERY_BYTES:
        raise LimitExceeded(f"the query is longer than {MAX_QUERY_BYTES} bytes")
    asked = SubscribeRequest(
        said["query"],
        tuple(keys),
        _envelope(said.get("envelope"), keys),
        snapshot=_boolean("snapshot", said.get("snapshot", "true")),
        progress=True,
        as_of=said.get("as_of"),
        up_to=said.get("up_to"),
    )
    progress = _boolean("progress", said.get("progress", "false"))
    live = LiveRequest(asked, progress, said.get("database"))
    return live if not last_event_id else _resumed(live, asked, _told(last_event_id))


def _consumed(said: dict[str, str], keys: list[str], last_event_id: str | None) -> LiveRequest:
    """The request for a durable subscription: from the last event, the position, or the acknowledged one."""
    for name in [*said, *["key"] * len(keys)]:
        if name not in _OF_SUBSCRIPTION:
            raise BadRequest(f'"{name}" is for a query', hint="CREATE SUBSCRIPTION says what is sent.")
    position, share = _number("position", said), _number("share", said)
    begin = _told(last_event_id) if last_event_id else position
    progress = _boolean("progress", said.get("progress", "false"))
    return LiveRequest(ConsumeRequest(said["subscription"], begin, share), progress, said.get("database"))


def _number(name: str, said: dict[str, str]) -> int | None:
    value = said.get(name)
    if value is not None and not _digits(value):
        raise BadRequest(f'"{name}" is no number')
    return None if value is None else int(value)


def _told(last_event_id: str) -> int:
    if not _digits(last_event_id) or int(last_event_id) == 0:
        raise BadRequest("Last-Event-ID is none of this stream's ids")
    return int(last_event_id)


def _resumed(live: LiveRequest, asked: SubscribeRequest, told: int) -> LiveRequest:
    """The request for a client that received everything before `told`."""
    over = asked.up_to is not None and _digits(asked.up_to) and told >= int(asked.up_to)
    return replace(
        live,
        subscribe=replace(asked, snapshot=False, as_of=str(told - 1)),
        fresh=replace(asked, as_of=None) if asked.snapshot else None,
        over=over,
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_TIME_DIGITS


def _envelope(said: str | None, keys: list[str]) -> Literal["upsert", "debezium"] | None:
    if said is None:
        return "upsert" if keys else None
    match said.lower():
        case "upsert":
            return "upsert"
        case "debezium":
            return "debezium"
        case _:
            raise BadRequest('"envelope" is neither upsert nor debezium')


def _boolean(name: str, value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise BadRequest(f'"{name}" is neither true nor false')


def _text(name: str, value: str) -> str:
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value) or "\ufffd" in value:
        raise BadRequest(f'"{name}" is not UTF-8, or holds a NUL')
    return value
