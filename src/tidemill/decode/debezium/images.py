"""Changes as ENVELOPE DEBEZIUM needs them: the row before and the row after each, and where it comes from.

`avro_images` and `json_images` read them, and `sources.kafka.changes` makes the rows of a source of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.decode.debezium.positions import SourceFields
from tidemill.types.columns import spans

INSERT, UPDATE, DELETE, READ, TRUNCATE = (ord(letter) for letter in "cudrt")
OPERATIONS = np.array([INSERT, UPDATE, DELETE, READ, TRUNCATE], np.uint8)


@dataclass(frozen=True, slots=True)
class Images:
    """As many rows as values were given. `op` has the letter of the operation, 0 where there is none: a value
    that is missing, or is no change of a row. `before` and `after` are columns; what they have where
    `has_before` or `has_after` is not set is no value. `unfilled` marks rows with a placeholder in place of a
    value that is not known from the row before, and `foreign` those of which a row has another key than the
    message. `errors` (text) has a value where one could not be read, and the rest says nothing there."""

    op: np.ndarray
    before: Sequence[pa.Array]
    after: Sequence[pa.Array]
    has_before: np.ndarray
    has_after: np.ndarray
    source: SourceFields
    unfilled: np.ndarray
    foreign: np.ndarray
    errors: pa.Array | None = None


class ImageReader(Protocol):
    def read(self, values: pa.Array, raw_keys: pa.Array, keys: Sequence[pa.Array]) -> Images:
        """`values` and `raw_keys`: binary; null where the record has none. `keys` are the columns of the
        decoded keys, null where there is none. Raises only what stalls the source."""
        ...


def letters(column: pa.Array) -> np.ndarray:
    """Texts of one letter as numbers; 0 for others."""
    offsets, data = spans(column)
    starts = offsets[:-1]
    if not len(data):
        return np.zeros(len(starts), np.uint8)
    single = np.diff(offsets) == 1
    found = np.where(single, data[np.minimum(starts, len(data) - 1)], np.uint8(0))
    return found if not column.null_count else np.where(column.is_valid(), found, np.uint8(0))
