"""Conversion of updates that were summed per row into rows: checks for negative counts, and copies.

Called by `read`. Works on Arrow tables with the relation's columns, `mz_diff` and (where errors are possible)
`mz_error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sources.message_errors import hint_of
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, HIDDEN_ROW, error_parts
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

if TYPE_CHECKING:
    from tidemill.persist.snapshot import Snapshot

# How much of the row with a negative count is shown.
_SHOWN_CHARACTERS = 200


# The words that users look for; `relation` has Spark raise the same.
NEGATIVE_TEXT = "Invalid data in source, saw retractions ({count}) for row that does not exist: {row}"


class SourceError(TidemillError):
    """The collection holds an error at this time; `text` is the source's or the view's own."""

    sqlstate = "22000"

    def __init__(self, text: str) -> None:
        primary, detail = error_parts(text)
        super().__init__(primary, detail=detail, hint=hint_of(detail))
        self.text = text


class NegativeMultiplicity(TidemillError):
    """More copies of a row were taken away than there were."""

    sqlstate = "22000"

    def __init__(self, count: int, row: str) -> None:
        super().__init__(NEGATIVE_TEXT.format(count=count, row=row))


def add_up(tables: Sequence[pa.Table]) -> pa.Table:
    """The updates of all the tables (of one schema), each row once; rows that add up to nothing are left
    out."""
    # Without a relation every column beside the diff counts, which is right for any projection.
    return consolidate(pa.concat_tables(tables), RelationDesc())


def negated(updates: pa.Table) -> pa.Table:
    diffs = pa.array(-_diffs(updates))
    at = updates.schema.get_field_index(DIFF_COLUMN)
    return updates.set_column(at, updates.schema.field(at), diffs)


def check_errors(table: pa.Table, snapshot: Snapshot | None = None) -> pa.Table:
    """Raise the first live error; else the table without the error column. Diffs must have been summed per
    row and error. `snapshot`: what was read."""
    if ERROR_COLUMN not in table.schema.names:
        return table
    errors = table.column(ERROR_COLUMN)
    if errors.null_count < table.num_rows:
        said = pc.fill_null(pc.not_equal(errors, HIDDEN_ROW), False)
        live = table.filter(said).select([ERROR_COLUMN, DIFF_COLUMN])
        # The text does not depend on the order of the parts.
        live = live.sort_by(ERROR_COLUMN)
        for text, diff in zip(live.column(0).to_pylist(), live.column(1).to_pylist(), strict=True):
            error = SourceError(str(text))
            if diff < 0:
                raise NegativeMultiplicity(-diff, f"error: {error.primary}")
            if diff > 0:
                if snapshot is not None and snapshot.on_error is not None:
                    snapshot.on_error(error, error.text)
                raise error
        table = table.filter(pc.is_null(errors))
    return table.drop_columns([ERROR_COLUMN])


def check_counts(table: pa.Table, columns: Sequence[str]) -> None:
    """Raise when a row's diff is negative."""
    diffs = _diffs(table)
    if diffs.size == 0 or diffs.min() >= 0:
        return
    worst = int(diffs.argmin())
    row = table.select(list(columns)).slice(worst, 1).to_pylist()[0]
    raise NegativeMultiplicity(-int(diffs[worst]), show_row(list(row.values())))


def expand(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Each row as often as its diff says, without the diff."""
    diffs = _diffs(table)
    rows = table.select(list(columns))
    if diffs.size == 0 or (diffs.min() == 1 and diffs.max() == 1):
        return rows
    return rows.take(pa.array(np.repeat(np.arange(diffs.size), diffs)))


def total(table: pa.Table) -> int:
    return int(_diffs(table).sum())


def show_row(values: Sequence[object]) -> str:
    """A row for an error message, in PostgreSQL's manner for records."""
    text = "(" + ",".join("" if v is None else str(v) for v in values) + ")"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _diffs(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return table.column(DIFF_COLUMN).to_numpy()
