"""The difference between the contents of two shards, appended to one of them at one time.

Called by `replacing` when a materialized view gets another query: the view's shard gets what the new query's
result has more, and loses what it has less. Promises: one append, or none; after a crash the same call
finishes what was begun, and does nothing when it was finished. The memory is bounded: contents of more than
`PASS_BYTES` are compared in several passes, each over the rows of some values of their hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.persist.part import Part
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import Snapshot
from tidemill.query.multiset import add_up
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.identity import row_hash
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

FP_PART = failpoints.register("view.switch_written", "a view's new rows are in parts that nobody names")

# The rows of both shards that are compared at once, by their size in memory.
PASS_BYTES = 256 << 20


def append_difference(
    shard: Shard, new: Shard, at: int, job: str, gap: tuple[int, str] | None = None
) -> None:
    """From `at` on the shard has the contents of `new` at `at`; nothing changes between its upper and `at`,
    except that with a `gap` it has that error (a time, a text) from that time on. `new` is complete at `at`,
    even where its upper lags. Raises a commit's outcomes."""
    shard.refresh()
    if upper_of(shard) > at:
        return
    new.refresh()
    held = min(at, upper_of(new) - 1)
    parts: list[Part] = []
    with new.snapshot(held) as wanted:
        # Of a shard that has no contents yet.
        since = upper_of(shard) - 1
        if since < shard.since:
            shard.downgrade_since(at)
            snapshots = [(wanted, 1)]
            parts += _written(shard, snapshots, at, job)
        else:
            with shard.snapshot(since) as there:
                parts += _written(shard, [(wanted, 1), (there, -1)], at, job)
    if gap is not None:
        parts.append(shard.write_part(_gap(shard.desc, *gap, at), job=job))
    failpoints.hit(FP_PART)
    shard.compare_and_append(parts, upper_of(shard), at + 1)


def _written(shard: Shard, snapshots: Sequence[tuple[Snapshot, int]], at: int, job: str) -> Iterator[Part]:
    passes = 1 + sum(s.weight for s, _ in snapshots) // PASS_BYTES
    for number in range(passes):
        tables = [t for s, sign in snapshots for t in _rows(s, sign, number, passes)]
        rows = add_up(tables) if tables else None
        if rows is not None and rows.num_rows:
            stamps = pa.array(np.full(rows.num_rows, at, np.int64))
            table = rows.append_column(TIME_COLUMN, stamps)
            yield shard.write_part(table.select(shard_schema(shard.desc).names), job=job)


def _rows(snapshot: Snapshot, sign: int, number: int, passes: int) -> Iterator[pa.Table]:
    """The updates of one pass, without their times, and their diffs times `sign`."""
    names = [*physical_names(snapshot.desc), ERROR_COLUMN]
    for part in snapshot.parts:
        for _, table in snapshot.read_groups(part, [*names, TIME_COLUMN, DIFF_COLUMN]):
            rows = table.filter(pc.less_equal(table.column(TIME_COLUMN), snapshot.as_of))
            if passes > 1:
                mine = row_hash(rows, RelationDesc(()), names).view(np.uint64) % np.uint64(passes) == number
                rows = rows.filter(pa.array(mine))
            diffs = pa.array(sign * rows.column(DIFF_COLUMN).to_numpy())
            yield rows.select(names).append_column(DIFF_COLUMN, diffs)


def _gap(desc: RelationDesc, since: int, text: str, until: int) -> pa.Table:
    """An error that is there from one time to another."""
    given = {TIME_COLUMN: [since, until], DIFF_COLUMN: [1, -1], ERROR_COLUMN: [text, text]}
    schema = shard_schema(desc)
    return pa.table([pa.array(given.get(f.name, [None, None]), f.type) for f in schema], schema=schema)
