"""Text output of arrays, lists, maps and records.

The texts of the children are computed first, as one column, then quoted and joined per row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.types.arrow import element_type
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import list_parts, sorted_map_parts, struct_parts

# Encodes the children: `text.encode_text` with the session's time zone.
Encode = Callable[[pa.Array, SqlType], pa.Array]

_ARRAY_SPECIAL = r'[{}",\\ \t\n\v\f\r]'
_MAP_SPECIAL = r'[{}",\\=> \t\n\v\f\r]'
_RECORD_SPECIAL = r'[()",\\ \t\n\v\f\r]'

# Kinds whose text never needs quotes inside braces.
_BARE = {
    Kind.BOOL,
    Kind.INT2,
    Kind.INT4,
    Kind.INT8,
    Kind.UINT2,
    Kind.UINT4,
    Kind.UINT8,
    Kind.FLOAT4,
    Kind.FLOAT8,
    Kind.NUMERIC,
    Kind.TIME,
    Kind.UUID,
    Kind.OID,
    Kind.MZ_TIMESTAMP,
}
_BRACED = {Kind.LIST, Kind.MAP}


def array_text(array: pa.Array, t: SqlType, encode: Encode) -> pa.Array:
    """`{1,2,NULL,"a b"}`. A nested list is in braces without quotes; any other element with braces is
    quoted."""
    element = element_type(t)
    offsets, children = list_parts(array)
    nested = t.kind is Kind.LIST and element.kind in _BRACED
    texts = _braced_items(encode(children, element), element, nested, _ARRAY_SPECIAL)
    return _joined(array, offsets, texts, "{", "}")


def map_text(array: pa.Array, t: SqlType, encode: Encode) -> pa.Array:
    """`{a=>1,"b c"=>NULL}`, in the order of the keys."""
    element = element_type(t)
    offsets, keys, values = sorted_map_parts(array)
    key_texts = _quote(keys.cast(pa.binary()), _MAP_SPECIAL)
    value_texts = _braced_items(encode(values, element), element, element.kind in _BRACED, _MAP_SPECIAL)
    return _joined(array, offsets, pc.binary_join_element_wise(key_texts, value_texts, b"=>"), "{", "}")


def record_text(array: pa.Array, t: SqlType, encode: Encode) -> pa.Array:
    """`(1,,x)`: an empty field is NULL, an empty text is two quotes. Quotes and backslashes inside are
    doubled."""
    fields: list[pa.Array] = []
    for values, column in zip(struct_parts(array), t.fields, strict=True):
        texts = encode(values, column.type)
        if column.type.kind not in _BARE:
            special = pc.or_(pc.match_substring_regex(texts, _RECORD_SPECIAL), pc.equal(texts, b""))
            doubled = pc.replace_substring_regex(texts, r'(["\\])', r"\1\1")
            texts = pc.if_else(special, pc.binary_join_element_wise(b'"', doubled, b'"', b""), texts)
        fields.append(texts)
    if fields:
        inner = pc.binary_join_element_wise(*fields, b",", null_handling="replace", null_replacement=b"")
    else:
        inner = pa.array([b""] * len(array), pa.binary())
    return pc.if_else(array.is_valid(), pc.binary_join_element_wise(b"(", inner, b")", b""), _NULL)


_NULL = pa.scalar(None, pa.binary())


def _braced_items(texts: pa.Array, t: SqlType, nested: bool, special: str) -> pa.Array:
    if not nested and t.kind not in _BARE:
        texts = _quote(texts, special)
    return pc.fill_null(texts, b"NULL")


def _quote(texts: pa.Array, special: str) -> pa.Array:
    """The text, quoted if it has a special character, is empty, or reads as NULL."""
    pattern = rf"^$|^[nN][uU][lL][lL]$|{special}"
    # RE2's $ is the end of the text, not of a line, as needed here.
    needs = pc.match_substring_regex(texts, pattern)
    escaped = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
    return pc.if_else(needs, pc.binary_join_element_wise(b'"', escaped, b'"', b""), texts)


def _joined(array: pa.Array, offsets: np.ndarray, texts: pa.Array, left: str, right: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), texts)
    joined = pc.binary_join_element_wise(left.encode(), pc.binary_join(lists, b","), right.encode(), b"")
    if array.null_count:
        joined = pc.if_else(pa.array(valid_mask(array)), joined, _NULL)
    return joined
