"""CDCv2 writer: decides what to write for a collection, and in which order.

Called by sinks. No I/O: the caller sends messages and reports acknowledgements. The one rule: a statement is
sent only after all updates that its writer contributes to it are acknowledged. Everything that the writer has
stated is therefore durable, and after a crash it resumes from there without other state. It then writes the
same updates again, which readers drop.

Several writers may write one history, because a collection is definite: all make the same statements. Either
all write everything (one may fail), or each writes the updates whose hash belongs to it (`share`). Statements
count all updates in both cases, so each writer makes complete statements and waits for no other. The start of
a stream (`start`) is part of the history: all its writers must use the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.column_recovery import keys_of
from tidemill.cdcv2.column_stash import ColumnStash, hash_updates
from tidemill.cdcv2.columns import UpdateColumns, check_columns, distinct_times
from tidemill.cdcv2.coverage import MAX_FRONTIER, StatedSpan, empty_coverage
from tidemill.cdcv2.digest import sealed, signed
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.times import Frontier, Time, beyond, checked, items_of, kind_of, minimal, within
from tidemill.errors import Internal, LimitExceeded


class Writer:
    """One writer of one stream, between two statements. The round: `add` as often as needed, and send the
    result; `acknowledged` for each batch; `state`, and send the result; `stated`. A round without `add` says
    that nothing happened, which readers need to know too."""

    def __init__(
        self,
        schema: pa.Schema,
        lower: Sequence[Time],
        *,
        digests: bool = False,
        share: tuple[int, int] | None = None,
    ) -> None:
        """Continues from `lower`, the upper of its last durable statement (`resume_from` finds it). A new
        stream begins at the least time (`begin`) if its first round contains a snapshot, all of it at one
        time. Otherwise it begins at the time from which on changes are written, and readers need a separate
        snapshot. With `share` (i, n) it sends only the updates whose hash is i modulo n."""
        self._schema = schema
        # Everything before it was stated, durably.
        self._lower: Frontier = _frontier(lower, "lower")
        self._digests = digests
        self._share = share
        # The round's contents: the distinct updates per time, and the sum of their hashes.
        self._counts: dict[Time, int] = {}
        self._contents: dict[Time, int] = {}
        # Batches that were returned for sending and are not acknowledged yet.
        self._in_flight = 0
        # The statement that was returned for sending and is not acknowledged yet.
        self._stating: Progress | None = None

    @property
    def lower(self) -> list[Time]:
        """The lower bound of the next statement: everything before it is durable."""
        return list(self._lower)

    def add(self, updates: UpdateColumns) -> UpdateColumns | None:
        """Adds updates of this round; each row may occur at each time once in the whole round (see
        `consolidate`). Returns the updates to send; None if none belong to this writer."""
        if self._stating is not None:
            raise Internal("updates were added while a statement is on its way")
        check_columns(updates, self._schema, "the collection")
        if not len(updates):
            return None
        if not bool(updates.diffs.all()):
            raise Internal("an update that changes nothing was to be written")
        times, codes = distinct_times(updates.times)
        early = next((t for t in times if not beyond(self._lower, t)), None)
        if early is not None:
            raise Internal(f"an update at {early} was to be written, after a statement up to {self.lower}")
        for time, count in zip(times, np.bincount(codes, minlength=len(times)).tolist(), strict=True):
            self._counts[time] = self._counts.get(time, 0) + count
        # Hashes take as long as all other work, so they are computed only if needed.
        keys = keys_of(updates) if self._digests or self._share is not None else np.empty(0, np.uint64)
        if self._digests:
            sums = np.zeros(len(times), np.uint64)
            with np.errstate(over="ignore"):
                np.add.at(sums, codes, hash_updates(keys, updates.diffs))
            for time, content in zip(times, sums.tolist(), strict=True):
                self._contents[time] = self._contents.get(time, 0) + content
        if self._share is not None:
            index, writers = self._share
            mine = np.flatnonzero(keys % np.uint64(writers) == np.uint64(index))
            if not mine.size:
                return None
            updates = updates.take(mine)
        self._in_flight += 1
        return updates

    def acknowledged(self, batches: int = 1) -> None:
        """Reports that this number of returned batches is durable."""
        if batches > self._in_flight:
            raise Internal(f"{batches} batches acknowledged of {self._in_flight} that were sent")
        self._in_flight -= batches

    def state(self, upper: Sequence[Time]) -> Progress:
        """The round has everything before `upper` ([] = all of the history): returns the statement to
        send."""
        if self._in_flight or self._stating is not None:
            raise Internal("a statement was asked for before what it counts is durable")
        bound = _frontier(upper, "upper")
        if len(bound) != len(upper) or not all(beyond(self._lower, t) for t in bound):
            raise Internal(f"a statement from {self.lower} to {list(upper)}")
        late = next((t for t in self._counts if not within(self._lower, bound, t)), None)
        if late is not None:
            raise Internal(f"an update at {late} was written for a statement up to {list(upper)}")
        times = sorted(self._counts, key=_order)
        progress = Progress(list(self._lower), list(bound), [(t, self._counts[t]) for t in times])
        if self._digests:
            progress = sealed(progress, [signed(self._contents[t]) for t in times])
        self._stating = progress
        return progress

    def stated(self) -> None:
        """Reports that the statement is durable: the next round begins."""
        if self._stating is None:
            raise Internal("a statement acknowledged that was not sent")
        self._lower = tuple(self._stating.upper)
        self._counts, self._contents, self._stating = {}, {}, None


def resume_from(statements: Iterable[Progress], start: Sequence[Time]) -> list[Time]:
    """Where a writer continues: how far its own durable statements reach from `start` without a gap."""
    reached = _frontier(start, "start")
    coverage = None
    for said in statements:
        statement = StatedSpan(minimal(said.lower), minimal(said.upper), said.origin or "the stream")
        if not statement.lower:
            continue
        if coverage is None:
            coverage = empty_coverage(kind_of(statement.lower[0]))
        coverage.add(statement)
        reached = coverage.extend(reached, statement)
    if coverage is not None and coverage.held_back:
        raise LimitExceeded(f"the statements leave off at more than {MAX_FRONTIER} times")
    return list(reached)


def consolidate(updates: UpdateColumns) -> UpdateColumns:
    """Each row at each time once, with the sum of its diffs; rows whose sum is zero are dropped."""
    if not len(updates):
        return updates
    stash = ColumnStash(updates.data.schema)
    times, codes = distinct_times(updates.times)
    fresh, again, equal_to = stash.add(updates, times, codes, keys_of(updates), "the collection")
    first = np.flatnonzero(fresh)
    largest = max(int(updates.diffs.max()), -int(updates.diffs.min()))
    if largest * len(updates) >= 2**63:
        raise Internal("the sum of the diffs may not fit 64 bits", detail=f"One is {largest}.")
    sums = updates.diffs[first]
    np.add.at(sums, equal_to, updates.diffs[again])
    kept = np.flatnonzero(sums)
    rows = updates.take(first[kept])
    return UpdateColumns(rows.data, rows.times, sums[kept], updates.origin)


def _frontier(times: Iterable[Time], what: str) -> Frontier:
    """Raises InvalidMessage."""
    return minimal(checked(t, what) for t in items_of(times, "times", what))


def _order(time: Time) -> tuple[int, ...]:
    return (time,) if isinstance(time, int) else time
