"""CREATE SINK: FROM a relation INTO a topic or a folder, FORMAT, ENVELOPE, and the writer's WITH options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import CreateSink, Share, SinkFormat, Statement
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields, boolean
from tidemill.sql.parser.sink_targets import sink_target
from tidemill.sql.tokens import TokenKind

_FORMATS_HINT = "The formats of a sink are AVRO and JSON."
_ENVELOPES_HINT = "Write ENVELOPE MATERIALIZE: the whole history, as CDCv2 has it."
_ENVELOPES_NOT_YET = ("upsert", "debezium")


def create_sink(cursor: TokenCursor) -> Statement:
    """After CREATE SINK."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    cursor.expect("from")
    relation = cursor.name()
    cursor.expect("into")
    target = sink_target(cursor)
    if cursor.peek_any("key", "headers", "not"):
        raise cursor.unsupported(
            f"{cursor.token.value.upper()} of a sink",
            hint="It belongs to other envelopes: ENVELOPE MATERIALIZE tells rows by all of their columns.",
        )
    cursor.expect("format")
    form = _format(cursor)
    envelope = _envelope(cursor)
    return CreateSink(name, relation, target, form, envelope, if_not_exists, cluster, **_with_options(cursor))


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
    if cursor.accept("materialize"):
        return "MATERIALIZE"
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error()
    name, position = cursor.token.value.upper(), cursor.offset + 1
    if cursor.peek_any(*_ENVELOPES_NOT_YET):
        raise Unsupported(
            f"ENVELOPE {name} of a sink is not supported yet", hint=_ENVELOPES_HINT, position=position
        )
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
