"""The follower of groups whose aggregates are kept as sums (`sql.bind.accumulated`).

The changes of the rows, each with its group and its values, come from a follower of a linear query. They are
added to the sums of their groups, which are looked up in an arrangement, whatever the size of the groups; the
answer is made of the sums as they were and as they are. Sums are exact, and their types are those in which
Spark sums: one that does not fit is the error that SELECT has. Columns, not rows, are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.arrangements import key_hash
from tidemill.errors import Internal, InvalidValue, LimitExceeded, TidemillError, Unavailable
from tidemill.query.multiset import NegativeMultiplicity, show_row
from tidemill.query.version_rows import difference
from tidemill.sql.bind.accumulated import AccumulatedQuery, Sum
from tidemill.sql.plan.versions import VERSION
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.key_local_changes import KeyIndex
from tidemill.subscribe.leaping import (
    MAX_LEAP_ROWS,
    CannotLeap,
    LeapingFollower,
    StillFailing,
    times_from,
    together,
)
from tidemill.types import wide
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous, numbers, valid_mask
from tidemill.types.identity import leaders
from tidemill.types.kernels import pc

# Sums of limbs of 32 bits fit 64 bits up to so many rows.
MAX_ROWS = 1 << 30

_LIMBS = 4
_LOW = np.int64(0xFFFFFFFF)
_SHIFT = np.int64(32)


class AccumulatingFollower:
    def __init__(
        self,
        query: AccumulatedQuery,
        changes: Follower,
        state: KeyIndex,
        evaluate: Callable[[pa.Table], pa.Table],
        names: Sequence[str],
        from_: int = 0,
    ) -> None:
        """`changes` follows `query.changes`; `state` has the sums just before its frontier. `evaluate` gives
        the answer over versions of the state. Both are closed with this one. What is before `from_` is not
        told."""
        self.frontier = max(changes.frontier, from_)
        self._query = query
        self._changes = changes
        self._state = state
        self._evaluate = evaluate
        self._names = list(names)
        more = [pa.field(TIME_COLUMN, pa.int64()), pa.field(DIFF_COLUMN, pa.int64())]
        self._empty = pa.schema([*list(query.schema)[:-1], *more]).empty_table()
        self._failure: TidemillError | None = None
        # The failure is one of `changes`.
        self._below = False
        # Changes that were read and not told: all that came since a failure.
        self._pending: pa.Table | None = None
        # From here on the query may have an answer again.
        self._leapt = self.frontier

    def advance(self) -> CollectionChanges | None:
        if self._failure is not None:
            raise self._failure
        while True:
            changes = self._next()
            if changes is None:
                return None
            lower, upper, error = changes.lower, changes.upper, changes.error
            end = upper if error is None else error[0]
            found, done = self._steps(changes.updates, lower, end)
            if self._failure is not None:
                self._pending = changes.updates.filter(
                    pc.greater_equal(changes.updates.column(TIME_COLUMN), done)
                )
                if done <= max(lower, self.frontier):
                    raise self._failure
                upper, error = done, None
            if upper > self.frontier:
                break
        updates = pa.concat_tables(found) if found else self._empty
        if lower < self.frontier:
            lower = self.frontier
            updates = updates.filter(pc.greater_equal(updates.column(TIME_COLUMN), lower))
        self.frontier = upper
        return CollectionChanges(
            updates.rename_columns([*self._names, TIME_COLUMN, DIFF_COLUMN]), lower, upper, error
        )

    def _next(self) -> CollectionChanges | None:
        """Of the rows: those that were read already, and then more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            return CollectionChanges(pending, self.frontier, self._changes.frontier)
        try:
            return self._changes.advance()
        except Unavailable:
            raise
        except TidemillError:
            self._below = True
            raise

    def leap(self) -> CollectionChanges | StillFailing | None:
        """See `LeapingFollower`."""
        lower = self.frontier
        if self._failure is None and not self._below:
            raise CannotLeap
        first = max(self._leapt, lower + 1)
        pending = {} if self._pending is None else {"": self._pending}
        if not len(times_from(pending, first)):
            found = self._behind(first)
            if isinstance(found, StillFailing):
                return found
            if found is not None:
                rows = [*pending.values(), found.updates]
                named = [r.rename_columns(rows[0].column_names) for r in rows]
                pending[""] = self._pending = pa.concat_tables(named)
        times = times_from(pending, first)
        if not len(times):
            self._leapt = max(first, self._changes.frontier)
            return StillFailing(first, self._leapt) if self._leapt > first else None
        if self._pending is None or self._pending.num_rows > MAX_LEAP_ROWS:
            raise CannotLeap
        at = int(times[0])
        stamps = self._pending.column(TIME_COLUMN)
        now = self._pending.filter(pc.less_equal(stamps, at))
        self._step(now.slice(0, 0), lower, lower)
        try:
            updates = self._step(together({"": now}, at).get("", now.slice(0, 0)), lower, at + 1)
        except Unavailable:
            raise
        except TidemillError as e:
            self._failure, self._leapt = e, at + 1
            return StillFailing(at, at + 1, e)
        self._pending = self._pending.filter(pc.greater(stamps, at))
        self._failure, self.frontier = None, at + 1
        return CollectionChanges(
            updates.rename_columns([*self._names, TIME_COLUMN, DIFF_COLUMN]), lower, at + 1
        )

    def _behind(self, first: int) -> CollectionChanges | StillFailing | None:
        """More changes, while there is a failure from before `first`."""
        found: CollectionChanges | StillFailing | None
        if self._below:
            if not isinstance(self._changes, LeapingFollower):
                raise CannotLeap
            found = self._changes.leap()
            self._below = not isinstance(found, CollectionChanges)
        else:
            try:
                found = self._changes.advance()
            except Unavailable:
                raise
            except TidemillError as e:
                self._below, at = True, self._changes.frontier
                found = StillFailing(at, at + 1, e)
        if isinstance(found, StillFailing):
            self._leapt = found.upper
        elif found is not None and found.error is not None:
            raise CannotLeap
        return found

    def _steps(self, updates: pa.Table, lower: int, end: int) -> tuple[list[pa.Table], int]:
        """The answer's changes, and up to where they could be evaluated; sets the failure that is there."""
        try:
            return [self._step(updates, lower, end)], end
        except Unavailable:
            raise
        except TidemillError as e:
            times = np.unique(_numbers(updates.column(TIME_COLUMN)))
            if len(times) <= 1:
                self._failure = e
                return [], int(times[0]) if len(times) else lower
        middle = int(times[len(times) // 2])
        stamps = updates.column(TIME_COLUMN)
        found, done = self._steps(updates.filter(pc.less(stamps, middle)), lower, middle)
        if self._failure is not None:
            return found, done
        more, done = self._steps(updates.filter(pc.greater_equal(stamps, middle)), middle, end)
        return [*found, *more], done

    def _step(self, updates: pa.Table, lower: int, end: int) -> pa.Table:
        query, state = self._query, self._state
        hashes = key_hash(updates, query.keys)
        if not updates.num_rows:
            state.append(_NOTHING, hashes, end)
            state.compact(end)
            return self._empty
        before = state.lookup(np.unique(hashes), lower)
        groups = _Groups.of(query, before, updates)
        times = np.unique(_numbers(updates.column(TIME_COLUMN)))
        stamps = np.searchsorted(times, _numbers(updates.column(TIME_COLUMN)))
        versions: list[pa.Table] = []
        for i in range(len(times)):
            rows = np.flatnonzero(stamps == i)
            touched = np.unique(groups.of_rows[rows])
            versions.append(groups.shown(touched, 2 * i))
            groups.add(rows)
            versions.append(groups.shown(touched, 2 * i + 1))
        table = pa.concat_tables(versions)
        found = self._empty
        if table.num_rows:
            found = difference(self._evaluate(table), times, query.schema.names[:-1])
        version = _numbers(table.column(VERSION))
        stored = table.drop_columns([VERSION, DIFF_COLUMN])
        stored = stored.append_column(TIME_COLUMN, pa.array(times[version // 2]))
        stored = stored.append_column(DIFF_COLUMN, pa.array(2 * (version.astype(np.int64) & 1) - 1))
        state.append(stored, key_hash(stored, query.keys), end)
        state.compact(end)
        return found

    def close(self) -> None:
        self._changes.close()
        self._state.close()


@dataclass(slots=True)
class _Groups:
    """The sums of some groups, by the number of the group. `of_rows`: the group of each row of the
    changes."""

    query: AccumulatedQuery
    keys: pa.Table
    of_rows: np.ndarray
    rows: np.ndarray
    counts: list[np.ndarray]
    # By the number of the sum, for those with a total.
    totals: dict[int, np.ndarray]
    diffs: np.ndarray
    # Of the rows of the changes.
    valid: list[np.ndarray]
    values: dict[int, np.ndarray]

    @staticmethod
    def of(query: AccumulatedQuery, before: pa.Table, updates: pa.Table) -> _Groups:
        """`before`: the state's rows of the groups, and perhaps others."""
        known, count = before.num_rows, before.num_rows + updates.num_rows
        names = list(query.keys)
        keys = pa.concat_tables([before.select(names), updates.select(names)])
        columns = [contiguous(column) for column in keys.columns]
        first = leaders(columns, count) if names else np.zeros(count, np.int64)
        chosen, numbers_ = np.unique(first, return_inverse=True)
        of_state, of_rows = numbers_[:known], numbers_[known:]
        if len(np.unique(of_state)) != known:
            raise Internal("the sums of a group are there twice")
        size = len(chosen)
        diffs = _numbers(updates.column(DIFF_COLUMN))
        if int(np.abs(diffs).sum()) > MAX_ROWS:
            raise LimitExceeded(f"more than {MAX_ROWS} rows change at once")

        def placed(column: str) -> np.ndarray:
            found = np.zeros(size, np.int64)
            found[of_state] = _numbers(before.column(column))
            return found

        totals: dict[int, np.ndarray] = {}
        values: dict[int, np.ndarray] = {}
        valid: list[np.ndarray] = []
        for i, each in enumerate(query.sums):
            column = contiguous(updates.column(each.value))
            valid.append(valid_mask(column))
            if each.total is not None:
                totals[i] = np.zeros((size, _LIMBS), np.int64)
                totals[i][of_state] = _limbs(contiguous(before.column(each.total)))
                values[i] = _limbs(_summed(column, query.state.field(each.total).type))
        return _Groups(
            query,
            keys.take(pa.array(chosen)),
            of_rows,
            placed("n"),
            [placed(each.count) for each in query.sums],
            totals,
            diffs,
            valid,
            values,
        )

    def add(self, rows: np.ndarray) -> None:
        """The changes at these places."""
        groups, diffs = self.of_rows[rows], self.diffs[rows]
        np.add.at(self.rows, groups, diffs)
        for i, valid in enumerate(self.valid):
            there = valid[rows]
            np.add.at(self.counts[i], groups[there], diffs[there])
            if i in self.totals:
                np.add.at(self.totals[i], groups[there], self.values[i][rows[there]] * diffs[there, None])
                self.totals[i] = _carried(self.totals[i])
        least = int(np.argmin(self.rows)) if len(self.rows) else 0
        if len(self.rows) and self.rows[least] < 0:
            row = self.keys.slice(least, 1).to_pylist()
            raise NegativeMultiplicity(-int(self.rows[least]), show_row(list(row[0].values()) if row else []))

    def shown(self, groups: np.ndarray, version: int) -> pa.Table:
        """The state's rows of those of the groups that have rows, with a version and the count 1."""
        if self.query.keys:
            groups = groups[self.rows[groups] > 0]
        made: dict[str, pa.Array | pa.ChunkedArray] = {}
        taken = self.keys.take(pa.array(groups))
        for name in self.query.keys:
            made[name] = taken.column(name)
        made["n"] = pa.array(self.rows[groups])
        for i, each in enumerate(self.query.sums):
            counts = self.counts[i][groups]
            made[each.count] = pa.array(counts)
            if each.total is not None:
                made[each.total] = _total(self.totals[i][groups], counts, self.query.state, each)
        fields = [pa.field(f.name, f.type) for f in self.query.state]
        table = pa.table([made[f.name] for f in fields], schema=pa.schema(fields))
        table = table.append_column(VERSION, pa.array(np.full(len(groups), version, np.int32)))
        return table.append_column(DIFF_COLUMN, pa.array(np.ones(len(groups), np.int64)))


def _summed(column: pa.Array, total: pa.DataType) -> pa.Array:
    """The values in the scale of their sum."""
    if pa.types.is_decimal(column.type) and column.type.scale != total.scale:
        return column.cast(pa.decimal128(38, total.scale))
    return column


def _limbs(column: pa.Array) -> np.ndarray:
    """The (unscaled) value of each row in limbs of 32 bits, the last one with the sign; zero where null."""
    if pa.types.is_decimal(column.type):
        low, high = wide.words(column)
        first = low.view(np.int64)
    else:
        first = np.where(valid_mask(column), numbers(column, np.int64), 0)
        high = first >> np.int64(63)
    return np.stack([first & _LOW, (first >> _SHIFT) & _LOW, high & _LOW, high >> _SHIFT], axis=1)


def _carried(limbs: np.ndarray) -> np.ndarray:
    """The same numbers with all limbs but the last in [0, 2**32)."""
    made = limbs.copy()
    for i in range(_LIMBS - 1):
        made[:, i + 1] += made[:, i] >> _SHIFT
        made[:, i] &= _LOW
    return made


def _total(limbs: np.ndarray, counts: np.ndarray, state: pa.Schema, each: Sum) -> pa.Array:
    """The sums as a column of the state: NULL without a value. Raises the error of one that does not
    fit."""
    t = state.field(each.total or "").type
    low = limbs[:, 0] | (limbs[:, 1] << _SHIFT)
    high = limbs[:, 2] | (limbs[:, 3] << _SHIFT)
    fits = limbs[:, 3] == limbs[:, 3].astype(np.int32)
    null = counts == 0
    if pa.types.is_int64(t):
        fits &= high == low >> np.int64(63)
        made = pa.array(low, t, mask=null)
    else:
        words = np.empty((len(low), 2), np.int64)
        words[:, 0], words[:, 1] = low, high
        words[null] = 0
        bits = pa.array(~null).cast(pa.bool_()).buffers()[1] if null.any() else None
        made = pa.Array.from_buffers(t, len(low), [bits, pa.py_buffer(words)])
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        fits = np.zeros(len(low), np.bool_)
    if not bool((fits | null).all()):
        raise InvalidValue("value out of range: overflow", sqlstate="22003")
    return made


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return contiguous(column).to_numpy()


_NOTHING = pa.table({TIME_COLUMN: pa.array([], pa.int64()), DIFF_COLUMN: pa.array([], pa.int64())})
