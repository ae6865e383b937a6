"""TRANSACTION METADATA (SOURCE name, COLLECTION 'schema.table'): an option of the envelopes of Debezium."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import SyntaxError_
from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor

_HINT = "Write (TRANSACTION METADATA (SOURCE name, COLLECTION 'schema.table'))."


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The source of the connector's transaction topic, and the name of this table in it."""

    source: Name
    collection: str
    offset: int = offset_field()

    def __str__(self) -> str:
        return f"TRANSACTION METADATA (SOURCE {self.source}, COLLECTION {quote_literal(self.collection)})"


def accept_transaction_metadata(cursor: TokenCursor) -> TransactionMetadata | None:
    """The options of the envelope in parentheses, if there are any."""
    if not cursor.accept_symbol("("):
        return None
    offset = cursor.offset
    cursor.expect("transaction", hint=_HINT)
    cursor.expect("metadata", hint=_HINT)
    cursor.expect_symbol("(", _HINT)
    source: Name | None = None
    collection: str | None = None
    while True:
        position = cursor.offset + 1
        if cursor.accept("source"):
            _refuse_twice("SOURCE", source, position)
            source = cursor.name()
        elif cursor.accept("collection"):
            _refuse_twice("COLLECTION", collection, position)
            collection = cursor.string()
        else:
            raise cursor.error(_HINT)
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")", _HINT)
    cursor.expect_symbol(")", _HINT)
    if source is None or collection is None:
        missing = "SOURCE" if source is None else "COLLECTION"
        raise SyntaxError_(f"TRANSACTION METADATA lacks {missing}", hint=_HINT, position=offset + 1)
    return TransactionMetadata(source, collection, offset)


def _refuse_twice(name: str, found: object, position: int) -> None:
    if found is not None:
        raise SyntaxError_(f"{name} specified more than once", hint=_HINT, position=position)
