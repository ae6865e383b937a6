"""Columns of client texts: the common part of the decoders of this package.

A decoder reads its column in two steps. A vectorised step reads the usual spelling. PostgreSQL's full input
rules read the remaining values, one by one. A column of plain values thus runs no Python code per row, and an
unusual value is still read as PostgreSQL reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.columns import spans
from tidemill.types.kernels import pc

# The characters that PostgreSQL's isspace() skips around a value.
BLANKS = " \t\n\v\f\r"


class InvalidField(InvalidValue):
    """An InvalidValue with its row in the decoded column, for COPY's line numbers."""

    def __init__(self, cause: InvalidValue, row: int) -> None:
        super().__init__(cause.primary, detail=cause.detail, hint=cause.hint, sqlstate=cause.sqlstate)
        self.row = row


def as_text(array: pa.Array) -> pa.Array:
    """A client's bytes as UTF-8 strings. Refuses other bytes, and the zero byte, as PostgreSQL does."""
    if not pa.types.is_string(array.type):
        try:
            array = array.cast(pa.string())
        except pa.ArrowInvalid:
            _raise_bad_utf8(array)
    offsets, data = spans(array)
    if not bool(data[offsets[0] : offsets[-1]].all()):
        row = int(pc.index(pc.match_substring(array.cast(pa.binary()), b"\0"), True).as_py())
        if row >= 0:
            bad = InvalidValue('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
            raise InvalidField(bad, row)
    return array


def _raise_bad_utf8(array: pa.Array) -> None:
    for row, value in enumerate(array.to_pylist()):
        if value is None:
            continue
        try:
            value.decode("utf-8")
        except UnicodeDecodeError as error:
            # PostgreSQL shows as many bytes as the first byte announces.
            claimed = 4 if value[error.start] >= 0xF0 else 3 if value[error.start] >= 0xE0 else 2
            claimed = 1 if value[error.start] < 0xC0 else claimed
            shown = " ".join(f"0x{b:02x}" for b in value[error.start : error.start + claimed])
            bad = InvalidValue(f'invalid byte sequence for encoding "UTF8": {shown}', sqlstate="22021")
            raise InvalidField(bad, row) from None


def decode_rows(
    texts: pa.Array, rows: np.ndarray, parse: Callable[[Any], Any], target: pa.DataType
) -> pa.Array:
    """`parse` each of the given rows. The error of the first invalid one contains its row."""
    values: list[Any] = []
    for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            values.append(parse(text))
        except InvalidField:
            raise
        except InvalidValue as error:
            raise InvalidField(error, row) from None
    return pa.array(values, target)


def decode(
    texts: pa.Array,
    target: pa.DataType,
    *,
    fast: Callable[[pa.Array], pa.Array],
    regular: str,
    parse: Callable[[str], Any],
) -> pa.Array:
    """A column of texts as `target`: all of it with `fast` if possible; else the values that match the
    pattern `regular` with `fast`, and the rest with `parse`. `fast` raises ArrowInvalid for values that it
    does not accept."""
    try:
        return fast(texts)
    except pa.ArrowInvalid:
        pass
    trimmed = pc.ascii_trim(texts, BLANKS)
    matches = pc.fill_null(pc.match_substring_regex(trimmed, regular), True)
    try:
        result = fast(pc.if_else(matches, trimmed, pa.scalar(None, texts.type)))
    except pa.ArrowInvalid:
        matches = texts.is_null()
        result = pa.nulls(len(texts), target)
    odd = pc.invert(matches)
    rows = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    return pc.replace_with_mask(result, odd, decode_rows(texts, rows, parse, target))
