"""Unavailable values: unchanged values that the upstream omitted, taken from the previous row of the key.

Debezium sends a placeholder for a TOASTed column that an update did not touch. Called by `upsert`:
`fill_here` takes the value from an earlier record of the same time, `fill_from_state` from the current row of
the key. Each record is checked against the row of its key at that point. If there is none, or it is a
deletion or an error, the record becomes an error of its key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.decode.debezium.placeholders import filled
from tidemill.envelope.keys import KeyShape
from tidemill.envelope.order import failures
from tidemill.types.identity import leaders
from tidemill.types.kernels import pc

UNKNOWN_TEXT = (
    "Envelope error: Debezium: the value of column {column} was left out as unchanged, "
    "and no earlier value of it is known"
)


@dataclass(frozen=True, slots=True)
class Lacking:
    """What records still lack. `columns`: per column with any, which records lack it. `first`: the first
    column that each record came without. `alone`: records of whose key no record before them at this time has
    all values, so that the key's row must have the others; `lost`: the last that has is a deletion or an
    error. `parts`: columns of JSON, of which records lack members and not the whole."""

    columns: dict[int, np.ndarray]
    parts: frozenset[int]
    first: np.ndarray
    alone: np.ndarray
    lost: np.ndarray

    def take(self, at: np.ndarray) -> Lacking:
        columns = {column: mask[at] for column, mask in self.columns.items()}
        return Lacking(columns, self.parts, self.first[at], self.alone[at], self.lost[at])


def fill_here(
    rows: pa.RecordBatch, unavailable: pa.Array, deleted: np.ndarray, shape: KeyShape
) -> tuple[pa.RecordBatch, Lacking]:
    """The records with values of earlier ones of the same key and time, and what is still lacking."""
    masks, parts = _masks(unavailable)
    group = leaders([rows.column(i) for i in shape.key], rows.num_rows)
    order = np.argsort(group, kind="stable")
    grouped = group[order]
    place = np.arange(len(order))
    starts = np.maximum.accumulate(np.where(np.r_[True, grouped[1:] != grouped[:-1]], place, 0))

    def latest(known: np.ndarray) -> np.ndarray:
        """For each record the last one of its key, up to itself, that is `known`; -1 where there is none."""
        found = np.maximum.accumulate(np.where(known[order], place, -1))
        result = np.empty(len(order), dtype=np.int64)
        result[order] = np.where(found >= starts, order[np.maximum(found, 0)], -1)
        return result

    partial = np.logical_or.reduce(list(masks.values()))
    whole = latest(~partial)
    empty = deleted | failures(rows, shape)
    columns = rows.columns
    left: dict[int, np.ndarray] = {}
    first = np.full(rows.num_rows, -1)
    for column, mask in sorted(masks.items(), reverse=True):
        first[mask] = column
        source = latest(~mask)
        if column in parts:
            columns[column] = _folded(columns[column], mask, group, empty)
        else:
            at = np.where(source >= 0, source, np.arange(len(order)))
            columns[column] = columns[column].take(pa.array(at))
        left[column] = mask & (source < 0)
    lacking = Lacking(left, parts, first, partial & (whole < 0), partial & (whole >= 0) & empty[whole])
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), lacking


def fill_from_state(
    rows: pa.RecordBatch, lacking: Lacking, old: pa.RecordBatch, where: np.ndarray, shape: KeyShape
) -> pa.RecordBatch:
    """The rows with values of those that their keys have (`old`, for the rows at `where`), or as errors."""
    if shape.error is None or not (lacking.alone | lacking.lost).any():
        return rows
    origin = np.full(rows.num_rows, -1)
    origin[where] = np.arange(len(where))
    origin[where[failures(old, shape)]] = -1
    failed = lacking.lost | (lacking.alone & (origin < 0))
    columns = rows.columns
    for column, mask in lacking.columns.items():
        known = mask & ~failed
        if column in lacking.parts:
            columns[column] = _patched(columns[column], old.column(column), known, origin)
        elif known.any():
            both = pa.concat_arrays([columns[column], old.column(column)])
            at = np.where(known, rows.num_rows + origin, np.arange(rows.num_rows))
            columns[column] = both.take(pa.array(at))
    for column in np.unique(lacking.first[failed]).tolist():
        text = UNKNOWN_TEXT.format(column=shape.names[column])
        own = pa.array(failed & (lacking.first == column))
        columns[shape.error] = pc.if_else(own, text, columns[shape.error])
    if failed.any():
        # An error has its key and nothing else.
        for i in range(shape.visible):
            if i not in shape.key:
                columns[i] = pc.if_else(pa.array(failed), pa.scalar(None, columns[i].type), columns[i])
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _folded(column: pa.Array, mask: np.ndarray, group: np.ndarray, empty: np.ndarray) -> pa.Array:
    """JSON whose members are taken from the record of the key right before, which has them from the one
    before it: each may lack others."""
    texts = column.to_pylist()
    before: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(group, group[mask])).tolist():
        last = before.get(int(group[row]))
        old, new = None if last is None or empty[last] else texts[last], texts[row]
        if mask[row] and old is not None and new is not None:
            texts[row] = filled(new, old)
        before[int(group[row])] = row
    return pa.array(texts, column.type)


def _patched(new: pa.Array, old: pa.Array, known: np.ndarray, origin: np.ndarray) -> pa.Array:
    """JSON whose members are taken from the rows that the keys have."""
    if not known.any():
        return new
    texts = new.to_pylist()
    for row in np.flatnonzero(known).tolist():
        theirs, ours = old[int(origin[row])].as_py(), texts[row]
        if theirs is not None and ours is not None:
            texts[row] = filled(ours, theirs)
    return pa.array(texts, new.type)


def _masks(unavailable: pa.Array) -> tuple[dict[int, np.ndarray], frozenset[int]]:
    """Per column with any, which rows lack its value; and in which columns they lack only parts of it."""
    rows = pc.list_parent_indices(unavailable).to_numpy()
    columns = pc.list_flatten(unavailable).to_numpy()
    found: dict[int, np.ndarray] = {}
    parts: set[int] = set()
    for number in np.unique(columns).tolist():
        mask = np.zeros(len(unavailable), dtype=np.bool_)
        mask[rows[columns == number]] = True
        column = number if number >= 0 else -1 - number
        found[column] = mask
        if number < 0:
            parts.add(column)
    return found, frozenset(parts)
