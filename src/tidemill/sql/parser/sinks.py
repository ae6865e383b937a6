"""CREATE SINK: FROM a relation INTO a topic or a folder, FORMAT, ENVELOPE, and the writer's WITH options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import CreateSink, Share, SinkFormat, SinkKey, Statement
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields, boolean
from tidemill.sql.parser.sink_targets import sink_target
from tidemill.sql.tokens import TokenKind

_FORMATS_HINT = "The formats of a sink are AVRO and JSON."
_ENVELOPES = ("MATERIALIZE", "UPSERT", "DEBEZIUM")
_ENVELOPES_HINT = (
    "Write ENVELOPE UPSERT or ENVELOPE DEBEZIUM with a KEY, or ENVELOPE MATERIALIZE: the whole history, as "
    "CDCv2 has it."
)


def create_sink(cursor: TokenCursor) -> Statement:
    """After CREATE SINK."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    cursor.expect("from")
    relation = cursor.name()
    cursor.expect("into")
    target = sink_target(cursor)
    key = _key(cursor)
    if cursor.peek_any("headers"):
        raise cursor.unsupported(
            "HEADERS of a sink", hint="Each message has a header tidemill-timestamp: the time of the change."
        )
    cursor.expect("format")
    form = _format(cursor)
    envelope = _envelope(cursor)
    more = _with_options(cursor)
    return CreateSink(name, relation, target, form, envelope, if_not_exists, cluster, key=key, **more)


# -- KEY


def _key(cursor: TokenCursor) -> SinkKey | None:
    offset = cursor.offset
    if cursor.peek_words("key", "format"):
        raise cursor.unsupported(
            "KEY FORMAT of a sink", hint="Write one FORMAT: it is that of keys and values."
        )
    if not cursor.accept("key"):
        return None
    columns = cursor.idents_in_parentheses("Write KEY (column, ...).")
    return SinkKey(columns, cursor.accept("not", "enforced"), offset)


# -- FORMAT, ENVELOPE


def _format(cursor: TokenCursor) -> SinkFormat:
    """After FORMAT."""
    offset = cursor.offset
    if cursor.accept("json"):
        return SinkFormat("JSON", offset=offset)
    if cursor.accept("avro"):
        if not cursor.accept("using"):
            return SinkFormat("AVRO", offset=offset)
        cursor.expect("confluent", "schema", "registry", "connection")
        return SinkFormat("AVRO", cursor.name(), offset)
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error()
    raise Unsupported(
        f"FORMAT {cursor.token.value.upper()} of a sink is not supported",
        hint=_FORMATS_HINT,
        position=offset + 1,
    )


def _envelope(cursor: TokenCursor) -> str:
    if not cursor.accept("envelope"):
        if cursor.token.kind is TokenKind.END or cursor.peek_any("with"):
            raise SyntaxError_("a sink needs ENVELOPE", hint=_ENVELOPES_HINT, position=cursor.offset + 1)
        raise cursor.error()
    for name in _ENVELOPES:
        if cursor.accept(name.lower()):
            return name
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error()
    name, position = cursor.token.value.upper(), cursor.offset + 1
    raise SyntaxError_(f"unknown envelope: {name}", hint=_ENVELOPES_HINT, position=position)


# -- options


def _with_options(cursor: TokenCursor) -> dict[str, Any]:
    return accept_fields(cursor, _WITH, "a sink") if cursor.accept("with") else {}


def _share(cursor: TokenCursor) -> Share:
    """number OF writers."""
    number = cursor.integer()
    cursor.expect("of")
    return Share(number, cursor.integer())


_WITH: dict[tuple[str, ...], Callable[[TokenCursor], object]] = {
    ("snapshot",): boolean,
    ("as", "of"): TokenCursor.integer,
    ("share",): _share,
    ("join",): boolean,
}
