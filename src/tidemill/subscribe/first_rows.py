"""The follower of the first rows in an order: ORDER BY ... LIMIT over all rows of a query.

Made by `inputs.first_rows` over a follower of all the query's rows. It keeps the first rows and some more;
changes of rows behind them are passed over. When fewer are left than are asked for, they are read again.
Among rows that are equal in the order those are shown that come first by their other columns. What was told
is kept too: whoever told the first answer may have chosen others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from tidemill.persist.holds import Hold
from tidemill.query.multiset import add_up, check_counts, negated, total
from tidemill.sql.plan.expressions import Ref, SortKey
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.order import sort_rows
from tidemill.subscribe.sort_keys import Lane, order_lanes, row_lanes
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.kernels import pc
from tidemill.types.model import Column

# What a query may ask for, with the rows that it skips. For more it is followed as a whole.
MAX_FIRST = 10_000
# Rows that are kept beyond those that are asked for: as many again, and at least so many.
MARGIN = 1_000
# With more (equal in the order) the query is answered as a whole.
MAX_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """See `sql.plan.first_rows`. `columns` are those of the rows, under the names that the order has."""

    columns: tuple[Column, ...]
    order: tuple[SortKey, ...]
    shown: tuple[str, ...]
    count: int
    skipped: int
    ties: bool

    @property
    def needed(self) -> int:
        return self.count + self.skipped

    @property
    def kept(self) -> int:
        return self.needed + max(self.needed, MARGIN)


class FirstRows:
    """The first rows of a collection in an order, and some more. It is told all changes of the collection
    that are near, time by time, and reads it again when too few are left."""

    def __init__(
        self, wanted: Wanted, best: Callable[[int, int], pa.Table], *, each_once: bool = False
    ) -> None:
        """`best` returns so many of the first rows at a time, each with its count; `each_once`: so many
        different ones."""
        self._wanted = wanted
        self._best = best
        self._each_once = each_once
        # All rows before the end (a row; None: all rows), each with its count, and no others. None before the
        # first change, and while there are too many that are equal in the order.
        self._rows: pa.Table | None = None
        self._end: pa.Table | None = None

    @property
    def place(self) -> tuple[pa.Table | None, pa.Table | None]:
        """What is kept, which can be set back; its second part changes when other changes are near."""
        return self._rows, self._end

    @place.setter
    def place(self, place: tuple[pa.Table | None, pa.Table | None]) -> None:
        self._rows, self._end = place

    def change(self, at: int, rows: pa.Table) -> pa.Table | None:
        """What is asked for at a time, of which these are the changes that are near: rows with their counts,
        perhaps several with the same. None if there are too many that are equal in the order."""
        if self._rows is None:
            self._read(at)
        else:
            known = self._rows = add_up([self._rows, rows])
            check_counts(known, [c.name for c in self._wanted.columns])
            if self._end is not None and total(known) < self._wanted.needed:
                self._read(at)
            elif known.num_rows > 2 * self._wanted.kept:
                self._cut(known, self._wanted.kept)
        return None if self._rows is None else self._first(self._rows)

    def _read(self, at: int) -> None:
        asked = self._wanted.kept
        while asked <= MAX_KEPT:
            found = self._best(at, asked)
            names = [*(c.name for c in self._wanted.columns), DIFF_COLUMN]
            found = _bare(found.rename_columns(names))
            if (found.num_rows if self._each_once else total(found)) < asked:
                self._rows, self._end = found, None
                return
            # Of those that are equal to the last one there may be more.
            if self._cut(found, found.num_rows - 1):
                return
            asked *= 8
        self._rows = self._end = None

    def _cut(self, rows: pa.Table, place: int) -> bool:
        """Keep the rows before the one at this place in the order, and those equal to it; False if these are
        fewer than are asked for."""
        order, ranks = self._ranked(rows)
        ends = int(np.searchsorted(ranks, ranks[place]))
        before = rows.take(pa.array(order[:ends]))
        if total(before) < self._wanted.needed:
            return False
        self._rows, self._end = before, rows.take(pa.array(order[ends : ends + 1]))
        return True

    def near(self, rows: pa.Table) -> pa.Table:
        """Those of the changes that are before the end of what is kept."""
        if self._end is None or not rows.num_rows:
            return rows
        names = [c.name for c in self._wanted.columns]
        both = pa.concat_tables([rows.select(names), self._end.select(names)])
        order, ranks = self._ranked(both)
        place = np.empty(len(order), np.int64)
        place[order] = ranks
        return rows.filter(pa.array(place[:-1] < place[-1]))

    def _lanes(self, rows: pa.Table) -> Iterator[Lane]:
        types = {c.name: c.type for c in self._wanted.columns}
        return (
            lane
            for key in self._wanted.order
            if isinstance(key.node, Ref)
            for lane in order_lanes(
                contiguous(rows.column(key.node.name)),
                types[key.node.name],
                descending=key.descending,
                nulls_first=key.nulls_first,
            )
        )

    def _ranked(self, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """The rows' order, and in this order the number of each one's group of equal rows."""
        order, first = sort_rows(np.zeros(rows.num_rows, np.int64), self._lanes(rows))
        return order, np.cumsum(first) - 1

    def _first(self, rows: pa.Table) -> pa.Table:
        wanted = self._wanted
        ranks = self._ranked(rows)[1]
        others = (lane for c in wanted.columns for lane in row_lanes(contiguous(rows.column(c.name)), c.type))
        order, _ = sort_rows(np.zeros(rows.num_rows, np.int64), chain(self._lanes(rows), others))
        rows = rows.take(pa.array(order))
        ends = np.cumsum(contiguous(rows.column(DIFF_COLUMN)).to_numpy())
        begins = ends - contiguous(rows.column(DIFF_COLUMN)).to_numpy()
        last = wanted.needed
        if wanted.ties and 0 < last <= (ends[-1] if len(ends) else 0) and wanted.count:
            group = ranks[int(np.searchsorted(ends, last))]
            last = int(ends[int(np.searchsorted(ranks, group, side="right")) - 1])
        counts = np.clip(np.minimum(ends, last) - np.maximum(begins, wanted.skipped), 0, None)
        taken = pa.table([rows.column(n) for n in wanted.shown], names=list(wanted.shown))
        return taken.append_column(DIFF_COLUMN, pa.array(counts)).filter(pa.array(counts > 0))


class FirstRowsFollower:
    def __init__(
        self,
        wanted: Wanted,
        inner: Follower,
        best: Callable[[int, int], pa.Table],
        answer: Callable[[int], pa.Table],
        told: pa.Table,
        names: Sequence[str],
        holds: Sequence[Hold] = (),
    ) -> None:
        """`inner` follows all rows. `best` returns so many of the first rows at a time, `answer` the result;
        `told` is that just before the follower's frontier (all with their counts). `names` are those of the
        result's columns. `holds` are on what the two read, just before the frontier. The follower and they
        are closed with this one."""
        self._wanted = wanted
        self._inner = inner
        self._kept = FirstRows(wanted, best)
        self._answer = answer
        self._names = [*names, DIFF_COLUMN]
        self._told = _bare(told.rename_columns(self._names))
        self._holds = holds

    @property
    def frontier(self) -> int:
        return self._inner.frontier

    def advance(self) -> CollectionChanges | None:
        changes = self._inner.advance()
        if changes is None:
            return None
        end = changes.upper if changes.error is None else changes.error[0]
        names = [*(c.name for c in self._wanted.columns), TIME_COLUMN, DIFF_COLUMN]
        rows = _bare(changes.updates.rename_columns(names))
        rows = rows.filter(pc.less(rows.column(TIME_COLUMN), end))
        told: list[pa.Table] = [_stamped(self._told.slice(0, 0), changes.lower)]
        near = self._kept.near(rows)
        while near.num_rows:
            at = int(pc.min(near.column(TIME_COLUMN)).as_py())
            now = pc.equal(near.column(TIME_COLUMN), at)
            before = self._kept.place
            found = self._kept.change(at, near.filter(now).drop_columns([TIME_COLUMN]))
            answer = self._answer(at) if found is None else add_up([found])
            answer = _bare(answer.rename_columns(self._names))
            told.append(_stamped(add_up([answer, negated(self._told)]), at))
            self._told = answer
            if self._kept.place[1] is before[1]:
                near = near.filter(pc.invert(now))
            else:
                near = self._kept.near(rows.filter(pc.greater(rows.column(TIME_COLUMN), at)))
        for hold in self._holds:
            hold.advance(max(hold.at, self.frontier - 1))
        return CollectionChanges(pa.concat_tables(told), changes.lower, changes.upper, changes.error)

    def close(self) -> None:
        self._inner.close()
        for hold in self._holds:
            hold.release()


def _bare(rows: pa.Table) -> pa.Table:
    """Without what schemas say beside names and types."""
    return pa.table(rows.columns, names=rows.schema.names)


def _stamped(rows: pa.Table, at: int) -> pa.Table:
    """Rows with their counts as updates of one time."""
    times = pa.array(np.full(rows.num_rows, at, np.int64))
    return rows.add_column(rows.num_columns - 1, TIME_COLUMN, times)
