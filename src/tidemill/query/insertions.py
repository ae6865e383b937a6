"""The insertions among a part's updates, found with as few columns as possible.

Called by the modules that read parts with Arrow, row group by row group (`retraction_matches`,
`duplicate_rows`, `part_rows`). The log's entry for a part determines which of time, diff and error must be
read at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.kernels import pc

if TYPE_CHECKING:
    from tidemill.persist.part import Part

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Insertions:
    """Those of one part at or before a time."""

    def __init__(self, part: Part, as_of: int) -> None:
        self._as_of = as_of
        self._late = part.max_time > as_of
        self._signs = part.min_diff < 0
        self._errors = part.errors > 0
        # Whether a row may be inserted several times by one update.
        self.copies = part.max_diff > 1

    @property
    def columns(self) -> list[str]:
        """The columns to read beside the relation's own. With `copies` they include the diff."""
        return [
            *([TIME_COLUMN] if self._late else []),
            *([DIFF_COLUMN] if self._signs or self.copies else []),
            *([ERROR_COLUMN] if self._errors else []),
        ]

    def mask(self, table: pa.Table) -> Mask | None:
        """Which of the part's updates they are; None for all. The table has `columns`."""
        live = np.ones(table.num_rows, np.bool_)
        if self._late:
            live &= table.column(TIME_COLUMN).to_numpy() <= self._as_of
        if self._signs:
            live &= table.column(DIFF_COLUMN).to_numpy() > 0
        if self._errors:
            live &= pc.is_null(table.column(ERROR_COLUMN)).to_numpy()
        return None if bool(live.all()) else live
