"""Values of records: the columns of a row, a missing row, or more.

Called by `sources.kafka` in the tasks. The envelope selects how a value is read: unchanged (`PlainValues`),
or as a Debezium change (`debezium`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.types.columns import valid_mask


@dataclass(frozen=True, slots=True)
class RecordValues:
    """As many rows as values. `missing`: the record has no row, it deletes. `errors` (text) has a value for
    each one that could not be read; None without errors. `truncate`: the record empties the relation.
    `unavailable` marks, per position among `columns`, the rows whose value was not sent because it did not
    change; `partial` marks those whose one column, of JSON, lacks members for that reason."""

    columns: Sequence[pa.Array]
    missing: np.ndarray
    errors: pa.Array | None = None
    truncate: np.ndarray | None = None
    unavailable: dict[int, np.ndarray] | None = None
    partial: np.ndarray | None = None


class ValueReader(Protocol):
    def read(self, values: pa.Array) -> RecordValues:
        """`values`: binary; null for a record without a value. Raises only errors that stall the source."""
        ...


class PlainValues:
    """The value is the row."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def read(self, values: pa.Array) -> RecordValues:
        decoded = self._decoder.decode(values)
        return RecordValues(decoded.columns, ~valid_mask(values), decoded.errors)
