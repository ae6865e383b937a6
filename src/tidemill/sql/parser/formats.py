"""FORMAT, INCLUDE, ENVELOPE and ON ERROR, in any order, each at most once."""

from __future__ import annotations

from dataclasses import replace

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import (
    AvroRegistry,
    AvroSchema,
    Csv,
    Format,
    Ident,
    Include,
    Messages,
    Name,
    OnError,
    PlainFormat,
    ProtobufRegistry,
    ProtobufSchema,
    Regex,
    Strategy,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.envelopes import envelope
from tidemill.sql.parser.named_options import accept_option, boolean, nearest
from tidemill.sql.tokens import TokenKind

_PLAIN = ("json", "text", "bytes", "parquet")
_FORMATS = ("AVRO", "PROTOBUF", "JSON", "TEXT", "BYTES", "CSV", "REGEX", "PARQUET")
_FORMATS_HINT = "The formats are AVRO, PROTOBUF, JSON, TEXT, BYTES, CSV, REGEX and PARQUET."
_KEY_VALUE = "Write KEY FORMAT ... VALUE FORMAT ...."
_AVRO = "Write AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION name, or AVRO USING SCHEMA '...'."
_PROTOBUF = (
    "Write PROTOBUF USING CONFLUENT SCHEMA REGISTRY CONNECTION name, "
    "or PROTOBUF MESSAGE '...' USING SCHEMA '\\x...'."
)
_CSV = "Write CSV WITH n COLUMNS or CSV WITH HEADER (name, ...)."
_STRATEGY = "Write STRATEGY LATEST, STRATEGY ID n or STRATEGY INLINE '...'."
_STRATEGY_SIDE = "Write KEY STRATEGY ... or VALUE STRATEGY ...."
_DELIMITED = "Write DELIMITED BY 'c', one character."
# Words that may start a later clause, or a misspelling of one.
_CLAUSES = ("FORMAT", "KEY FORMAT", "INCLUDE", "ENVELOPE", "ON ERROR", "EXPOSE PROGRESS AS", "WITH")
# Words that may follow a format.
_BEHIND = ("envelope", "include", "value", "on", "expose", "with")
# The key words that may follow INCLUDE.
_AFTER_INCLUDE = ("format", "key", "value", "include", "envelope", "on", "expose", "with")
_INCLUDES = ("key", "partition", "offset", "timestamp", "headers")
_INCLUDES_HINT = (
    "What can be included is KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS and HEADER '...' AS name."
)
_INCLUDE_MORE = "Between what is included stand commas; AS name calls a column something else."
_HEADER = "A header's column needs a name: write INCLUDE HEADER '...' AS name."
_ON_ERROR = "Write ON ERROR FAIL, or ON ERROR DEAD LETTER INTO name."


def messages(cursor: TokenCursor) -> Messages:
    """[FORMAT f | KEY FORMAT f VALUE FORMAT f] [INCLUDE ...] [ENVELOPE ...] [ON ERROR ...]"""
    said = Messages()
    seen: set[str] = set()
    while (clause := _clause(cursor)) is not None:
        if clause in seen:
            raise SyntaxError_(f"{clause} specified more than once", position=cursor.offset + 1)
        seen.add(clause)
        if clause == "FORMAT":
            key = None
            if cursor.accept("key"):
                cursor.expect("format", hint=_KEY_VALUE)
                key = _format(cursor)
                cursor.expect("value", hint=_KEY_VALUE)
            cursor.expect("format", hint=_KEY_VALUE)
            said = replace(said, key=key, value=_format(cursor))
        elif clause == "INCLUDE":
            said = replace(said, include=_includes(cursor))
        elif clause == "ON ERROR":
            said = replace(said, on_error=_on_error(cursor))
        else:
            said = replace(said, envelope=envelope(cursor))
    return said


def end_of_clauses(cursor: TokenCursor, hint: str, *more: str) -> None:
    """Raises unless the statement ends or one of these words follows. The hint suggests a similar clause if
    one exists.
    """
    if cursor.at_end or cursor.peek_any(*more):
        return
    word = cursor.token.value.upper()
    misspelt = cursor.token.kind is TokenKind.WORD and word not in _CLAUSES
    raise cursor.error(nearest(word, _CLAUSES, hint) if misspelt else hint)


def _clause(cursor: TokenCursor) -> str | None:
    """The next clause, without moving."""
    if cursor.peek_any("format") or cursor.peek_words("key", "format"):
        return "FORMAT"
    if cursor.peek_words("value", "format"):
        raise SyntaxError_(
            "VALUE FORMAT without KEY FORMAT",
            hint="Write KEY FORMAT ... VALUE FORMAT ..., or FORMAT ... alone.",
            position=cursor.offset + 1,
        )
    if cursor.peek_any("on"):
        return "ON ERROR"
    return cursor.token.value.upper() if cursor.peek_any("include", "envelope") else None


# -- FORMAT


def _format(cursor: TokenCursor) -> Format:
    """After FORMAT."""
    offset = cursor.offset
    for word in _PLAIN:
        if cursor.accept(word):
            return PlainFormat(word.upper(), offset)
    if cursor.accept("avro"):
        return _avro(cursor, offset)
    if cursor.accept("protobuf"):
        return _protobuf(cursor, offset)
    if cursor.accept("csv"):
        return _csv(cursor, offset)
    if cursor.accept("regex"):
        return Regex(cursor.string("Write REGEX '...', a pattern with a group for each column."), offset)
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error(_FORMATS_HINT)
    name = cursor.token.value.upper()
    raise SyntaxError_(
        f"unknown format: {name}", hint=nearest(name, _FORMATS, _FORMATS_HINT), position=offset + 1
    )


def _avro(cursor: TokenCursor, offset: int) -> Format:
    if cursor.at_end or cursor.peek_any(*_BEHIND):
        # Files contain their schema; the planner checks which other upstreams need one.
        return PlainFormat("AVRO", offset)
    cursor.expect("using", hint=_AVRO)
    if cursor.peek_words("confluent"):
        registry = _registry(cursor)
        strategies: dict[str, Strategy] = {}
        while (side := _strategy_side(cursor)) is not None:
            if side in strategies:
                raise SyntaxError_(
                    f"{side.upper()} STRATEGY specified more than once", position=cursor.offset + 1
                )
            cursor.expect(side, "strategy")
            strategies[side] = _strategy(cursor)
        if cursor.peek_any("strategy"):
            raise cursor.error(_STRATEGY_SIDE)
        return AvroRegistry(registry, strategies.get("key"), strategies.get("value"), offset)
    cursor.expect("schema", hint=_AVRO)
    if cursor.peek_any("file"):
        raise cursor.unsupported("USING SCHEMA FILE", hint="Write the schema itself: USING SCHEMA '...'.")
    schema = cursor.string(_AVRO)
    framed = True
    if cursor.accept_symbol("("):
        option = {("confluent", "wire", "format"): boolean}
        _, framed = accept_option(cursor, option, "AVRO USING SCHEMA")
        cursor.expect_symbol(")")
    return AvroSchema(schema, framed, offset)


def _strategy_side(cursor: TokenCursor) -> str | None:
    return next((s for s in ("key", "value") if cursor.peek_words(s, "strategy")), None)


def _strategy(cursor: TokenCursor) -> Strategy:
    if cursor.accept("latest"):
        return Strategy("LATEST")
    if cursor.accept("id"):
        return Strategy("ID", cursor.integer(_STRATEGY))
    cursor.expect("inline", hint=_STRATEGY)
    return Strategy("INLINE", cursor.string(_STRATEGY))


def _registry(cursor: TokenCursor) -> Name | str:
    """CONFLUENT SCHEMA REGISTRY CONNECTION c, or CONFLUENT SCHEMA REGISTRY 'address'."""
    write = "Write CONFLUENT SCHEMA REGISTRY CONNECTION name."
    cursor.expect("confluent", "schema", "registry", hint=write)
    return cursor.name() if cursor.accept("connection") else cursor.string(write)


def _protobuf(cursor: TokenCursor, offset: int) -> Format:
    if cursor.accept("message"):
        message = cursor.string(_PROTOBUF)
        cursor.expect("using", "schema", hint=_PROTOBUF)
        return ProtobufSchema(message, cursor.string(_PROTOBUF), offset)
    cursor.expect("using", hint=_PROTOBUF)
    if cursor.peek_any("schema"):
        raise cursor.error(_PROTOBUF)
    return ProtobufRegistry(_registry(cursor), offset)


def _csv(cursor: TokenCursor, offset: int) -> Format:
    """WITH n COLUMNS or WITH HEADER (names), in parentheses or not; DELIMITED BY."""
    cursor.expect("with", hint=_CSV)
    closed = cursor.accept_symbol("(")
    columns: int | tuple[Ident, ...]
    if cursor.accept("header"):
        # Files name their columns themselves; the planner checks which upstreams need names.
        columns = cursor.idents_in_parentheses(_CSV) if cursor.peek_symbol("(") else ()
    else:
        columns = cursor.integer(_CSV)
        cursor.expect("columns", hint=_CSV)
    if closed:
        cursor.expect_symbol(")", _CSV)
    if not cursor.accept("delimited"):
        return Csv(columns, None, offset)
    cursor.expect("by", hint=_DELIMITED)
    return Csv(columns, cursor.string(_DELIMITED), offset)


# -- INCLUDE


def _includes(cursor: TokenCursor) -> tuple[Include, ...]:
    cursor.expect("include")
    found = [_include(cursor)]
    while cursor.accept_symbol(","):
        found.append(_include(cursor))
    end_of_clauses(cursor, _INCLUDE_MORE, *_AFTER_INCLUDE)
    return tuple(found)


def _include(cursor: TokenCursor) -> Include:
    offset = cursor.offset
    for what in _INCLUDES:
        if cursor.accept(what):
            return Include(what.upper(), cursor.ident() if cursor.accept("as") else None, offset=offset)
    if cursor.accept("header"):
        header = cursor.string(_HEADER)
        cursor.expect("as", hint=_HEADER)
        return Include("HEADER", cursor.ident(), header, cursor.accept("bytes"), offset)
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error(_INCLUDES_HINT)
    name = cursor.token.value.upper()
    known = [*(what.upper() for what in _INCLUDES), "HEADER"]
    raise cursor.unsupported(f"INCLUDE {name}", hint=nearest(name, known, _INCLUDES_HINT))


# -- ON ERROR


def _on_error(cursor: TokenCursor) -> OnError:
    """ON ERROR { FAIL | DEAD LETTER [INTO name] }"""
    offset = cursor.offset
    cursor.expect("on", "error", hint=_ON_ERROR)
    if cursor.accept("fail"):
        return OnError(dead_letter=False, offset=offset)
    cursor.expect("dead", "letter", hint=_ON_ERROR)
    into = cursor.name() if cursor.accept("into") else None
    return OnError(dead_letter=True, into=into, offset=offset)
