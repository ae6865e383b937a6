"""CREATE SINK: FROM a relation INTO a topic or a folder, FORMAT, ENVELOPE, and WITH options of the writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import CreateSink, IntoFiles, IntoKafka, Share, SinkFormat, SinkTarget, Statement
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.named_options import Readers, accept_option, boolean, refuse_twice, spelled
from tidemill.sql.tokens import Kind

_TARGETS_HINT = "A sink can be made INTO KAFKA CONNECTION name (TOPIC '...') or INTO FILES '...'."
_TARGETS_NOT_YET = (("s3",), ("iceberg",), ("postgres",), ("kinesis",))
_FORMATS_HINT = "The formats of a sink are AVRO and JSON."
_ENVELOPES_HINT = "Write ENVELOPE MATERIALIZE: the whole history, as CDCv2 has it."
_ENVELOPES_NOT_YET = ("upsert", "debezium")


def create_sink(cursor: Cursor) -> Statement:
    """After CREATE SINK."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    cursor.expect("from")
    relation = cursor.name()
    cursor.expect("into")
    target = _target(cursor)
    if cursor.peek_any("key", "headers", "not"):
        raise cursor.unsupported(
            f"{cursor.token.value.upper()} of a sink",
            hint="It belongs to other envelopes: ENVELOPE MATERIALIZE tells rows by all of their columns.",
        )
    cursor.expect("format")
    form = _format(cursor)
    envelope = _envelope(cursor)
    return CreateSink(name, relation, target, form, envelope, if_not_exists, cluster, **_with_options(cursor))


# -- INTO


def _target(cursor: Cursor) -> SinkTarget:
    offset = cursor.offset
    if cursor.accept("kafka"):
        if cursor.peek_any("broker", "brokers"):
            raise cursor.unsupported(
                "INTO KAFKA BROKER", hint="Make a connection first: CREATE CONNECTION ... TO KAFKA (...)."
            )
        cursor.expect("connection")
        return IntoKafka(
            cursor.name(), **_options(cursor, _KAFKA, _KAFKA_FIELDS, "a Kafka sink"), offset=offset
        )
    if cursor.accept("files"):
        return IntoFiles(cursor.string(), offset)
    raise _refused(cursor)


def _refused(cursor: Cursor) -> TidemillError:
    position = cursor.offset + 1
    for words in _TARGETS_NOT_YET:
        if cursor.peek_words(*words):
            return Unsupported(
                f"CREATE SINK ... INTO {spelled(words)} is not supported yet",
                hint=_TARGETS_HINT,
                position=position,
            )
    if cursor.token.kind is not Kind.WORD:
        return cursor.error()
    return SyntaxError_(
        f"unknown kind of sink: {cursor.token.value.upper()}", hint=_TARGETS_HINT, position=position
    )


# -- FORMAT, ENVELOPE


def _format(cursor: Cursor) -> SinkFormat:
    """After FORMAT."""
    offset = cursor.offset
    if cursor.accept("json"):
        return SinkFormat("JSON", offset=offset)
    if cursor.accept("avro"):
        if not cursor.accept("using"):
            return SinkFormat("AVRO", offset=offset)
        cursor.expect("confluent", "schema", "registry", "connection")
        return SinkFormat("AVRO", cursor.name(), offset)
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    raise Unsupported(
        f"FORMAT {cursor.token.value.upper()} of a sink is not supported",
        hint=_FORMATS_HINT,
        position=offset + 1,
    )


def _envelope(cursor: Cursor) -> str:
    if not cursor.accept("envelope"):
        if cursor.token.kind is Kind.END or cursor.peek_any("with"):
            raise SyntaxError_("a sink needs ENVELOPE", hint=_ENVELOPES_HINT, position=cursor.offset + 1)
        raise cursor.error()
    if cursor.accept("materialize"):
        return "MATERIALIZE"
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    name, position = cursor.token.value.upper(), cursor.offset + 1
    if cursor.peek_any(*_ENVELOPES_NOT_YET):
        raise Unsupported(
            f"ENVELOPE {name} of a sink is not supported yet", hint=_ENVELOPES_HINT, position=position
        )
    raise SyntaxError_(f"unknown envelope: {name}", hint=_ENVELOPES_HINT, position=position)


# -- options


def _options(
    cursor: Cursor, readers: Readers[Any], fields: dict[tuple[str, ...], str], of: str
) -> dict[str, Any]:
    """(NAME [=] value, ...) by the fields of the statement."""
    cursor.expect_symbol("(")
    said: list[str] = []
    found: dict[str, Any] = {}
    while True:
        offset = cursor.offset
        words, value = accept_option(cursor, readers, of)
        refuse_twice(spelled(words), said, offset)
        found[fields[words]] = value
        if cursor.accept_symbol(")"):
            return found
        cursor.expect_symbol(",")


def _with_options(cursor: Cursor) -> dict[str, Any]:
    return _options(cursor, _WITH, _WITH_FIELDS, "a sink") if cursor.accept("with") else {}


def _share(cursor: Cursor) -> Share:
    """number OF writers."""
    number = cursor.integer()
    cursor.expect("of")
    return Share(number, cursor.integer())


_KAFKA: dict[tuple[str, ...], Callable[[Cursor], object]] = {
    ("topic",): Cursor.string,
    ("partition", "count"): Cursor.integer,
    ("replication", "factor"): Cursor.integer,
}
_KAFKA_FIELDS = {
    ("topic",): "topic",
    ("partition", "count"): "partition_count",
    ("replication", "factor"): "replication_factor",
}
_WITH: dict[tuple[str, ...], Callable[[Cursor], object]] = {
    ("snapshot",): boolean,
    ("as", "of"): Cursor.integer,
    ("share",): _share,
    ("join",): boolean,
}
_WITH_FIELDS = {words: "_".join(words) for words in _WITH}
