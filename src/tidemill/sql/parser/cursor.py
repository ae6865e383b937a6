"""The token cursor that every statement parser reads from.

A `TokenCursor` points at a token of the whole text and never passes the end of its statement. `accept_*`
advance if the token matches and return whether it did. `expect_*` and the readers of names and values advance
or raise PostgreSQL's syntax error at the current token.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import Expr, Ident, Name
from tidemill.sql.names import RESERVED, RESERVED_FUNCTION_OR_TYPE, quote_ident, quote_literal
from tidemill.sql.parser import sqlglot_parser
from tidemill.sql.parser.key_words import quote_hint
from tidemill.sql.parser.typename import type_end
from tidemill.sql.tokens import Token, TokenKind, syntax_error

_OPENING = frozenset({"(", "["})
_TIGHT_BEFORE = frozenset({"(", ")", ",", "[", "]", ".", "=>"})
_TIGHT_AFTER = frozenset({"(", "[", ".", ">", ","})


class TokenCursor:
    """A position in one statement."""

    __slots__ = ("_at", "_stop", "_tokens", "text")

    def __init__(self, text: str, tokens: Sequence[Token], start: int, stop: int) -> None:
        self.text = text
        self._tokens = tokens  # of the whole text; the last is END
        self._at = start
        self._stop = stop  # index of the token after the statement: a semicolon, or END

    # -- looking

    @property
    def index(self) -> int:
        return self._at

    @property
    def stop(self) -> int:
        """The index of the token after the statement."""
        return self._stop

    @property
    def token(self) -> Token:
        """The current token; at the statement's end a token of kind END at the position of the next token."""
        token = self._tokens[self._at]
        return token if self._at < self._stop else Token(TokenKind.END, "", token.start, token.end)

    @property
    def following(self) -> Token:
        """The token after `token`, or the same END."""
        at = min(self._at + 1, self._stop)
        token = self._tokens[at]
        return token if at < self._stop else Token(TokenKind.END, "", token.start, token.end)

    @property
    def offset(self) -> int:
        return self._tokens[self._at].start

    @property
    def at_end(self) -> bool:
        return self._at >= self._stop

    def error(self, hint: str | None = None) -> TidemillError:
        token = self._tokens[self._at]
        error = syntax_error(self.text, token.start, token.end)
        error.hint = hint
        return error

    def unsupported(self, what: str, *, hint: str | None = None) -> Unsupported:
        return Unsupported(f"{what} is not supported", hint=hint, position=self.offset + 1)

    def peek_words(self, *words: str) -> bool:
        """Whether exactly these key words follow."""
        for i, word in enumerate(words):
            at = self._at + i
            if (
                at >= self._stop
                or self._tokens[at].kind is not TokenKind.WORD
                or self._tokens[at].value != word
            ):
                return False
        return True

    def peek_symbol(self, symbol: str, ahead: int = 0) -> bool:
        at = self._at + ahead
        return (
            at < self._stop and self._tokens[at].kind is TokenKind.SYMBOL and self._tokens[at].value == symbol
        )

    def peek_any(self, *words: str) -> bool:
        """Whether one of these key words follows."""
        token = self.token
        return token.kind is TokenKind.WORD and token.value in words

    def peek_last(self, *words: str) -> bool:
        """Whether the statement ends with these key words."""
        start = self._stop - len(words)
        return start >= self._at and self.fork(start).peek_words(*words)

    def fork(self, at: int | None = None) -> TokenCursor:
        """Another cursor on the same statement, at this position or at index `at`."""
        return TokenCursor(self.text, self._tokens, self._at if at is None else at, self._stop)

    # -- moving

    def advance(self) -> Token:
        token = self.token
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        if not self.peek_words(*words):
            return False
        self._at += len(words)
        return True

    def accept_symbol(self, symbol: str) -> bool:
        if not self.peek_symbol(symbol):
            return False
        self._at += 1
        return True

    def rewind(self, at: int) -> None:
        self._at = at

    def expect(self, *words: str, hint: str | None = None) -> None:
        for word in words:
            if not self.accept(word):
                raise self.error(hint)

    def expect_symbol(self, symbol: str, hint: str | None = None) -> None:
        if not self.accept_symbol(symbol):
            raise self.error(hint)

    def expect_end(self) -> None:
        if not self.at_end:
            raise self.error()

    # -- names

    def ident(self, hint: str | None = None) -> Ident:
        """A name of a column, table, cursor, ...: quoted, or a word that is not reserved."""
        token = self.token
        if token.kind is TokenKind.QUOTED or (
            token.kind is TokenKind.WORD
            and token.value not in RESERVED
            and token.value not in RESERVED_FUNCTION_OR_TYPE
        ):
            self._at += 1
            return Ident(token.value, token.start)
        raise self.error(hint or quote_hint(self._tokens, self._at))

    def word(self) -> str:
        """Any word or quoted name, folded."""
        token = self.token
        if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
            raise self.error()
        self._at += 1
        return token.value

    def name(self, max_parts: int = 3) -> Name:
        offset = self.offset
        parts = [self.ident().value]
        while self.accept_symbol("."):
            parts.append(self.word())
        if len(parts) > max_parts:
            dotted = ".".join(quote_ident(p) for p in parts)
            raise SyntaxError_(
                f"improper qualified name (too many dotted names): {dotted}", position=offset + 1
            )
        return Name(tuple(parts), offset)

    def names(self) -> tuple[Name, ...]:
        found = [self.name()]
        while self.accept_symbol(","):
            found.append(self.name())
        return tuple(found)

    def idents_in_parentheses(self, hint: str | None = None) -> tuple[Ident, ...]:
        self.expect_symbol("(", hint)
        found = [self.ident(hint)]
        while self.accept_symbol(","):
            found.append(self.ident(hint))
        self.expect_symbol(")", hint)
        return tuple(found)

    def accept_if_not_exists(self) -> bool:
        return self.accept("if", "not", "exists")

    def accept_if_exists(self) -> bool:
        return self.accept("if", "exists")

    # -- values

    def string(self, hint: str | None = None) -> str:
        token = self.token
        if token.kind is not TokenKind.STRING:
            raise self.error(hint)
        self._at += 1
        return token.value

    def integer(self, hint: str | None = None) -> int:
        token = self.token
        if token.kind is not TokenKind.NUMBER or not token.value.isdigit() or len(token.value) > 18:
            raise self.error(hint)
        self._at += 1
        return int(token.value)

    def type_text(self) -> str:
        """A type name as canonical text."""
        end = type_end(self._tokens, self._at)
        if end is None or end > self._stop:
            raise self.error()
        start, self._at = self._at, end
        return spell(self._tokens[start:end])

    def skip_rest(self) -> None:
        """Move to the end of the statement."""
        self._at = self._stop

    # -- expressions and bodies

    def find(self, *stops: str) -> int:
        """The index of the first of these words or symbols outside parentheses, or of an unmatched closing
        parenthesis, or of the end. The FROM of IS DISTINCT FROM does not count.
        """
        depth = 0
        at = self._at
        while at < self._stop:
            kind, value, _, _ = self._tokens[at]
            if kind is TokenKind.SYMBOL or kind is TokenKind.WORD:
                if (
                    not depth
                    and value in stops
                    and not (value == "from" and self._tokens[at - 1].key == "distinct")
                ):
                    return at
                if value in _OPENING:
                    depth += 1
                elif value in (")", "]"):
                    depth -= 1
                    if depth < 0:
                        return at
            at += 1
        return at

    def find_word(self, *words: str) -> Token | None:
        """The first of these words outside parentheses, without moving."""
        at = self.find(*words)
        token = self._tokens[at]
        return token if at < self._stop and token.kind is TokenKind.WORD else None

    def find_behind_parenthesis(self, *words: str) -> tuple[int, Token] | None:
        """The first of these words directly after a closing parenthesis and outside any, and its index;
        without moving.
        """
        start = self._at
        try:
            while (at := self.find(*words)) < self._stop and self._tokens[at].kind is TokenKind.WORD:
                if self._tokens[at - 1].key == ")":
                    return at, self._tokens[at]
                self._at = at + 1
            return None
        finally:
            self._at = start

    def cut(self, end: int) -> tuple[list[Token], int]:
        """The tokens up to index `end`, closed with END, and the index of the first; moves there."""
        start, self._at = self._at, end
        after = self._tokens[end]
        return [*self._tokens[start:end], Token(TokenKind.END, "", after.start, after.end)], start

    def sub(self, end: int) -> TokenCursor:
        """A cursor over the tokens up to index `end`; this one moves there."""
        start, self._at = self._at, end
        return TokenCursor(self.text, self._tokens, start, end)

    def expression(self, *stops: str) -> Expr:
        """An expression (at least one token) up to one of `stops`, an unmatched closing parenthesis, or the
        end.
        """
        offset = self.offset
        start = self._at
        if self.at_end:
            raise self.error()
        self._at += self.token.key not in _OPENING
        end = self.find(*stops)
        self._at = start
        tokens, base = self.cut(end)
        return Expr(sqlglot_parser.parse_scalar(self.text, tokens, base), offset)

    def items(self) -> tuple[Expr, ...]:
        """A select list up to the end."""
        tokens, base = self.cut(self._stop)
        return tuple(Expr(t, tokens[0].start) for t in sqlglot_parser.parse_list(self.text, tokens, base))


def spell(tokens: Sequence[Token]) -> str:
    """Tokens as text: words folded, separated by one blank except inside type names' brackets and dotted
    names.
    """
    out = ""
    for kind, value, _, _ in tokens:
        piece = _spelling(kind, value)
        tight = not out or piece in _TIGHT_BEFORE or out[-1] in _TIGHT_AFTER
        out += piece if tight else f" {piece}"
    return out


def _spelling(kind: TokenKind, value: str) -> str:
    if kind is TokenKind.QUOTED:
        return '"' + value.replace('"', '""') + '"'
    if kind is TokenKind.STRING:
        return quote_literal(value)
    if kind is TokenKind.PARAM:
        return f"${value}"
    if kind is TokenKind.BITS:
        return f"{value[0]}'{value[1:]}'"
    return value
