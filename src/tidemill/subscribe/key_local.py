"""The follower of a query that is local to keys: its changes at the cost of the keys that changed.

The query is a chain of stages (`sql.plan.stages`). For the keys that changes of a stage's inputs touch, the
stage is evaluated over their rows just before and at the time of the changes; the difference is the change of
its answer, and an input of the stages after it. The rows are looked up in arrangements of the inputs by these
keys. The answer itself is not kept where that of the old rows comes out as it did before, which is a property
of the stages (`sql.plan.reproducible`). Otherwise it is: then it is looked up by the same key (`replaced`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.arrangements import ArrangementLost
from tidemill.errors import TidemillError, Unavailable
from tidemill.persist.holds import Hold
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.key_local_changes import KeyIndex, RunningStage, StageChanges, TooMany, bare, times_of
from tidemill.subscribe.leaping import MAX_LEAP_ROWS, CannotLeap, StillFailing, times_from, together
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

# Changes that are read before they are evaluated, while more are at hand: a follower that catches up
# evaluates many times at once.
GATHER_ROWS = 100_000
GATHER_SPANS = 256


@dataclass(slots=True)
class _Input:
    """A relation: `waiting` are updates that were read and not yet returned."""

    follower: Follower
    columns: list[str]
    waiting: list[pa.Table]
    error: tuple[int, str] | None = None


class KeyLocalFollower:
    def __init__(
        self,
        open_stages: Callable[[int], Sequence[RunningStage]],
        inputs: Mapping[str, Follower],
        columns: Mapping[str, Sequence[str]],
        from_: int,
        names: Sequence[str],
        holds: Sequence[Hold] = (),
        begun: tuple[int, Sequence[RunningStage]] | None = None,
    ) -> None:
        """`open_stages` returns the stages with their indexes at a time. `inputs`: by placeholder, followers
        of the relations from `from_` on; `columns`: what the stages use of them. `names` are those of the
        answer's columns. `holds` are on the inputs, just before `from_`. With `begun` the stages are open at
        an earlier time, and the followers begin there. All is closed with this one, but only if it could be
        made."""
        self.frontier = from_
        self._open_stages = open_stages
        # The indexes and the inputs are there; at first perhaps not as far as what was told.
        self._position, self._stages = begun or (from_, open_stages(from_))
        self._inputs = {name: _Input(f, list(columns[name]), []) for name, f in inputs.items()}
        self._names = [*names, TIME_COLUMN, DIFF_COLUMN]
        self._holds = holds
        # An error of an expression, to be raised after all earlier changes.
        self._failure: TidemillError | None = None
        self._changes = StageChanges()
        # From here on the query may have an answer again.
        self._leapt = self._position

    def advance(self) -> CollectionChanges | None:
        if self._failure is not None:
            raise self._failure
        while True:
            until = self._read()
            if until <= self._position:
                return None
            found, error = self._follow(until)
            # What is before the frontier was only needed to come there.
            if self._position > self.frontier:
                break
        updates = pa.concat_tables(found) if found else self._stages[-1].empty
        lower, self.frontier = self.frontier, self._position
        if updates.num_rows:
            updates = updates.filter(pc.greater_equal(updates.column(TIME_COLUMN), lower))
        for hold in self._holds:
            hold.advance(max(hold.at, self.frontier - 1))
        return CollectionChanges(updates.rename_columns(self._names), lower, self.frontier, error)

    def leap(self) -> CollectionChanges | StillFailing | None:
        """See `LeapingFollower`."""
        lower, until = self._position, self._read()
        rows = sum(t.num_rows for i in self._inputs.values() for t in i.waiting)
        failed = any(i.error is not None for i in self._inputs.values())
        if self._failure is None or lower != self.frontier or failed or rows > MAX_LEAP_ROWS:
            raise CannotLeap
        first = max(self._leapt, lower + 1)
        times = times_from(self._waiting(until), first)
        if not len(times):
            if until <= first:
                return None
            self._leapt = until
            return StillFailing(first, until)
        at = int(times[0])
        self._changes.forget()
        try:
            updates = self._step(together(self._waiting(at + 1), at), lower, at + 1)
        except Unavailable:
            raise
        except TooMany:
            raise CannotLeap from None
        except TidemillError as e:
            self._leapt = at + 1
            return StillFailing(at, at + 1, e)
        self._taken(at + 1)
        self._failure = None
        self.frontier = self._position = self._leapt = at + 1
        return CollectionChanges(updates.rename_columns(self._names), lower, at + 1)

    def _follow(self, until: int) -> tuple[list[pa.Table], tuple[int, str] | None]:
        """The changes from the position to `until`, or to where they can be evaluated, and the error of an
        input that is there. Raises an error if there is nothing before it."""
        error = min((i.error for i in self._inputs.values() if i.error is not None), default=None)
        if error is not None and error[0] >= until:
            error = None
        lower, end = self._position, until if error is None else error[0]
        tables = self._waiting(end)
        try:
            done, found = self._evaluate(tables, lower, end)
        except ArrangementLost:
            if any(stage.recalled is not None for stage in self._stages):
                raise  # another answer may have been told
            self._close_indexes()
            self._stages = self._open_stages(lower)
            done, found = self._evaluate(tables, lower, end)
        self._taken(done)
        self._position = self._leapt = until if done == end else done
        if self._failure is not None and self._position <= max(lower, self.frontier):
            raise self._failure
        return found, error if done == end else None

    # -- inputs

    def _read(self) -> int:
        """Reads ahead where an input holds the others back; returns where all are complete."""
        for _ in range(GATHER_SPANS):
            behind = min(i.follower.frontier for i in self._inputs.values())
            late = [i for i in self._inputs.values() if i.follower.frontier <= behind]
            if not [i for i in late if self._read_one(i)]:
                break
            if sum(t.num_rows for i in self._inputs.values() for t in i.waiting) > GATHER_ROWS:
                break
        return min(i.follower.frontier for i in self._inputs.values())

    def _read_one(self, given: _Input) -> bool:
        """Whether more may be at hand."""
        changes = given.follower.advance()
        if changes is None:
            return False
        if changes.error is not None and given.error is None:
            given.error = changes.error
        rows = changes.updates
        if rows.num_rows:
            # The query may not use the columns in which rows differ.
            rows = consolidate(rows.select([*given.columns, TIME_COLUMN, DIFF_COLUMN]), RelationDesc())
            given.waiting.append(bare(rows))
        return not changes.idle

    def _waiting(self, until: int) -> dict[str, pa.Table]:
        """The updates with a time before `until`."""
        found: dict[str, pa.Table] = {}
        for name, given in self._inputs.items():
            if given.waiting:
                waiting = pa.concat_tables(given.waiting)
                found[name] = waiting.filter(pc.less(waiting.column(TIME_COLUMN), until)).combine_chunks()
        return {name: table for name, table in found.items() if table.num_rows}

    def _taken(self, until: int) -> None:
        for given in self._inputs.values():
            late = [t.filter(pc.greater_equal(t.column(TIME_COLUMN), until)) for t in given.waiting]
            given.waiting = [t for t in late if t.num_rows]

    # -- evaluation

    def _evaluate(self, tables: Mapping[str, pa.Table], lower: int, upper: int) -> tuple[int, list[pa.Table]]:
        """The query's updates in [lower, upper), and up to where they could be evaluated; sets the failure
        that is there."""
        try:
            return upper, [self._step(tables, lower, upper)]
        except Unavailable:
            raise
        except (TidemillError, TooMany) as e:
            times = np.unique(np.concatenate([times_of(t) for t in tables.values()]))
            if len(times) == 1 and isinstance(e, TidemillError):
                self._failure = e
                first = int(times[0])
                if first > lower:
                    self._step({}, lower, first)
                return first, []
        middle = int(times[len(times) // 2])
        early = {name: t.filter(pc.less(t.column(TIME_COLUMN), middle)) for name, t in tables.items()}
        done, found = self._evaluate({n: t for n, t in early.items() if t.num_rows}, lower, middle)
        if done < middle:
            return done, found
        late = {n: t.filter(pc.greater_equal(t.column(TIME_COLUMN), middle)) for n, t in tables.items()}
        done, more = self._evaluate({n: t for n, t in late.items() if t.num_rows}, middle, upper)
        return done, [*found, *more]

    def _step(self, tables: Mapping[str, pa.Table], lower: int, upper: int) -> pa.Table:
        """All stages over the changes in [lower, upper). The indexes advance when all have succeeded."""
        known = dict(tables)
        appended: list[tuple[KeyIndex, pa.Table, np.ndarray]] = []
        updates = self._stages[-1].empty
        for stage in self._stages:
            changes = {i.name: known[i.source] for i in stage.inputs if i.source in known}
            keyed = [i for i in stage.inputs if i.name in changes and (i.index or stage.sums)]
            hashes = {i.name: i.hashes(changes[i.name]) for i in keyed}
            updates = self._changes.of(stage, changes, hashes, lower)
            own = stage.own
            if own is not None and own.index is not None and updates.num_rows:
                appended.append((own.index, updates, own.hashes(updates)))
            for each in stage.inputs:
                if each.index is not None and each.name in changes:
                    appended.append((each.index, changes[each.name], hashes[each.name]))
            if updates.num_rows:
                known[stage.name] = updates
        for index, rows, of in appended:
            index.append(rows, of, upper)
        for index in self._indexes():
            if all(index is not other for other, _, _ in appended):
                index.append(_NOTHING, _NO_HASHES, upper)
            index.compact(upper)
        return updates

    def _indexes(self) -> list[KeyIndex]:
        read = [i for s in self._stages for i in (*s.inputs, *(() if s.own is None else (s.own,)))]
        return [i.index for i in read if i.index is not None]

    def _close_indexes(self) -> None:
        for index in self._indexes():
            index.close()

    def close(self) -> None:
        self._close_indexes()
        for given in self._inputs.values():
            given.follower.close()
        for hold in self._holds:
            hold.release()


_NO_HASHES = np.zeros(0, np.uint64)
_NOTHING = pa.table({TIME_COLUMN: pa.array([], pa.int64()), DIFF_COLUMN: pa.array([], pa.int64())})
