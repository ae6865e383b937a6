"""A follower of a linear query: its expressions over the changes of its inputs, and nothing else.

Made by `engine.following` where `sql.bind.linearity` finds that the query is linear; driven like any
follower. Only the rows that changed are read, however large the inputs are, and many queries share a job
(`query.evaluations`). A scalar error of a change is reported at its time, after all earlier changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError, Unavailable
from tidemill.query.evaluations import Evaluations
from tidemill.query.linear_changes import ChangePiece, Formula
from tidemill.sql.bind import ROW, Branch
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import RelationFollower
from tidemill.subscribe.leaping import MAX_LEAP_ROWS, CannotLeap, StillFailing, times_from, together
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import Column, RelationDesc


def told_names(columns: Sequence[Column]) -> list[str]:
    """The column names of a query's updates: the query's own, unless that would be ambiguous. (Shaping takes
    updates by position.)"""
    names = [c.name for c in columns]
    if len({*names, TIME_COLUMN, DIFF_COLUMN}) < len(names) + 2:
        return [f"c{i}" for i in range(len(names))]
    return names


@dataclass(slots=True)
class _Input:
    """One relation that the query reads. `waiting`: updates that were read but not yet returned, because
    another input is not complete there; one batch at most."""

    follower: RelationFollower
    formulas: list[Formula]
    waiting: pa.Table | None = None
    error: tuple[int, str] | None = None


class LinearFollower:
    def __init__(
        self,
        evaluations: Evaluations,
        columns: Sequence[Column],
        branches: Sequence[Branch],
        inputs: Mapping[str, RelationFollower],
        from_: int,
    ) -> None:
        """`inputs`: by the branches' placeholders, followers of the relations from `from_` on (at least
        one); they are closed with this one."""
        self.frontier = from_
        self._evaluations = evaluations
        self._names = [*told_names(columns), TIME_COLUMN, DIFF_COLUMN]
        self._inputs = {name: _Input(follower, []) for name, follower in inputs.items()}
        for branch in branches:
            self._inputs[branch.placeholder].formulas.append(Formula(branch, columns))
        bare = arrow_schema(RelationDesc(tuple(Column(f"c{i}", c.type) for i, c in enumerate(columns))))
        self._schema = bare.append(pa.field(TIME_COLUMN, pa.int64())).append(
            pa.field(DIFF_COLUMN, pa.int64())
        )
        # An error of an expression, to be raised after all earlier changes.
        self._failure: TidemillError | None = None
        # From here on the query may have an answer again.
        self._leapt = from_
        self._member = evaluations.join(f.relation for f in inputs.values())

    def advance(self) -> CollectionChanges | None:
        if self._failure is not None:
            raise self._failure
        until = self._read()
        if until <= self.frontier:
            return None
        error = min((i.error for i in self._inputs.values() if i.error is not None), default=None)
        if error is not None and error[0] >= until:
            error = None
        tables = self._take(until if error is None else error[0])
        try:
            updates = self._evaluate(tables)
        except Unavailable:
            raise
        except TidemillError as e:
            return self._until_failure(tables, e)
        lower, self.frontier = self.frontier, until
        return CollectionChanges(updates, lower, until, error)

    def leap(self) -> CollectionChanges | StillFailing | None:
        """See `LeapingFollower`."""
        lower, until = self.frontier, self._read()
        waiting = {name: i.waiting for name, i in self._inputs.items() if i.waiting is not None}
        failed = any(i.error is not None for i in self._inputs.values())
        if self._failure is None or failed or sum(t.num_rows for t in waiting.values()) > MAX_LEAP_ROWS:
            raise CannotLeap
        first = max(self._leapt, lower + 1)
        times = times_from(waiting, first)
        times = times[times < until]
        if not len(times):
            if until <= first:
                return None
            self._leapt = until
            return StillFailing(first, until)
        at = int(times[0])
        taken = self._take(at + 1)
        try:
            updates = self._evaluate(together(taken, at), apart=True)
        except Unavailable:
            raise
        except TidemillError as e:
            self._put_back(taken, lower)
            self._leapt = at + 1
            return StillFailing(at, at + 1, e)
        self._failure = None
        self._evaluations.come_back(self._member)
        self.frontier = at + 1
        return CollectionChanges(updates, lower, at + 1)

    def _read(self) -> int:
        """Reads ahead where an input holds the others back; returns where all are complete."""
        behind = min(i.follower.frontier for i in self._inputs.values())
        for given in self._inputs.values():
            if given.follower.frontier > behind:
                continue
            changes = given.follower.advance()
            if changes is None:
                continue
            if changes.error is not None and given.error is None:
                given.error = changes.error
            if changes.updates.num_rows:
                rows = changes.updates
                given.waiting = rows if given.waiting is None else pa.concat_tables([given.waiting, rows])
        return min(i.follower.frontier for i in self._inputs.values())

    def _take(self, until: int) -> dict[str, pa.Table]:
        """The waiting updates with a time before `until`."""
        taken: dict[str, pa.Table] = {}
        for name, given in self._inputs.items():
            waiting = given.waiting
            if waiting is None:
                continue
            now = pc.less(waiting.column(TIME_COLUMN), until)
            taken[name] = waiting.filter(now)
            later = waiting.filter(pc.invert(now))
            given.waiting = later if later.num_rows else None
        return {name: table for name, table in taken.items() if table.num_rows}

    def _put_back(self, taken: Mapping[str, pa.Table], from_: int) -> None:
        """The updates from a time on were not returned after all."""
        for name, table in taken.items():
            given, rows = self._inputs[name], table.filter(pc.greater_equal(table.column(TIME_COLUMN), from_))
            given.waiting = rows if given.waiting is None else pa.concat_tables([rows, given.waiting])

    def _evaluate(self, tables: Mapping[str, pa.Table], *, apart: bool = False) -> pa.Table:
        """The query's updates, each row of a time once, in the order of time."""
        pieces = [
            ChangePiece(formula, table)
            for name, table in tables.items()
            for formula in self._inputs[name].formulas
        ]
        self._evaluations.evaluate(self._member, pieces, apart=apart)
        rows = [self._stamped(piece) for piece in pieces]
        updates = pa.concat_tables(rows) if rows else self._schema.empty_table()
        if updates.num_rows:
            updates = consolidate(updates, RelationDesc()).sort_by(TIME_COLUMN)
        return updates.rename_columns(self._names)

    def _stamped(self, piece: ChangePiece) -> pa.Table:
        rows = piece.result
        numbers = rows.column(ROW)
        of = piece.table.select([TIME_COLUMN, DIFF_COLUMN]).take(numbers)
        columns = [*rows.columns[:-1], of.column(0), of.column(1)]
        return pa.table(columns, schema=self._schema)

    def _until_failure(self, tables: Mapping[str, pa.Table], error: TidemillError) -> CollectionChanges:
        """A change cannot be evaluated: return the changes before its time, and then the error."""
        stamps = [t.column(TIME_COLUMN).to_numpy() for t in tables.values()]
        times: list[int] = np.unique(np.concatenate(stamps)).tolist()
        good, bad = 0, len(times)
        # Everything before times[good] can be evaluated, everything before times[bad] cannot.
        updates = self._evaluate({})
        while bad - good > 1:
            middle = (good + bad) // 2
            cut = {
                name: t.filter(pc.less(t.column(TIME_COLUMN), times[middle])) for name, t in tables.items()
            }
            try:
                updates = self._evaluate({name: t for name, t in cut.items() if t.num_rows})
                good = middle
            except Unavailable:
                raise
            except TidemillError as e:
                bad, error = middle, e
        self._failure = error
        # The others need not wait for it.
        self._evaluations.leave(self._member)
        self._put_back(tables, times[good])
        lower, self.frontier = self.frontier, times[good]
        if times[good] == lower:
            raise error
        return CollectionChanges(updates, lower, self.frontier)

    def close(self) -> None:
        self._evaluations.leave(self._member)
        for given in self._inputs.values():
            given.follower.close()
