"""Row identity: defines equal rows, once, for every consolidation, comparison and hash.

Called by `persist` (compaction, snapshots), `query` and the envelopes of sources. NaN = NaN, -0.0 = 0.0,
numeric compares by value, jsonb by its canonical text, a map regardless of the order of its entries, and NULL
= NULL.

`row_hash` returns the same value here and in Spark (`spark_hash`). Equal rows have equal hashes. No code
relies on the converse: `consolidate` compares rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_type, element_type
from tidemill.types.columns import contiguous, numbers, valid_mask
from tidemill.types.hash import float_bits, fold, hash_column
from tidemill.types.json import canonical_json_array
from tidemill.types.model import Kind, RelationDesc, SqlType
from tidemill.types.names import physical_names
from tidemill.types.nested import (
    list_array,
    list_parts,
    map_array,
    sorted_map_parts,
    struct_array,
    struct_parts,
)
from tidemill.types.same import same_rows


def canonical(array: pa.Array | pa.ChunkedArray, t: SqlType) -> pa.Array:
    """The column with one form of each value: one NaN, one zero, canonical jsonb, maps in the order of their
    keys. For computed values. Values that `wire` decodes are already canonical, except for the sign of
    zero."""
    column = contiguous(array)
    if column.type != arrow_type(t):
        raise Internal(f"a column of type {t} lies as {column.type}, not as {arrow_type(t)}")
    if t.kind is Kind.JSONB:
        return canonical_json_array(column)
    valid = valid_mask(column)
    if t.kind in (Kind.ARRAY, Kind.LIST):
        offsets, elements = list_parts(column)
        return list_array(canonical(elements, element_type(t)), offsets, valid, column.type)
    if t.kind is Kind.MAP:
        offsets, keys, values = sorted_map_parts(column)
        return map_array(keys, canonical(values, element_type(t)), offsets, valid, column.type)
    if t.kind is Kind.RECORD:
        fields = [canonical(f, c.type) for f, c in zip(struct_parts(column), t.fields, strict=True)]
        return struct_array(fields, valid, column.type)
    return _plain_floats(column)


def canonical_table(table: pa.Table, desc: RelationDesc, names: Sequence[str] | None = None) -> pa.Table:
    """`canonical` for the relation's columns (under `names`, by default the physical ones). Other columns do
    not change."""
    for name, t in zip(physical_names(desc) if names is None else names, desc.types, strict=True):
        i = table.schema.get_field_index(name)
        table = table.set_column(i, table.schema.field(i), canonical(table.column(i), t))
    return table


def _plain_floats(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    wide = pa.types.is_float64(column.type)
    bits = float_bits(numbers(column, np.float64 if wide else np.float32), np.int64 if wide else np.int32)
    values = bits.view(np.float64 if wide else np.float32)
    return pa.array(values, column.type, mask=~valid_mask(column), from_pandas=False)


def comparable(column: pa.Array) -> pa.Array:
    """The input of `same_rows`: maps in order, at any depth. (Stored jsonb is canonical.)"""
    t = column.type
    valid = valid_mask(column)
    if pa.types.is_map(t):
        offsets, keys, values = sorted_map_parts(column)
        return map_array(keys, comparable(values), offsets, valid, t)
    if pa.types.is_list(t) and pa.types.is_nested(t.value_type):
        offsets, elements = list_parts(column)
        return list_array(comparable(elements), offsets, valid, t)
    if pa.types.is_struct(t) and any(pa.types.is_nested(t.field(i).type) for i in range(t.num_fields)):
        return struct_array([comparable(field) for field in struct_parts(column)], valid, t)
    return column


def row_hash(
    rows: pa.Table | pa.RecordBatch, desc: RelationDesc, names: Sequence[str] | None = None
) -> np.ndarray:
    """One int64 per row over the relation's columns (under `names`, by default the physical ones)."""
    chosen = physical_names(desc) if names is None else names
    hashes = [hash_column(rows.column(name)) for name in chosen]
    if not hashes:
        return np.full(rows.num_rows, 42, dtype=np.int64)
    return fold(hashes).view(np.int64)


def consolidate(table: pa.Table, desc: RelationDesc, *, time: bool = True) -> pa.Table:
    """The same multiset with each row once. The diffs of rows that are equal in all columns except `mz_diff`
    are added up, and rows with the sum zero are left out. With `time=False` the time column is ignored and
    dropped: the result is the accumulated collection. Columns other than the relation's (error, hidden ones)
    count. Rows keep the order of their first appearance."""
    missing = [name for name in (*physical_names(desc), DIFF_COLUMN) if name not in table.column_names]
    if missing:
        raise Internal(f"consolidate without the columns {', '.join(missing)}")
    if not time and TIME_COLUMN in table.column_names:
        table = table.drop_columns([TIME_COLUMN])
    diffs = numbers(contiguous(table.column(DIFF_COLUMN)), np.int64)
    if len(diffs) == 0:
        return table
    keys = [contiguous(table.column(n)) for n in table.column_names if n != DIFF_COLUMN]
    sums = _sums(diffs, leaders(keys, len(diffs)))
    kept = np.flatnonzero(sums)
    result = table if len(kept) == len(diffs) else table.take(pa.array(kept))
    i = result.schema.get_field_index(DIFF_COLUMN)
    return result.set_column(i, result.schema.field(i), pa.array(sums[kept]))


def _sums(diffs: np.ndarray, leader: np.ndarray) -> np.ndarray:
    """For each leader the sum of its rows' diffs; zero for all other rows."""
    largest = max(int(diffs.max()), -int(diffs.min()))
    if largest * len(diffs) >= 2**63:
        raise Internal(
            "the sum of the diffs may not fit 64 bits", detail=f"One is {largest} of {len(diffs)}."
        )
    sums = np.zeros(len(diffs), dtype=np.int64)
    np.add.at(sums, leader, diffs)
    return sums


def leaders(columns: Sequence[pa.Array], count: int) -> np.ndarray:
    """For each row the first row that equals it. Rows are sorted by hash. In each run of equal hashes, the
    first row is the leader; rows that differ from it (collisions) are handled in another round."""
    result = np.arange(count)
    if not columns:
        return np.zeros(count, dtype=np.int64)
    keys = [comparable(column) for column in columns]
    hashes = fold([hash_column(key) for key in keys])
    order = np.argsort(hashes, kind="stable")
    while order.size:
        ordered = hashes[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        leader = order[first][np.cumsum(first) - 1]
        followers = np.flatnonzero(~first)
        if not followers.size:
            break
        rows, heads = order[followers], leader[followers]
        same = np.ones(len(rows), dtype=np.bool_)
        for key in keys:
            same &= same_rows(key, heads, rows)
        result[rows[same]] = heads[same]
        order = rows[~same]
    return result
