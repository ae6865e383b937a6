"""Rows in JSON: an object of each row, whose values are those that PostgreSQL's to_json gives.

Numbers, booleans, arrays and objects are JSON's; jsonb stands there as it is; all else is text, timestamps in
the form of ISO 8601. NaN and the infinities of floating point are text, because JSON has no numbers for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.sinks.rows.pieces import constant, joined, runs
from tidemill.types.arrow import element_type
from tidemill.types.columns import contiguous
from tidemill.types.kernels import pc
from tidemill.types.model import Column, Kind, SqlType
from tidemill.types.nested import list_parts, sorted_map_parts, struct_parts
from tidemill.types.wire.text import encode_text

_NUMBERS = {
    Kind.INT2,
    Kind.INT4,
    Kind.INT8,
    Kind.UINT2,
    Kind.UINT4,
    Kind.UINT8,
    Kind.NUMERIC,
    Kind.OID,
    Kind.MZ_TIMESTAMP,
}
_NULL = pa.scalar(b"null", pa.binary())
# What JSON cannot have in a text as it is, apart from the backslash and the quotation mark.
_CONTROLS = {chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}
_ODD = r'[\x00-\x1f"\\]'


def object_bytes(columns: Sequence[pa.Array | pa.ChunkedArray], of: Sequence[Column]) -> pa.Array:
    """The object of each row; all columns are in it."""
    return _object([_field(contiguous(a), c.type) for a, c in zip(columns, of, strict=True)], of)


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings; null where null."""
    texts = texts.cast(pa.string())
    if pc.any(pc.match_substring_regex(texts, _ODD)).as_py():
        texts = pc.replace_substring(texts, "\\", "\\\\")
        texts = pc.replace_substring(texts, '"', '\\"')
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
            for sign, shown in _CONTROLS.items():
                texts = pc.replace_substring(texts, sign, shown)
    return joined(b'"', texts.cast(pa.binary()), b'"')


def _object(fields: Sequence[pa.Array], of: Sequence[Column]) -> pa.Array:
    parts: list[pa.Array | bytes] = []
    for field, column in zip(fields, of, strict=True):
        name = json.dumps(column.name, ensure_ascii=False).encode()
        parts += [(b"," if parts else b"{") + name + b":", field]
    return joined(*parts, b"}")


def _field(array: pa.Array, t: SqlType) -> pa.Array:
    values = _values(array, t)
    return pc.if_else(array.is_valid(), values, _NULL) if array.null_count else values


def _values(array: pa.Array, t: SqlType) -> pa.Array:
    """The JSON of the values; anything where the column is null."""
    kind = t.kind
    if kind in _NUMBERS:
        return encode_text(array, t)
    if kind is Kind.JSONB:
        return array.cast(pa.binary())
    if kind is Kind.BOOL:
        return pc.if_else(array, pa.scalar(b"true"), pa.scalar(b"false"))
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        texts = encode_text(array, t)
        finite = pc.is_finite(array)
        return texts if pc.all(finite).as_py() is not False else pc.if_else(finite, texts, quoted(texts))
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        texts = encode_text(array, t).cast(pa.string())
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
        if kind is Kind.TIMESTAMPTZ:
            texts = pc.replace_substring(texts, "+00", "+00:00", max_replacements=1)
        return quoted(texts)
    if kind in (Kind.ARRAY, Kind.LIST):
        offsets, elements = list_parts(array)
        return _enclosed(b"[", _field(elements, element_type(t)), offsets, b"]")
    if kind is Kind.MAP:
        offsets, keys, values = sorted_map_parts(array)
        return _enclosed(b"{", joined(quoted(keys), b":", _field(values, element_type(t))), offsets, b"}")
    if kind is Kind.RECORD:
        fields = [_field(f, c.type) for f, c in zip(struct_parts(array), t.fields, strict=True)]
        return _object(fields, t.fields) if fields else constant(b"{}", len(array))
    return quoted(encode_text(array, t))


def _enclosed(opening: bytes, items: pa.Array, offsets: np.ndarray, closing: bytes) -> pa.Array:
    """The items of each row with commas between them."""
    if not len(items):
        return constant(opening + closing, len(offsets) - 1)
    first = np.zeros(len(items) + 1, np.bool_)
    first[offsets] = True
    commas = pc.if_else(pa.array(first[:-1]), pa.scalar(b""), pa.scalar(b","))
    return joined(opening, runs(joined(commas, items), offsets), closing)
