"""COPY t FROM STDIN; COPY t, (query) or (SUBSCRIBE ...) TO STDOUT; the options in their new and old
spelling."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.errors import InvalidValue, SyntaxError_, Unsupported
from tidemill.sql.ast import CopyFrom, CopyOptions, CopyTo, Ident, Name, Query, Statement, Subscribe
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.query import query_to_end
from tidemill.sql.parser.subscribe import accept_subscribe, subscribe
from tidemill.sql.tokens import Kind

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_INVALID = "22023"


def copy(cursor: Cursor) -> Statement:
    """After COPY."""
    if cursor.peek_any("binary"):
        raise cursor.unsupported("COPY BINARY before the table's name", hint="Write WITH (FORMAT binary).")
    source: Name | Query | Subscribe
    columns: tuple[Ident, ...] = ()
    if cursor.accept_symbol("("):
        if cursor.peek_any("insert", "update", "delete"):
            raise cursor.unsupported(f"COPY of {cursor.token.value.upper()}")
        source = subscribe(cursor) if accept_subscribe(cursor) else query_to_end(cursor)
        cursor.expect_symbol(")")
    else:
        source = cursor.name()
        if cursor.peek_symbol("("):
            columns = cursor.idents_in_parentheses()
    incoming = isinstance(source, Name) and cursor.accept("from")
    if not incoming:
        cursor.expect("to")
    _stream(cursor, "stdin" if incoming else "stdout")
    options = _Options(incoming)
    if cursor.peek_symbol("(") or (cursor.peek_words("with") and cursor.following[:2] == (Kind.SYMBOL, "(")):
        cursor.accept("with")
        options.new(cursor)
    else:
        cursor.accept("with")
        options.old(cursor)
    if cursor.peek_any("where"):
        raise cursor.unsupported("COPY ... WHERE")
    if isinstance(source, Name) and incoming:
        return CopyFrom(source, columns, options.resolve())
    return CopyTo(source, columns, options.resolve())


def _stream(cursor: Cursor, wanted: str) -> None:
    if cursor.token.kind is Kind.STRING or cursor.peek_any("program"):
        raise cursor.unsupported("COPY with a file or program of the server", hint=f"Use {wanted.upper()}.")
    # PostgreSQL takes STDIN and STDOUT for each other.
    if not cursor.accept("stdin"):
        cursor.expect("stdout")


@dataclass(slots=True)
class _Options:
    """The options as they are read; `resolve` fills in defaults and checks them against each other."""

    incoming: bool
    said: dict[str, str] = field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    position: int | None = None

    def new(self, cursor: Cursor) -> None:
        """( name [value], ... )"""
        cursor.expect_symbol("(")
        while True:
            self.position = cursor.offset + 1
            name = cursor.word()
            if name in ("force_quote", "force_not_null", "force_null"):
                self._say_columns(name, self._star_or_columns(cursor))
            else:
                value = ""
                if not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
                    token = cursor.advance()
                    if token.kind not in (Kind.STRING, Kind.WORD, Kind.QUOTED, Kind.NUMBER):
                        cursor.rewind(cursor.index - (token.kind is not Kind.END))
                        raise cursor.error()
                    value = token.value
                self._say(name, value)
            if cursor.accept_symbol(")"):
                return
            cursor.expect_symbol(",")

    def old(self, cursor: Cursor) -> None:
        """BINARY, CSV, DELIMITER [AS] '..', NULL [AS] '..', HEADER, QUOTE [AS] '..', ESCAPE [AS] '..',
        FORCE ..."""
        while not cursor.at_end and not cursor.peek_any("where"):
            self.position = cursor.offset + 1
            if cursor.peek_any("binary", "csv"):
                self._say("format", cursor.word())
            elif cursor.peek_any("delimiter", "null", "quote", "escape", "encoding"):
                name = cursor.word()
                cursor.accept("as")
                self._say(name, cursor.string())
            elif cursor.accept("delimiters"):
                cursor.accept("as")
                self._say("delimiter", cursor.string())
            elif cursor.accept("header"):
                self._say("header", "true")
            elif cursor.accept("force", "quote"):
                star = cursor.accept_symbol("*")
                self._say_columns("force_quote", ("*",) if star else self._list(cursor))
            elif cursor.accept("force", "not", "null"):
                self._say_columns("force_not_null", self._list(cursor))
            elif cursor.accept("force", "null"):
                self._say_columns("force_null", self._list(cursor))
            else:
                raise cursor.error()

    def _star_or_columns(self, cursor: Cursor) -> tuple[str, ...]:
        if cursor.accept_symbol("*"):
            return ("*",)
        return tuple(i.value for i in cursor.idents_in_parentheses())

    def _list(self, cursor: Cursor) -> tuple[str, ...]:
        found = [cursor.ident().value]
        while cursor.accept_symbol(","):
            found.append(cursor.ident().value)
        return tuple(found)

    def _say(self, name: str, value: str) -> None:
        if name in self.said:
            raise SyntaxError_("conflicting or redundant options", position=self.position)
        if name not in (
            "format",
            "delimiter",
            "null",
            "header",
            "quote",
            "escape",
            "encoding",
            "freeze",
            "on_error",
        ):
            raise SyntaxError_(f'option "{name}" not recognized', position=self.position)
        if name in ("freeze", "on_error"):
            raise Unsupported(f"COPY option {name.upper()} is not supported", position=self.position)
        if name == "encoding" and value.replace("-", "").replace("_", "").lower() not in ("utf8", "unicode"):
            raise Unsupported(
                f'COPY encoding "{value}" is not supported', hint="Use UTF8.", position=self.position
            )
        self.said[name] = value

    def _say_columns(self, name: str, columns: tuple[str, ...]) -> None:
        if name in self.columns:
            raise SyntaxError_("conflicting or redundant options", position=self.position)
        self.columns[name] = columns

    def _invalid(self, text: str) -> InvalidValue:
        return InvalidValue(text, sqlstate=_INVALID, position=self.position)

    def resolve(self) -> CopyOptions:
        fmt = self.said.get("format", "text")
        if fmt not in ("text", "csv", "binary"):
            raise self._invalid(f'COPY format "{fmt}" not recognized')
        csv = fmt == "csv"
        for name in ("delimiter", "null", "header"):
            if fmt == "binary" and name in self.said:
                raise SyntaxError_(f"cannot specify {name.upper()} in BINARY mode", position=self.position)
        for name in ("quote", "escape", "force_quote", "force_not_null", "force_null"):
            if not csv and (name in self.said or name in self.columns):
                raise Unsupported(f"COPY {name.upper()} requires CSV mode", position=self.position)
        if self.incoming and "force_quote" in self.columns:
            raise Unsupported("COPY FORCE_QUOTE cannot be used with COPY FROM", position=self.position)
        for name in ("force_not_null", "force_null"):
            if not self.incoming and name in self.columns:
                raise Unsupported(f"COPY {name.upper()} cannot be used with COPY TO", position=self.position)
        delimiter = self._one_byte("delimiter", "," if csv else "\t")
        null = self.said.get("null", "" if csv else "\\N")
        quote = self._one_byte("quote", '"')
        escape = self._one_byte("escape", quote)
        if delimiter in "\r\n" or (not csv and delimiter in "\\.abcdefghijklmnopqrstuvwxyz0123456789"):
            raise self._invalid(f'COPY delimiter cannot be "{delimiter}"')
        if "\r" in null or "\n" in null:
            raise self._invalid("COPY null representation cannot use newline or carriage return")
        if fmt != "binary" and (delimiter in null or (csv and quote in null)):
            raise self._invalid("COPY delimiter and quote must not appear in the NULL specification")
        if csv and delimiter == quote:
            raise self._invalid("COPY delimiter and quote must be different")
        header = self.said.get("header", "false") or "true"
        if header not in _TRUE | _FALSE | {"match"} or (header == "match" and not self.incoming):
            raise SyntaxError_('header requires a Boolean value or "match"', position=self.position)
        return CopyOptions(
            fmt,
            delimiter,
            null,
            header not in _FALSE,
            header == "match",
            quote,
            escape,
            **self.columns,
        )

    def _one_byte(self, name: str, default: str) -> str:
        value = self.said.get(name, default)
        if len(value) != 1 or not value.isascii():
            raise self._invalid(f"COPY {name} must be a single one-byte character")
        return value
