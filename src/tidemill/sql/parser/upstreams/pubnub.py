"""FROM PUBNUB: channels of PubNub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields

_WRITE = "Write FROM PUBNUB CONNECTION name (CHANNELS ('channel', ...))."
_WRITE_KEY = "Write FROM PUBNUB SUBSCRIBE KEY 'sub-c-...' CHANNEL 'channel'."


@dataclass(frozen=True, slots=True)
class PubNub(Upstream):
    """FROM PUBNUB CONNECTION c (CHANNELS ('a', ...), ...), or (an older spelling) FROM PUBNUB SUBSCRIBE KEY
    'k' CHANNEL 'c'."""

    connection: Name | None = None
    subscribe_key: str | None = None  # of the older spelling
    channels: tuple[str, ...] = ()
    channel_groups: tuple[str, ...] = ()
    start_timetoken: int | None = None
    history: str | None = None  # an interval, as text
    offset: int = offset_field()

    def to_sql(self) -> str:
        if self.connection is None:
            key, channel = quote_literal(self.subscribe_key or ""), quote_literal("".join(self.channels[:1]))
            return f"PUBNUB SUBSCRIBE KEY {key} CHANNEL {channel}"
        options = [
            f"{words} ({', '.join(map(quote_literal, names))})"
            for words, names in (("CHANNELS", self.channels), ("CHANNEL GROUPS", self.channel_groups))
            if names
        ]
        if self.start_timetoken is not None:
            options.append(f"START TIMETOKEN {self.start_timetoken}")
        if self.history is not None:
            options.append(f"HISTORY {quote_literal(self.history)}")
        return f"PUBNUB CONNECTION {self.connection} ({', '.join(options)})"

    def through(self, connection: Name) -> PubNub:
        return replace(self, connection=connection)


def parse_pubnub(cursor: TokenCursor) -> PubNub:
    """After PUBNUB."""
    offset = cursor.offset
    if cursor.accept("subscribe", "key"):
        key = cursor.string(_WRITE_KEY)
        cursor.expect("channel", hint=_WRITE_KEY)
        return PubNub(subscribe_key=key, channels=(cursor.string(_WRITE_KEY),), offset=offset)
    cursor.expect("connection", hint=_WRITE)
    connection = cursor.name()
    if not cursor.peek_symbol("("):
        raise cursor.error(_WRITE)
    return PubNub(connection, offset=offset, **accept_fields(cursor, _READERS, "a PubNub source"))


def _names(cursor: TokenCursor) -> tuple[str, ...]:
    """('a', ...) or 'a'."""
    if not cursor.accept_symbol("("):
        return (cursor.string(_WRITE),)
    found = [cursor.string(_WRITE)]
    while cursor.accept_symbol(","):
        found.append(cursor.string(_WRITE))
    cursor.expect_symbol(")", _WRITE)
    return tuple(found)


_READERS: dict[tuple[str, ...], Callable[[TokenCursor], Any]] = {
    ("channels",): _names,
    ("channel", "groups"): _names,
    ("start", "timetoken"): lambda cursor: cursor.integer("Write START TIMETOKEN n: 17 digits."),
    ("history",): lambda cursor: cursor.string("Write HISTORY '7 days'."),
}
