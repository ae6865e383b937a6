"""Text input of arrays, lists, maps and records.

Each row is split into the texts of its elements (`literals`). All elements of the column are decoded as one
column, from which the rows are rebuilt. The decoder of the element thus works on whole columns at every
depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.columns import valid_mask
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import list_array, map_array, struct_array
from tidemill.types.wire.columns import InvalidField
from tidemill.types.wire.literals import split_array, split_list, split_map, split_record

# Decodes the elements: `text.decode_text` with the session's time zone.
Decode = Callable[[pa.Array, SqlType], pa.Array]


def decode(texts: pa.Array, t: SqlType, decode_child: Decode) -> pa.Array:
    """A column of literals in storage form."""
    if t.kind is Kind.RECORD:
        return _decode_records(texts, t, decode_child)
    if t.kind is Kind.MAP:
        return _decode_maps(texts, t, decode_child)
    split = split_array if t.kind is Kind.ARRAY else _list_splitter(t)
    pieces, offsets = _split_rows(texts, split)
    elements = _decode_pieces(pieces, offsets, element_type(t), decode_child)
    return list_array(elements, offsets, valid_mask(texts), arrow_type(t))


def _list_splitter(t: SqlType) -> Callable[[str], list[str | None]]:
    nested = element_type(t).kind in (Kind.LIST, Kind.MAP)
    return lambda text: split_list(text, nested)


def _split_rows(texts: pa.Array, split: Callable[[str], Any]) -> tuple[list[Any], np.ndarray]:
    """The elements of all rows in one list, and the start of each row."""
    pieces: list[Any] = []
    offsets = np.zeros(len(texts) + 1, dtype=np.int32)
    for row, text in enumerate(texts.to_pylist()):
        if text is not None:
            try:
                pieces.extend(split(text))
            except InvalidValue as error:
                raise InvalidField(error, row) from None
        offsets[row + 1] = len(pieces)
    return pieces, offsets


def _decode_pieces(
    pieces: list[str | None], offsets: np.ndarray, t: SqlType, decode_child: Decode
) -> pa.Array:
    try:
        return decode_child(pa.array(pieces, pa.string()), t)
    except InvalidField as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise InvalidField(error, row) from None


def _decode_maps(texts: pa.Array, t: SqlType, decode_child: Decode) -> pa.Array:
    value = element_type(t)
    nested = value.kind in (Kind.LIST, Kind.MAP)
    pairs, offsets = _split_rows(texts, lambda text: split_map(text, nested))
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = _decode_pieces([v for _, v in pairs], offsets, value, decode_child)
    return map_array(keys, values, offsets, valid_mask(texts), arrow_type(t))


def _decode_records(texts: pa.Array, t: SqlType, decode_child: Decode) -> pa.Array:
    width = len(t.fields)
    rows: list[list[str | None]] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            rows.append([None] * width if text is None else split_record(text, width))
        except InvalidValue as error:
            raise InvalidField(error, row) from None
    fields = [
        decode_child(pa.array([values[i] for values in rows], pa.string()), column.type)
        for i, column in enumerate(t.fields)
    ]
    return struct_array(fields, valid_mask(texts), arrow_type(t))
