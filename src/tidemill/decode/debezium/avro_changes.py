"""Debezium changes in Avro, as DEBEZIUM UPSERT needs them: `after`, and whether `op` is a truncate.

`json_changes` does the same for JSON. PostgreSQL does not send a large value that an update left unchanged;
Debezium writes a placeholder instead. Such columns are marked here, and the envelope takes the value from the
old row.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.placeholders import MAP_TEXT, NUMBERS, PLACEHOLDER, UUID
from tidemill.decode.record_values import RecordValues
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import list_parts, map_parts, struct_parts

TRUNCATE = "t"
# A text that clients match.
MISSING_AFTER = "'after' column missing from debezium input"

# Elements of an array that contains the letters of the placeholder.
_SPELT_OUT = (Kind.INT4, Kind.INT8, Kind.DATE)


class AvroChanges:
    """Values as records with `after` and optionally `op`, as the layout has checked."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        names = [column.name for column in decoder.columns]
        self._after = names.index("after")
        self._op = names.index("op") if "op" in names else None
        self._types = [field.type for field in decoder.columns[self._after].type.fields]

    def read(self, values: pa.Array) -> RecordValues:
        decoded = self._decoder.decode(values)
        after = decoded.columns[self._after]
        columns = struct_parts(after)
        failed = None if decoded.errors is None else valid_mask(decoded.errors)
        missing = ~valid_mask(after)
        if failed is not None:
            missing &= ~failed
        truncate = None
        if self._op is not None:
            found = pc.equal(decoded.columns[self._op], TRUNCATE)
            truncate = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        return RecordValues(columns, missing, decoded.errors, truncate, placeholders(columns, self._types))


def placeholders(columns: list[pa.Array], types: list[SqlType]) -> dict[int, np.ndarray] | None:
    """The rows with a placeholder, for each column that has any."""
    marks: dict[int, np.ndarray] = {}
    for at, (column, of) in enumerate(zip(columns, types, strict=True)):
        mark = _marked(column, of)
        if mark is not None and bool(mark.any()):
            marks[at] = mark
    return marks or None


def _marked(column: pa.Array, of: SqlType) -> np.ndarray | None:
    if of.kind in (Kind.TEXT, Kind.VARCHAR, Kind.CHAR):
        equal = pc.equal(column, PLACEHOLDER)
    elif of.kind is Kind.JSONB:
        equal = pc.is_in(column, pa.array([json.dumps(PLACEHOLDER), MAP_TEXT]))
    elif of.kind is Kind.BYTEA:
        equal = pc.equal(column, PLACEHOLDER.encode())
    elif of.kind in (Kind.ARRAY, Kind.LIST) and of.element is not None:
        return _marked_lists(column, of.element)
    elif of.kind is Kind.MAP:
        offsets, keys, _ = map_parts(column)
        return _single(offsets, _true(pc.equal(keys, PLACEHOLDER)))
    else:
        return None
    return _true(equal)


def _marked_lists(column: pa.Array, of: SqlType) -> np.ndarray | None:
    offsets, elements = list_parts(column)
    if of.kind in _SPELT_OUT:
        return _spelt_out(offsets, elements)
    # A single uuid is never too large to be sent.
    inner = _true(pc.equal(elements, UUID.bytes)) if of.kind is Kind.UUID else _marked(elements, of)
    return None if inner is None else _single(offsets, inner)


def _single(offsets: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The lists with exactly one element, which is marked."""
    mark = np.zeros(len(offsets) - 1, np.bool_)
    if inner.any():
        single = np.flatnonzero(np.diff(offsets) == 1)
        mark[single] = inner[offsets[single]]
    return mark


def _spelt_out(offsets: np.ndarray, elements: pa.Array) -> np.ndarray:
    """The lists of numbers or dates whose elements are the letters of the placeholder."""
    mark = np.zeros(len(offsets) - 1, np.bool_)
    likely = np.flatnonzero(np.diff(offsets) == len(NUMBERS))
    if likely.size:
        at = offsets[likely][:, None] + np.arange(len(NUMBERS))
        days = elements.cast(pa.int32()) if pa.types.is_date(elements.type) else elements
        numbers = pc.fill_null(days, 0).to_numpy(zero_copy_only=False)[at]
        mark[likely] = (numbers == np.array(NUMBERS)).all(axis=1)
    return mark


def _true(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)
