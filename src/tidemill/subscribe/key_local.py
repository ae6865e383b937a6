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
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.arrangements import ArrangementLost, key_hash
from tidemill.errors import TidemillError, Unavailable
from tidemill.persist.holds import Hold
from tidemill.query.multiset import NegativeMultiplicity, add_up, negated, total
from tidemill.query.version_rows import (
    Touched,
    difference,
    loose_versions,
    replaced,
    same_in_all,
    signed_versions,
    unchanged_versions,
    versions,
)
from tidemill.sql.plan.versions import VERSION
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

# Changes that are read before they are evaluated, while more are at hand: a follower that catches up
# evaluates many times at once.
GATHER_ROWS = 100_000
GATHER_SPANS = 256
# The rows of one evaluation, over all versions. Several times are evaluated apart if they have more.
MAX_VERSION_ROWS = 2_000_000


class KeyIndex(Protocol):
    """An arrangement: the rows of a collection by the hash of a key, as `tidemill.arrangements` keeps
    them."""

    def lookup(self, hashes: np.ndarray, before: int) -> pa.Table: ...

    def count(self, hashes: np.ndarray) -> int: ...

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int) -> None: ...

    def compact(self, to: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """`name` is what the stage's query calls it, `source` the relation's placeholder or the stage that it is.
    `key` are columns of it, and `index` has its rows by them; both are empty for an input of which the
    changes alone are needed. `single`: it has one row, for all keys. `schema` is that of its columns."""

    name: str
    source: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    index: KeyIndex | None = None
    single: bool = False

    def hashes(self, rows: pa.Table) -> np.ndarray:
        return key_hash(rows, self.key)


@dataclass(frozen=True, slots=True)
class RunningStage:
    """`evaluate` gives the stage's rows, with their version last, over the versions of the inputs, `whole`
    its whole answer at a time, each row once with its count. Of the inputs that are `linear` the changes
    alone are needed while the others stay as they are. `names` are those of its columns; `empty` has
    them, the time and the diff."""

    name: str
    inputs: tuple[KeyedInput, ...]
    linear: frozenset[str]
    evaluate: Callable[[Mapping[str, pa.Table]], pa.Table]
    whole: Callable[[int], pa.Table]
    names: tuple[str, ...]
    empty: pa.Table
    # Of a stage that keeps sums: its own rows, by the key of the groups; its inputs have no index.
    sums: KeyedInput | None = None
    # Of a stage whose old answers are not computed again: its own rows, by the key of its inputs.
    recalled: KeyedInput | None = None

    @property
    def own(self) -> KeyedInput | None:
        """Its own rows, if they are kept."""
        return self.sums or self.recalled


class _TooMany(Exception):
    """The versions of these times have more rows than one evaluation may."""


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
        # By stage: its whole answer, if it was computed at the last time at which its inputs changed.
        self._answers: dict[str, tuple[int, pa.Table]] = {}

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
        self._taken(end)
        self._position = until if done == end else done
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
            given.waiting.append(_bare(rows))
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
        except (TidemillError, _TooMany) as e:
            times = np.unique(np.concatenate([_times(t) for t in tables.values()]))
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
            if stage.sums is not None:
                updates = _changed_sums(stage, stage.sums, changes, hashes, lower)
            elif stage.recalled is not None:
                updates = _replaced(stage, stage.recalled, changes, hashes, lower)
            else:
                updates = self._changes(stage, changes, hashes, lower)
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

    def _changes(
        self,
        stage: RunningStage,
        changes: Mapping[str, pa.Table],
        hashes: Mapping[str, np.ndarray],
        lower: int,
    ) -> pa.Table:
        """The changes of a stage's answer; `hashes` are those of the keys of the changes."""
        if not changes:
            return stage.empty
        times = np.unique(np.concatenate([_times(t) for t in changes.values()]))
        singles = {i.name for i in stage.inputs if i.single}
        if not singles.isdisjoint(changes):
            return self._at_once(stage, times)
        # Where that helps, the inputs change one after the other at each time.
        ways = len(stage.inputs) if stage.linear else 1
        steps = {
            each.name: np.searchsorted(times, _times(changes[each.name])) * ways + number % ways
            for number, each in enumerate(stage.inputs)
            if each.name in changes
        }
        reached = np.unique(np.concatenate(list(steps.values())))
        touched = Touched.of(reached, list(hashes.values()), [steps[n] for n in hashes])
        asked: dict[str, Touched] = {}
        for number, each in enumerate(stage.inputs):
            if each.index is not None and not each.single:
                alone = each.name in stage.linear
                asked[each.name] = touched.where(reached % ways != number) if alone else touched
        # Counted before they are read: they may be most of a collection.
        found = sum(
            i.index.count(asked[i.name].keys) for i in stage.inputs if i.index is not None and not i.single
        )
        if found > MAX_VERSION_ROWS:
            return self._at_once(stage, times)
        tables: dict[str, pa.Table] = {}
        for each in stage.inputs:
            own = _no_changes(each.schema)
            if each.name in changes:
                own = changes[each.name]
                place = own.schema.get_field_index(TIME_COLUMN)
                own = own.set_column(place, TIME_COLUMN, pa.array(steps[each.name]))
            if each.index is None:
                tables[each.name] = loose_versions(reached, own)
                continue
            if each.single:
                rows = each.index.lookup(_ALL, lower).select([*each.schema.names, DIFF_COLUMN])
                tables[each.name] = same_in_all(len(reached), _bare(rows))
                continue
            of_keys, alone = asked[each.name], each.name in stage.linear
            before = _bare(each.index.lookup(of_keys.keys, lower).select([*each.schema.names, DIFF_COLUMN]))
            of = hashes.get(each.name, _NO_HASHES)
            rows = versions(of_keys, before, each.hashes(before), own, of)
            tables[each.name] = pa.concat_tables([rows, loose_versions(reached, own)]) if alone else rows
        if sum(map(total, tables.values())) > MAX_VERSION_ROWS:
            return self._at_once(stage, times)
        self._answers.pop(stage.name, None)
        return difference(stage.evaluate(tables), times[reached // ways], stage.names)

    def _at_once(self, stage: RunningStage, times: np.ndarray) -> pa.Table:
        """The changes of a stage's whole answer; of one time, so that it need not be computed for others."""
        if len(times) > 1:
            raise _TooMany
        at = int(times[0])
        last = self._answers.pop(stage.name, None)
        # Since then nothing has changed, unless this is another attempt at the same time.
        before = last[1] if last is not None and last[0] < at else stage.whole(at - 1)
        now = stage.whole(at)
        changed = add_up([now, negated(before)]).rename_columns([*stage.names, DIFF_COLUMN])
        self._answers[stage.name] = (at, now)
        stamps = pa.array(np.full(changed.num_rows, at))
        return changed.add_column(len(stage.names), TIME_COLUMN, stamps)

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


def _changed_sums(
    stage: RunningStage,
    sums: KeyedInput,
    changes: Mapping[str, pa.Table],
    hashes: Mapping[str, np.ndarray],
    lower: int,
) -> pa.Table:
    """The changes of the sums of the touched groups."""
    if not changes or sums.index is None:
        return stage.empty
    times = np.unique(np.concatenate([_times(t) for t in changes.values()]))
    touched = Touched.of(times, list(hashes.values()), [_times(changes[n]) for n in hashes])
    tables = {
        i.name: signed_versions(
            touched, changes.get(i.name, _no_changes(i.schema)), hashes.get(i.name, _NO_HASHES)
        )
        for i in stage.inputs
    }
    if len(times) > 1 and sum(map(total, tables.values())) > MAX_VERSION_ROWS:
        raise _TooMany
    before = sums.index.lookup(touched.keys, lower).select([*sums.schema.names, DIFF_COLUMN])
    tables[sums.name] = unchanged_versions(touched, before, sums.hashes(before))
    found = stage.evaluate(tables)
    rows = found.column(len(sums.key))
    if found.num_rows and pc.min(rows).as_py() < 0:
        raise NegativeMultiplicity(-pc.min(rows).as_py(), "one of a group whose sums are kept")
    return difference(found, times, stage.names)


def _replaced(
    stage: RunningStage,
    own: KeyedInput,
    changes: Mapping[str, pa.Table],
    hashes: Mapping[str, np.ndarray],
    lower: int,
) -> pa.Table:
    """The changes of the answers of the touched keys, of which the old ones are looked up."""
    if not changes or own.index is None:
        return stage.empty
    times = np.unique(np.concatenate([_times(t) for t in changes.values()]))
    touched = Touched.of(times, list(hashes.values()), [_times(changes[n]) for n in hashes])
    keys = touched.keys
    before = own.index.lookup(keys, lower).select([*own.schema.names, DIFF_COLUMN])
    known = (_bare(before), own.hashes(before))
    if sum(i.index.count(keys) for i in stage.inputs if i.index is not None) <= MAX_VERSION_ROWS:
        tables: dict[str, pa.Table] = {}
        for each in stage.inputs:
            if each.index is None:
                continue
            rows = _bare(each.index.lookup(keys, lower).select([*each.schema.names, DIFF_COLUMN]))
            given = changes.get(each.name, _no_changes(each.schema))
            now = versions(touched, rows, each.hashes(rows), given, hashes.get(each.name, _NO_HASHES))
            tables[each.name] = now.filter(pc.equal(pc.bit_wise_and(now.column(VERSION), 1), 1))
        if sum(map(total, tables.values())) <= MAX_VERSION_ROWS:
            found = stage.evaluate(tables).rename_columns([*stage.names, VERSION])
            numbers = contiguous(found.column(VERSION)).to_numpy() // 2
            found = found.drop_columns([VERSION])
            ones = pa.array(np.ones(found.num_rows, np.int64))
            found = found.append_column(DIFF_COLUMN, ones)
            return replaced(touched, (found, own.hashes(found)), numbers, known)
    if len(times) > 1:
        raise _TooMany
    now = stage.whole(int(times[0])).rename_columns([*stage.names, DIFF_COLUMN])
    now = now.filter(pa.array(np.isin(own.hashes(now), keys)))
    return replaced(touched, (now, own.hashes(now)), np.zeros(now.num_rows, np.int64), known)


_NO_HASHES = np.zeros(0, np.uint64)
# Without columns in the key.
_ALL = key_hash(pa.table({"one": [1]}), ())
_NOTHING = pa.table({TIME_COLUMN: pa.array([], pa.int64()), DIFF_COLUMN: pa.array([], pa.int64())})


def _bare(rows: pa.Table) -> pa.Table:
    """Without what schemas say beside names and types."""
    return pa.table(rows.columns, names=rows.schema.names)


def _no_changes(schema: pa.Schema) -> pa.Table:
    more = [pa.field(TIME_COLUMN, pa.int64()), pa.field(DIFF_COLUMN, pa.int64())]
    return pa.schema([*schema, *more]).empty_table()


def _times(updates: pa.Table) -> np.ndarray:
    return contiguous(updates.column(TIME_COLUMN)).to_numpy()
