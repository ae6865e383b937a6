"""Changes of a relation over a complete span of times: what tails pass to their readers.

All readers of a tail share one value. Each shape (`shape.Spec`) is computed once for all readers that use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.subscribe.shape import progress_row, shaped
from tidemill.subscribe.spec import Spec
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, HIDDEN_ROW, TIME_COLUMN
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc


@dataclass(slots=True)
class CollectionChanges:
    """`updates`: the relation's columns, then time and diff; consolidated per time and row, sorted by time.
    Together they are all of [lower, upper). With `error` the relation has one from its time on, and `updates`
    end before it."""

    updates: pa.Table
    lower: int
    upper: int
    error: tuple[int, str] | None = None
    # Of the updates; used by every reader's buffer.
    bytes: int = field(init=False)
    # The shaped results so far, by spec and the time before which rows are left out.
    _shaped: dict[tuple[Spec, int], asyncio.Future[pa.RecordBatch]] = field(
        default_factory=dict[tuple[Spec, int], "asyncio.Future[pa.RecordBatch]"], repr=False
    )

    def __post_init__(self) -> None:
        self.bytes = self.updates.nbytes if self.updates.num_rows else 0

    @property
    def idle(self) -> bool:
        """Nothing changed but the time."""
        return not self.updates.num_rows and self.error is None

    def failed(self, after: int, before: int | None) -> tuple[int, str] | None:
        """The time and the text of the relation's error, if it occurs at times in (after, before)."""
        if self.error is None or self.error[0] <= after or (before is not None and self.error[0] >= before):
            return None
        return self.error

    async def as_rows(self, spec: Spec, after: int, before: int | None, pool: Executor) -> pa.RecordBatch:
        """The rows of times in (after, before) in the spec's shape and, if the spec wants that too and
        nothing has `failed`, a progress row that these times are complete. Equal requests share one
        computation and one batch, so their encoding can be shared as well."""
        lower = max(self.lower, after + 1)
        upper = self.upper if before is None else min(self.upper, before)
        done = spec.progress and self.failed(after, before) is None
        if upper < self.upper:
            return await _run(pool, self._cut, spec, lower, upper, done)
        key = (spec, lower)
        found = self._shaped.get(key)
        if found is None:
            found = asyncio.ensure_future(_run(pool, self._cut, spec, lower, upper, done))
            self._shaped[key] = found
        if found.done():
            return found.result()
        # A reader that leaves must not take the others' rows with it.
        return await asyncio.shield(found)

    def _cut(self, spec: Spec, lower: int, upper: int, done: bool) -> pa.RecordBatch:
        updates = self.updates
        if updates.num_rows and (lower > self.lower or upper < self.upper):
            times = updates.column(TIME_COLUMN).to_numpy()
            updates = updates.filter(pa.array((times >= lower) & (times < upper)))
        rows = shaped(updates, spec)
        if not done:
            return rows
        progress = progress_row(upper, spec)
        return pa.concat_batches([rows, progress]) if rows.num_rows else progress


async def _run(
    pool: Executor,
    fn: Callable[[Spec, int, int, bool], pa.RecordBatch],
    spec: Spec,
    lower: int,
    upper: int,
    done: bool,
) -> pa.RecordBatch:
    return await asyncio.get_running_loop().run_in_executor(pool, fn, spec, lower, upper, done)


def changes_of(
    table: pa.Table, columns: Sequence[str], lower: int, upper: int, *, hidden: bool
) -> CollectionChanges:
    """From a shard's updates. `hidden`: it has invisible columns, in which alone rows may differ."""
    updates, error = table, None
    errors = table.column(ERROR_COLUMN)
    if errors.null_count < table.num_rows:
        updates, error = _errors(table)
    updates = updates.select([*columns, TIME_COLUMN, DIFF_COLUMN])
    if hidden:
        updates = consolidate(updates, RelationDesc(())).sort_by(TIME_COLUMN)
    return CollectionChanges(updates, lower, upper, error)


def _errors(table: pa.Table) -> tuple[pa.Table, tuple[int, str] | None]:
    """The ordinary rows, and the first error."""
    errors = table.column(ERROR_COLUMN)
    come = pc.and_(
        pc.fill_null(pc.not_equal(errors, HIDDEN_ROW), False), pc.greater(table.column(DIFF_COLUMN), 0)
    )
    failed = table.filter(come).select([TIME_COLUMN, ERROR_COLUMN])
    rows = table.filter(pc.is_null(errors))
    if not failed.num_rows:
        return rows, None
    at = int(np.min(failed.column(0).to_numpy()))
    texts = failed.filter(pc.equal(failed.column(0), at)).column(1).to_pylist()
    return rows.filter(pc.less(rows.column(TIME_COLUMN), at)), (at, min(str(t) for t in texts))
