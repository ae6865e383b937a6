"""COPY's options, in the new syntax `(name [value], ...)` and the old one without parentheses.

Called by `copy`. `resolve` fills in the format's defaults and checks the options against each other, with
PostgreSQL's SQLSTATEs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.errors import InvalidValue, SyntaxError_, Unsupported
from tidemill.sql.ast import CopyClause
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import TokenKind

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_INVALID = "22023"
_SAID_ONCE = frozenset(
    {"format", "delimiter", "null", "default", "header", "quote", "escape", "encoding", "freeze"}
)
_COLUMN_LISTS = ("force_quote", "force_not_null", "force_null")
_NO_DELIMITERS_OF_TEXT = "\\.abcdefghijklmnopqrstuvwxyz0123456789"

_PAGES = (866, 874, 1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258)
# Python's names of the data encodings, by PostgreSQL's. In all but UTF8 a byte is a character, and in all of
# them ASCII is unchanged, so that delimiters are too.
CODECS = {
    "UTF8": "utf-8",
    **{f"LATIN{n}": f"latin{n}" for n in range(1, 11)},
    **{f"ISO_8859_{n}": f"iso8859-{n}" for n in range(5, 9)},
    **{f"WIN{n}": f"cp{n}" for n in _PAGES},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
# By the significant characters of a name (letters and digits), aliases included.
_NAMES = {
    **{name.replace("_", "").lower(): name for name in CODECS},
    **{f"windows{n}": f"WIN{n}" for n in _PAGES},
    **{f"iso8859{n}": f"LATIN{n}" for n in range(1, 5)},
    **{f"iso8859{n}": f"LATIN{m}" for n, m in ((9, 5), (10, 6), (13, 7), (14, 8), (15, 9), (16, 10))},
    "unicode": "UTF8",
    "koi8": "KOI8R",
}
# PostgreSQL has these too; Tidemill does not.
_OTHER_ENCODINGS = frozenset(
    {
        "big5",
        "sqlascii",
        "eucjp",
        "euccn",
        "euckr",
        "euctw",
        "eucjis2004",
        "gb18030",
        "gbk",
        "johab",
        "mulejava",
    }
    | {"muleinternal", "sjis", "shiftjis", "shiftjis2004", "uhc"}
)


@dataclass(slots=True)
class CopyOptionReader:
    """Reader of the options."""

    incoming: bool
    said: dict[str, str] = field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    position: int | None = None

    def read(self, cursor: TokenCursor) -> None:
        """All options, in either syntax."""
        if cursor.peek_symbol("(") or (
            cursor.peek_words("with") and cursor.following[:2] == (TokenKind.SYMBOL, "(")
        ):
            cursor.accept("with")
            self._new(cursor)
        else:
            cursor.accept("with")
            self._old(cursor)

    def _new(self, cursor: TokenCursor) -> None:
        """( name [value], ... )"""
        cursor.expect_symbol("(")
        while True:
            self.position = cursor.offset + 1
            name = cursor.word()
            if name in _COLUMN_LISTS:
                self._say_columns(name, self._star_or_columns(cursor))
            else:
                value: str | None = None
                if not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
                    token = cursor.advance()
                    if token.kind not in (
                        TokenKind.STRING,
                        TokenKind.WORD,
                        TokenKind.QUOTED,
                        TokenKind.NUMBER,
                    ):
                        cursor.rewind(cursor.index - (token.kind is not TokenKind.END))
                        raise cursor.error()
                    value = token.value
                self._say(name, value)
            if cursor.accept_symbol(")"):
                return
            cursor.expect_symbol(",")

    def _old(self, cursor: TokenCursor) -> None:
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
            elif cursor.peek_any("header", "freeze"):
                self._say(cursor.word(), "true")
            elif cursor.accept("force", "quote"):
                star = cursor.accept_symbol("*")
                self._say_columns("force_quote", ("*",) if star else self._list(cursor))
            elif cursor.accept("force", "not", "null"):
                self._say_columns("force_not_null", self._list(cursor))
            elif cursor.accept("force", "null"):
                self._say_columns("force_null", self._list(cursor))
            else:
                raise cursor.error()

    def _star_or_columns(self, cursor: TokenCursor) -> tuple[str, ...]:
        if cursor.accept_symbol("*"):
            return ("*",)
        return tuple(i.value for i in cursor.idents_in_parentheses())

    def _list(self, cursor: TokenCursor) -> tuple[str, ...]:
        found = [cursor.ident().value]
        while cursor.accept_symbol(","):
            found.append(cursor.ident().value)
        return tuple(found)

    def _say(self, name: str, value: str | None) -> None:
        if name in self.said:
            raise SyntaxError_("conflicting or redundant options", position=self.position)
        if name in ("on_error", "log_verbosity", "reject_limit"):
            raise Unsupported(
                f"COPY option {name.upper()} is not supported",
                hint="The first error ends the COPY, and nothing of it is kept.",
                position=self.position,
            )
        if name not in _SAID_ONCE:
            raise SyntaxError_(f'option "{name}" not recognized', position=self.position)
        if value is None:
            if name not in ("header", "freeze"):
                raise SyntaxError_(f"{name} requires a parameter", position=self.position)
            value = "true"
        if name == "freeze" and self._flag(name, value):
            raise Unsupported("COPY option FREEZE is not supported", position=self.position)
        self.said[name] = self._encoding(value) if name == "encoding" else value

    def _encoding(self, name: str) -> str:
        plain = "".join(c for c in name.lower() if c.isalnum())
        found = _NAMES.get(plain)
        if found is not None:
            return found
        if plain in _OTHER_ENCODINGS:
            raise Unsupported(
                f'COPY encoding "{name}" is not supported',
                hint="Use UTF8 or an encoding of one byte per character.",
                position=self.position,
            )
        raise self._invalid('argument to option "encoding" must be a valid encoding name')

    def _flag(self, name: str, value: str) -> bool:
        lower = value.lower()
        if lower not in _TRUE | _FALSE:
            raise SyntaxError_(f"{name} requires a Boolean value", position=self.position)
        return lower in _TRUE

    def _say_columns(self, name: str, columns: tuple[str, ...]) -> None:
        if name in self.columns:
            raise SyntaxError_("conflicting or redundant options", position=self.position)
        self.columns[name] = columns

    def _invalid(self, text: str) -> InvalidValue:
        return InvalidValue(text, sqlstate=_INVALID, position=self.position)

    # -- all of them together

    def resolve(self) -> CopyClause:
        fmt = self.said.get("format", "text")
        if fmt not in ("text", "csv", "binary"):
            raise self._invalid(f'COPY format "{fmt}" not recognized')
        header, match = self._header()
        self._check_format(fmt, header=header)
        csv = fmt == "csv"
        delimiter = self._one_byte("delimiter", "," if csv else "\t")
        quote = self._one_byte("quote", '"')
        escape = self._one_byte("escape", quote)
        null = self.said.get("null", "" if csv else "\\N")
        default = self.said.get("default")
        if delimiter in "\r\n":
            raise self._invalid("COPY delimiter cannot be newline or carriage return")
        if not csv and delimiter in _NO_DELIMITERS_OF_TEXT:
            raise self._invalid(f'COPY delimiter cannot be "{delimiter}"')
        if csv and delimiter == quote:
            raise self._invalid("COPY delimiter and quote must be different")
        for name, text in (("null", null), ("default", default)):
            if text is not None and fmt != "binary":
                self._check_marker(name, text, delimiter, quote if csv else None)
        if default is not None and default == null:
            raise Unsupported("NULL specification and DEFAULT specification cannot be the same")
        encoding = self.said.get("encoding", "UTF8")
        return CopyClause(
            fmt, delimiter, null, header, match, quote, escape, default, encoding, **self.columns
        )

    def _header(self) -> tuple[bool, bool]:
        """Whether there is a header line, and whether it must name the columns."""
        said = self.said.get("header", "false").lower()
        if said == "match":
            if not self.incoming:
                raise Unsupported("cannot use HEADER MATCH with COPY TO")
            return True, True
        if said not in _TRUE | _FALSE:
            raise SyntaxError_('header requires a Boolean value or "match"', position=self.position)
        return said in _TRUE, False

    def _check_format(self, fmt: str, *, header: bool) -> None:
        """Raises for options that the format or the direction does not have."""
        if fmt == "binary":
            for name in ("delimiter", "null", "default"):
                if name in self.said:
                    raise SyntaxError_(f"cannot specify {name.upper()} in BINARY mode")
            if header:
                raise Unsupported("cannot specify HEADER in BINARY mode")
        for name in ("quote", "escape", *_COLUMN_LISTS):
            if fmt != "csv" and (name in self.said or name in self.columns):
                raise Unsupported(f"COPY {name.upper()} requires CSV mode")
        if self.incoming and "force_quote" in self.columns:
            raise Unsupported("COPY FORCE_QUOTE cannot be used with COPY FROM")
        for name in ("force_not_null", "force_null"):
            if not self.incoming and name in self.columns:
                raise InvalidValue(f"COPY {name.upper()} cannot be used with COPY TO", sqlstate=_INVALID)
        if not self.incoming and "default" in self.said:
            text = self.said["default"]
            if "\r" in text or "\n" in text:
                raise self._invalid("COPY default representation cannot use newline or carriage return")
            raise Unsupported("COPY DEFAULT cannot be used with COPY TO")

    def _check_marker(self, name: str, text: str, delimiter: str, quote: str | None) -> None:
        if "\r" in text or "\n" in text:
            raise self._invalid(f"COPY {name} representation cannot use newline or carriage return")
        what = name.upper()
        code = "22023" if name == "null" else "0A000"
        if delimiter in text:
            raise Unsupported(f"COPY delimiter must not appear in the {what} specification", sqlstate=code)
        if quote is not None and quote in text:
            raise Unsupported(
                f"CSV quote character must not appear in the {what} specification", sqlstate=code
            )

    def _one_byte(self, name: str, default: str) -> str:
        value = self.said.get(name, default)
        if len(value) != 1 or not value.isascii():
            raise Unsupported(f"COPY {name} must be a single one-byte character")
        return value
