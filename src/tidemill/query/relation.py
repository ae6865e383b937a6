"""A prepared collection at a time, and its Spark DataFrame.

`read.prepare` fills a `PreparedRelation` before a session is chosen: rows that the driver holds, parts that
Spark reads, and the rows that are hidden in them. `run` calls `dataframe` once it has a session. Building is
lazy: no job runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.query.local import to_jdf
from tidemill.query.multiset import NEGATIVE_TEXT
from tidemill.query.row_filter import Hidden
from tidemill.query.scan import scan
from tidemill.query.session_slots import MAX_PARTITIONS, SessionSlot, pieces
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.spark import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot

# The one column of a relation of which the query needs none (count(*)); no query can name it.
NO_COLUMN = "mz_none"
# Copies are made in two steps, so that a row with a billion copies is never one array with a billion
# elements.
_REPEAT_STEP = 65_536


@dataclass(slots=True)
class PreparedRelation:
    """One relation, read as far as the driver reads it; bound to no session."""

    columns: list[str]
    # For the file that passes a larger table to the JVM.
    scratch: Path
    # Rows that the driver holds; with `mz_diff` as the number of copies when `counted`.
    table: pa.Table | None = None
    counted: bool = False
    # Parts whose rows Spark reads, without the hidden ones, which `table` accounts for.
    snapshot: Snapshot | None = None
    parts: list[Part] = field(default_factory=list)
    hidden: Hidden | None = None
    # Too much for the driver: Spark sums the updates of all parts and of `table` (which then has `mz_diff`).
    sum_all: bool = False
    # No column is needed, only this number of rows.
    count: int | None = None

    @property
    def small(self) -> bool:
        """Whether the driver holds all of it, row by row."""
        return not self.parts and self.count is None and not self.counted

    @property
    def repeats(self) -> bool:
        """Whether one row may represent several copies."""
        return self.counted or any(part.max_diff > 1 for part in self.parts)

    @property
    def row_bytes(self) -> int:
        """The average size of a row in memory."""
        rows, size = self._part_sizes
        if self.table is not None:
            rows, size = rows + self.table.num_rows, size + self.table.nbytes
        return size // max(1, rows)

    @property
    def _part_sizes(self) -> tuple[int, int]:
        """(rows, bytes of them in memory) of the parts."""
        return sum(part.rows for part in self.parts), sum(part.weight for part in self.parts)

    def dataframe(self, slot: SessionSlot) -> Any:
        """The relation as a Dataset of the JVM (`jdf`) in the slot's session."""
        if self.count is not None:
            return jdf_of(slot.session.range(self.count).withColumnRenamed("id", NO_COLUMN))
        held: Any = None
        if self.table is not None and (self.table.num_rows or not self.parts):
            held = to_jdf(slot, self.table, self.scratch)
        if not self.parts and not self.counted:
            return held
        frames: list[DataFrame] = []
        slot.expect(*self._part_sizes, sum(part.bytes for part in self.parts))
        if self.sum_all:
            return jdf_of(self._summed(slot, held))
        if held is not None:
            rows = frame_of(slot, held)
            frames.append(repeat(rows, self.columns) if self.counted else rows)
        if self.parts and self.snapshot is not None:
            for rows, copies in positives(slot.session, self.snapshot, self.parts, self.columns, self.hidden):
                frames.append(repeat(rows, self.columns) if copies else rows)
        return jdf_of(reduce(lambda a, b: a.union(b), frames))

    def _summed(self, slot: SessionSlot, held: Any) -> DataFrame:
        from pyspark.sql import functions as F

        if self.snapshot is None:
            raise Internal("a relation without a snapshot cannot be summed")
        keys = [quote_identifier(c) for c in self.columns]
        shard = [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN]
        updates = scan(slot.session, self.snapshot, self.parts, [*self.columns, *shard])
        updates = updates.where(f"{TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} IS NULL")
        updates = updates.select(*keys, DIFF_COLUMN)
        if held is not None:
            updates = updates.union(frame_of(slot, held).select(*keys, DIFF_COLUMN))
        # A requested number of partitions is not adapted to the compressed size of the rows.
        updates = updates.repartition(min(pieces(*self._part_sizes), MAX_PARTITIONS), *keys)
        counts = (
            updates.groupBy(*keys).agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN)).where(f"{DIFF_COLUMN} != 0")
        )
        shown = ", ".join(f"coalesce(CAST({key} AS STRING), '')" for key in keys)
        text = NEGATIVE_TEXT.format(count="%d", row="(%s)")
        checked = (
            f"if({DIFF_COLUMN} < 0, CAST(raise_error(format_string('{text}', -{DIFF_COLUMN}, "
            f"concat_ws(',', {shown}))) AS BIGINT), {DIFF_COLUMN}) AS {DIFF_COLUMN}"
        )
        return repeat(counts.selectExpr(*keys, checked), self.columns)


def positives(
    session: Any,
    snapshot: Snapshot,
    parts: Sequence[Part],
    columns: Sequence[str],
    hidden: Hidden | None = None,
) -> list[tuple[DataFrame, bool]]:
    """The insertions among the parts' updates at or before the snapshot's time, less the hidden ones, as
    (rows, copies). If `copies`, `mz_diff` follows the columns, else each row counts once. Parts that need the
    same filters are scanned together."""
    groups: dict[tuple[bool, bool, bool, bool], list[Part]] = {}
    for part in parts:
        key = (part.max_time > snapshot.as_of, part.min_diff < 0, part.errors > 0, part.max_diff > 1)
        groups.setdefault(key, []).append(part)
    result: list[tuple[DataFrame, bool]] = []
    for (late, signs, errors, copies), members in sorted(groups.items()):
        extra = [TIME_COLUMN] * late + [DIFF_COLUMN] * (signs or copies) + [ERROR_COLUMN] * errors
        rows = scan(session, snapshot, members, [*columns, *extra], hidden)
        conditions = [
            *([f"{TIME_COLUMN} <= {snapshot.as_of}L"] if late else []),
            *([f"{DIFF_COLUMN} > 0"] if signs else []),
            *([f"{ERROR_COLUMN} IS NULL"] if errors else []),
        ]
        if conditions:
            rows = rows.where(" AND ".join(conditions))
        if extra:
            rows = rows.select(*map(quote_identifier, columns), *([DIFF_COLUMN] if copies else []))
        result.append((rows, copies))
    return result


def repeat(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Each row as often as its `mz_diff` says."""
    names = [quote_identifier(name) for name in columns]
    blocks = f"explode(sequence(0L, ({DIFF_COLUMN} - 1L) div {_REPEAT_STEP}L)) AS mz_block"
    left = f"{DIFF_COLUMN} - mz_block * {_REPEAT_STEP}L"
    copies = f"explode(sequence(1L, least({_REPEAT_STEP}L, {left}))) AS mz_copy"
    return rows.selectExpr(*names, DIFF_COLUMN, blocks).selectExpr(*names, copies).select(*names)


def jdf_of(frame: Any) -> Any:
    """The JVM's side of a DataFrame."""
    return frame._jdf


def frame_of(slot: SessionSlot, jdf: Any) -> DataFrame:
    """A Dataset of the JVM in the slot's session."""
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(jdf, slot.session)
