"""ENVELOPE DEBEZIUM: each change retracts the old row and adds the new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.envelopes.transaction_metadata import (
    TransactionMetadata,
    accept_transaction_metadata,
)


@dataclass(frozen=True, slots=True)
class Debezium(Envelope):
    """DEBEZIUM [(TRANSACTION METADATA (...))]."""

    kind: ClassVar[str] = "DEBEZIUM"
    transactions: TransactionMetadata | None = None
    offset: int = offset_field()

    @property
    def options(self) -> Sequence[str]:
        return () if self.transactions is None else (str(self.transactions),)


def parse_debezium(cursor: TokenCursor, offset: int) -> Debezium:
    return Debezium(accept_transaction_metadata(cursor), offset)
