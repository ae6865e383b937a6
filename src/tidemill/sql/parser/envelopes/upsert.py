"""ENVELOPE UPSERT: the row of a key is its last message, or the greatest one by ORDER BY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tidemill.errors import SyntaxError_
from tidemill.sql.ast.base import Ident, offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import TokenKind

_HINT = (
    "In the parentheses of UPSERT stand ORDER BY (column, ...) and VALUE DECODING ERRORS = (INLINE); for "
    "objects KEY (column, ...)."
)
_KEY = "Write KEY (column, ...)."
_ORDER = "Write ORDER BY (column, ...), with columns that are included: TIMESTAMP, OFFSET."
_INLINE = "Write VALUE DECODING ERRORS = (INLINE), or (INLINE AS name)."
# The default name of the column of inlined errors.
_ERROR_COLUMN = "error"


@dataclass(frozen=True, slots=True)
class Upsert(Envelope):
    """UPSERT [(KEY (columns), ORDER BY (columns), VALUE DECODING ERRORS = (INLINE AS column))]."""

    kind: ClassVar[str] = "UPSERT"
    order_by: tuple[Ident, ...] = ()
    inline_errors: Ident | None = None  # the column that value errors go to
    key: tuple[Ident, ...] = ()  # of objects, whose records have no keys of their own
    offset: int = offset_field()

    @property
    def options(self) -> Sequence[str]:
        order = [f"ORDER BY ({', '.join(map(str, self.order_by))})"] if self.order_by else []
        inline = self.inline_errors
        if self.key:
            order.insert(0, f"KEY ({', '.join(map(str, self.key))})")
        return [*order, *([] if inline is None else [f"VALUE DECODING ERRORS = (INLINE AS {inline})"])]


def parse_upsert(cursor: TokenCursor, offset: int) -> Upsert:
    envelope = Upsert(offset=offset)
    while cursor.accept_symbol("("):
        envelope = _clause(cursor, envelope)
        while cursor.accept_symbol(","):
            envelope = _clause(cursor, envelope)
        cursor.expect_symbol(")", _HINT)
    if cursor.peek_any("order") or cursor.peek_words("value", "decoding"):
        raise cursor.error(_HINT)
    return envelope


def _clause(cursor: TokenCursor, envelope: Upsert) -> Upsert:
    position = cursor.offset + 1
    if cursor.accept("order", "by"):
        if envelope.order_by:
            raise SyntaxError_("ORDER BY specified more than once", position=position)
        return replace(envelope, order_by=_order_by(cursor))
    if cursor.accept("key"):
        if envelope.key:
            raise SyntaxError_("KEY specified more than once", position=position)
        return replace(envelope, key=cursor.idents_in_parentheses(_KEY))
    if cursor.accept("value", "decoding", "errors"):
        if envelope.inline_errors is not None:
            raise SyntaxError_("VALUE DECODING ERRORS specified more than once", position=position)
        return replace(envelope, inline_errors=_inline(cursor))
    raise cursor.error(_HINT)


def _order_by(cursor: TokenCursor) -> tuple[Ident, ...]:
    """(column [ASC], ...) [ASC]. The columns are often named like key words: TIMESTAMP, OFFSET."""
    if not cursor.accept_symbol("("):
        raise SyntaxError_(
            "the columns of ENVELOPE UPSERT (ORDER BY ...) must stand in parentheses",
            hint="Write ENVELOPE UPSERT (ORDER BY (TIMESTAMP, OFFSET)).",
            position=cursor.offset + 1,
        )
    found = [_order_column(cursor)]
    while cursor.accept_symbol(","):
        found.append(_order_column(cursor))
    cursor.expect_symbol(")", _ORDER)
    _ascending(cursor)
    return tuple(found)


def _order_column(cursor: TokenCursor) -> Ident:
    offset = cursor.offset
    if cursor.token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
        raise cursor.error(_ORDER)
    column = Ident(cursor.word(), offset)
    _ascending(cursor)
    return column


def _ascending(cursor: TokenCursor) -> None:
    if cursor.peek_any("desc"):
        raise SyntaxError_(
            "ENVELOPE UPSERT (ORDER BY ...) is always ascending: DESC is not possible",
            hint="Leave DESC out: the record that is greatest by the columns wins.",
            position=cursor.offset + 1,
        )
    cursor.accept("asc")


def _inline(cursor: TokenCursor) -> Ident:
    """[=] [(] INLINE [AS name] [)]"""
    cursor.accept_symbol("=")
    closed = cursor.accept_symbol("(")
    cursor.expect("inline", hint=_INLINE)
    column = cursor.ident() if cursor.accept("as") else Ident(_ERROR_COLUMN, cursor.offset)
    if closed:
        cursor.expect_symbol(")", _INLINE)
    return column
