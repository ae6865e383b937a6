"""Conversion of updates of complete times into the rows of a subscription.

Called with each batch of a tail; works on whole columns, nothing per row. Within one time and key the updates
mean:

    [+1 v]              upsert v          insert, after v
    [-1 v]              delete            delete, before v
    [-1 v1, +1 v2]      upsert v2         upsert, before v1, after v2
    anything else       key violation     key violation, without values

(ENVELOPE UPSERT, ENVELOPE DEBEZIUM.) No state crosses times. Keys are compared by row identity: NULL is a key
like any other. A row whose values are all NULL still has values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal, LimitExceeded
from tidemill.subscribe.order import sort_rows
from tidemill.subscribe.sort_keys import Lane, number_lane, order_lanes, row_lanes
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.columns import contiguous, numbers
from tidemill.types.model import RelationDesc

INSERT, UPSERT, DELETE = "insert", "upsert", "delete"
KEY_VIOLATION = "key violation"
KEY_VIOLATION_UNDERSCORE = "key_violation"

_VIOLATED, _INSERTED, _DELETED, _UPDATED = range(4)


def shaped(updates: pa.Table, spec: Spec) -> pa.RecordBatch:
    """The rows for `updates`: the relation's columns by position, then the time and diff columns; each (time,
    row) once, in order of time, only complete times. The result is in order of time too; within a time in the
    requested order, or without one in that of `updates`."""
    _check(updates, spec)
    columns = [_one_array(column) for column in updates.columns]
    times, diffs = (numbers(column, np.int64) for column in columns[-2:])
    del columns[-2:]
    match spec.output:
        case OutputShape.PLAIN:
            return _batch(spec, times, [pa.array(diffs), *columns])
        case OutputShape.WITHIN_TIMESTAMP:
            order, _ = sort_rows(times, _within_lanes(columns, diffs, spec))
            rows = pa.array(order)
            return _batch(spec, times[order], [pa.array(diffs[order]), *(c.take(rows) for c in columns)])
        case OutputShape.UPSERT | OutputShape.DEBEZIUM:
            return _enveloped(columns, times, diffs, spec)


def progress_row(time: int, spec: Spec) -> pa.RecordBatch:
    """The one row that says that all times before `time` are complete."""
    if not spec.progress:
        raise Internal("a progress row of a subscription without PROGRESS")
    fields = list(arrow_schema(RelationDesc(spec.output_columns)))
    nulls = [pa.nulls(1, field.type) for field in fields[2:]]
    return pa.RecordBatch.from_arrays(
        [pa.array([time], pa.int64()), pa.array([True]), *nulls], schema=pa.schema(fields)
    )


def _check(updates: pa.Table, spec: Spec) -> None:
    names = updates.column_names
    if len(names) != len(spec.columns) + 2 or names[-2:] != [TIME_COLUMN, DIFF_COLUMN]:
        raise Internal(f"updates of {len(spec.columns)} columns come as {', '.join(names)}")


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    try:
        return contiguous(column)
    except pa.ArrowInvalid as error:  # offsets have 32 bits
        raise LimitExceeded("a batch's column is larger than 2 GB", detail=str(error)) from None


def _batch(spec: Spec, times: np.ndarray, columns: list[pa.Array]) -> pa.RecordBatch:
    """The batch of rows: their times, that they are not progress rows, and `columns`."""
    head = [pa.array(times)]
    if spec.progress:
        head.append(pa.array(np.zeros(len(times), dtype=np.bool_)))
    return pa.RecordBatch.from_arrays(
        [*head, *columns], schema=arrow_schema(RelationDesc(spec.output_columns))
    )


def _within_lanes(columns: list[pa.Array], diffs: np.ndarray, spec: Spec) -> Iterator[Lane]:
    for item in spec.order:
        if item.position is None:
            yield number_lane(diffs, descending=item.descending)
        else:
            column, t = columns[item.position], spec.columns[item.position].type
            yield from order_lanes(column, t, descending=item.descending, nulls_first=item.nulls_first)
    # Ties by row, then diff. (A row occurs once in each time, so its diff decides nothing more.)
    for column, described in zip(columns, spec.columns, strict=True):
        yield from row_lanes(column, described.type)


# -- envelopes


def _enveloped(columns: list[pa.Array], times: np.ndarray, diffs: np.ndarray, spec: Spec) -> pa.RecordBatch:
    lanes = chain.from_iterable(row_lanes(columns[i], spec.columns[i].type) for i in spec.keys)
    order, first = sort_rows(times, lanes)
    case, before, after = _cases(order, np.flatnonzero(first), diffs)
    shown = np.where(after >= 0, after, before)  # the row that the key is taken from
    violated = shown < 0
    shown[violated] = order[first][violated]
    debezium = spec.output is OutputShape.DEBEZIUM
    result = [_states(spec).take(pa.array(case))]
    result += [columns[i].take(pa.array(shown)) for i in spec.keys]
    if debezium:
        result += _values(columns, spec, before)
    result += _values(columns, spec, after)
    return _batch(spec, times[shown], result)


def _cases(
    order: np.ndarray, starts: np.ndarray, diffs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each group of rows with one time and key: its case, the removed row and the added row; -1 if there
    is none."""
    sizes = np.diff(starts, append=len(order))
    one = order[starts]
    # Of a single row the second is the row itself, with a diff that matches nothing.
    two = order[np.minimum(starts + 1, max(len(order) - 1, 0))]
    first_diff = diffs[one]
    second_diff = np.where(sizes == 2, diffs[two], 0)
    single, pair = sizes == 1, sizes == 2
    came = single & (first_diff == 1)
    went = single & (first_diff == -1)
    updated = pair & (first_diff == -1) & (second_diff == 1)
    turned = pair & (first_diff == 1) & (second_diff == -1)
    case = np.select([came, went, updated | turned], [_INSERTED, _DELETED, _UPDATED], _VIOLATED)
    before = np.select([went | updated, turned], [one, two], -1)
    after = np.select([came | turned, updated], [one, two], -1)
    return case, before, after


def _values(columns: list[pa.Array], spec: Spec, rows: np.ndarray) -> list[pa.Array]:
    none = rows < 0
    if bool(none.all()):
        return [pa.nulls(len(rows), columns[i].type) for i in spec.values]
    chosen = pa.array(rows, mask=none)
    return [columns[i].take(chosen) for i in spec.values]


def _states(spec: Spec) -> pa.Array:
    """The text of each case, by its number."""
    violation = KEY_VIOLATION_UNDERSCORE if spec.underscore else KEY_VIOLATION
    inserted = INSERT if spec.output is OutputShape.DEBEZIUM else UPSERT
    texts = {_VIOLATED: violation, _INSERTED: inserted, _DELETED: DELETE, _UPDATED: UPSERT}
    return pa.array([texts[case] for case in range(len(texts))])
