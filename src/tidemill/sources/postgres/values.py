"""Values: columns of texts, as PostgreSQL writes them, to rows in storage form.

The one way of a value into a relation, for the snapshot (COPY) and for the stream (pgoutput): the same row
upstream is the same row here. A row with a value that cannot be represented is an error in its place. The
error's text depends on the row alone, so the change that removes the row removes the error too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sources.postgres.definition import ReplicatedColumn, ReplicatedTable, shown
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, NUMERIC_SCALE, arrow_type, storage_schema
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire import decode_text

# Of a long value the beginning is shown.
SHOWN_CHARACTERS = 80
# More digits behind the point than a numeric without precision has here, other than zeros.
_INEXACT = rf"\.[0-9]{{{NUMERIC_SCALE}}}[0-9]*[1-9]"


def batch_schema(table: ReplicatedTable, *, diffs: bool = True, errors: bool = False) -> pa.Schema:
    """The columns of a batch."""
    schema = storage_schema(table.desc)
    if diffs:
        schema = schema.append(pa.field(DIFF_COLUMN, pa.int64(), nullable=False))
    if errors:
        schema = pa.schema([f if f.name == DIFF_COLUMN else f.with_nullable(True) for f in schema])
        schema = schema.append(pa.field(ERROR_COLUMN, pa.string()))
    return schema


def decode_rows(
    table: ReplicatedTable, texts: Sequence[pa.Array], diffs: np.ndarray | None = None
) -> pa.RecordBatch:
    """The rows whose columns are `texts` (binary or string, null for NULL), in storage form. With `diffs`,
    they are in the column mz_diff. The column mz_error is there if a row has an error; then the row has no
    values."""
    columns: list[pa.Array] = []
    faults: dict[int, str] = {}
    for column, given in zip(table.columns, texts, strict=True):
        values, bad = _decode(column, given)
        columns.append(values)
        for row, why in bad.items():
            faults.setdefault(row, _fault(table, column, given[row].as_py(), why))
    extra = [] if diffs is None else [pa.array(diffs, pa.int64())]
    schema = batch_schema(table, diffs=diffs is not None, errors=bool(faults))
    if not faults:
        return pa.RecordBatch.from_arrays([*columns, *extra], schema=schema)
    rows = len(texts[0])
    errors: list[str | None] = [faults.get(row) for row in range(rows)]
    kept = pa.array([None if row in faults else row for row in range(rows)], pa.int64())
    columns = [values.take(kept) for values in columns]
    return pa.RecordBatch.from_arrays([*columns, *extra, pa.array(errors, pa.string())], schema=schema)


def _decode(column: ReplicatedColumn, texts: pa.Array) -> tuple[pa.Array, dict[int, TidemillError | None]]:
    """The values, and the rows that have none, with the reason; None: it is NULL and must not be."""
    bad: dict[int, TidemillError | None] = {}
    values = _whole(texts, column.type, 0, bad)
    for row in _inexact(texts, column.type):
        bad.setdefault(row, _Inexact())
    if not column.nullable and texts.null_count:
        for row in np.flatnonzero(~valid_mask(texts)).tolist():
            bad[row] = None
    return values, bad


class _Inexact(TidemillError):
    sqlstate = "22003"

    def __init__(self) -> None:
        super().__init__(f"more than {NUMERIC_SCALE} digits after the decimal point")


def _whole(texts: pa.Array, t: SqlType, first: int, bad: dict[int, TidemillError | None]) -> pa.Array:
    """Decodes by columns. Where that fails it halves the column, down to the rows that have no value."""
    try:
        return decode_text(texts, t)
    except TidemillError as error:
        if len(texts) == 1:
            bad[first] = error
            return pa.nulls(1, arrow_type(t))
    half = len(texts) // 2
    left = _whole(texts.slice(0, half), t, first, bad)
    return pa.concat_arrays([left, _whole(texts.slice(half), t, first + half, bad)])


def _inexact(texts: pa.Array, t: SqlType) -> list[int]:
    """The rows that would be rounded. (A numeric with a scale was rounded upstream.)"""
    inner = t.element if t.kind is Kind.ARRAY and t.element is not None else t
    if inner.kind is not Kind.NUMERIC or inner.precision is not None:
        return []
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= NUMERIC_SCALE + 1:
        return []
    found = pc.fill_null(pc.match_substring_regex(texts, _INEXACT), False)
    return np.flatnonzero(found.to_numpy(zero_copy_only=False)).tolist()


def _fault(
    table: ReplicatedTable, column: ReplicatedColumn, value: str | bytes | None, why: TidemillError | None
) -> str:
    """The error of a row: a text, and behind a line break its detail."""
    name = shown(table.schema, table.table, column.name)
    if why is None:
        return (
            f"null value in column {name}\nThe column was NOT NULL when the table was added to the source. "
            "Drop the table here and create it again."
        )
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    text = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
    return (
        f"a value of column {name} is not supported\nThe value is {text}: {why.primary}. "
        f"TEXT COLUMNS ({shown(table.table, column.name)}) keeps the column as text."
    )
