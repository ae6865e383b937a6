"""A writer for one table: converts rows to updates in the form of the shard.

Made once per plan (INSERT, UPDATE, DELETE, COPY FROM) and reused by every execution. Most executions write
one row, and looking up the properties of the table would cost more than the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.catalog.items import Table
from tidemill.catalog.state import CatalogState
from tidemill.errors import About, NotNullViolation
from tidemill.types.arrow import DIFF_COLUMN, storage_schema
from tidemill.types.identity import canonical
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire import format_value

Columns = Sequence[pa.Array | pa.ChunkedArray]

# Rows that a message about a bad row shows at most this many characters of.
MAX_SHOWN_ROW = 200

# The diffs of statements with one row.
_ONE = {diff: pa.array([diff], pa.int64()) for diff in (1, -1)}


class TableWriter:
    """One table, as defined in one catalog state."""

    __slots__ = ("_in", "_jsonb", "_not_null", "_schema", "table")

    def __init__(self, table: Table, catalog: CatalogState) -> None:
        self.table = table
        # The schema's name, for errors.
        self._in = catalog.full_name(table)[-2]
        # Of the updates: the table's columns under their physical names, then the diff.
        self._schema = storage_schema(table.desc).append(pa.field(DIFF_COLUMN, pa.int64()))
        columns = list(enumerate(table.desc.columns))
        self._jsonb = [(n, c.type) for n, c in columns if _holds_jsonb(c.type)]
        self._not_null = [(n, c.name) for n, c in columns if not c.nullable]

    def updates(self, columns: Columns, rows: int, diff: int) -> pa.Table:
        """Makes updates from complete rows, in column order. Normalises a jsonb that a query computed, which
        may have any text form."""
        given = list(columns)
        for n, t in self._jsonb:
            given[n] = canonical(given[n], t)
        one = _ONE[diff]
        given.append(one if rows == 1 else pa.repeat(one[0], rows))
        return pa.Table.from_arrays(given, schema=self._schema)

    def rows(self, updates: pa.Table) -> pa.Table:
        """The rows of updates, without their diffs."""
        return updates.drop_columns(DIFF_COLUMN)

    def check_not_null(self, updates: pa.Table) -> None:
        for n, name in self._not_null:
            if updates.column(n).null_count:
                raise self._violation(updates, n, name)

    def _violation(self, updates: pa.Table, column: int, name: str) -> NotNullViolation:
        bad = int(pc.index(updates.column(column).is_null(), True).as_py())
        values = [
            format_value(updates.column(i)[bad].as_py(), c.type)
            if updates.column(i)[bad].is_valid
            else "null"
            for i, c in enumerate(self.table.desc.columns)
        ]
        shown = ", ".join(str(v) for v in values)
        if len(shown) > MAX_SHOWN_ROW:
            shown = shown[:MAX_SHOWN_ROW] + "..."
        return NotNullViolation(
            f'null value in column "{name}" of relation "{self.table.name}" violates not-null constraint',
            detail=f"Failing row contains ({shown}).",
            about=About(self._in, self.table.name, name),
        )


def _holds_jsonb(t: SqlType) -> bool:
    if t.kind is Kind.JSONB or (t.element is not None and _holds_jsonb(t.element)):
        return True
    return any(_holds_jsonb(f.type) for f in t.fields)
