"""The changes of a stage's answer, from those of its inputs.

Called by `key_local`, which says what a stage is. The rows of the touched keys are looked up, and evaluated
in several versions at once (`query.version_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.arrangements import key_hash
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
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.kernels import pc

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


class TooMany(Exception):
    """The versions of these times have more rows than one evaluation may."""


class StageChanges:
    """Of the stages of one follower."""

    def __init__(self) -> None:
        # By stage: its whole answer, if it was computed at the last time at which its inputs changed.
        self._answers: dict[str, tuple[int, pa.Table]] = {}

    def forget(self) -> None:
        """What was computed at a time that is attempted again, together with later ones."""
        self._answers.clear()

    def of(
        self,
        stage: RunningStage,
        changes: Mapping[str, pa.Table],
        hashes: Mapping[str, np.ndarray],
        lower: int,
    ) -> pa.Table:
        """`changes` of the inputs at or after `lower`, and the `hashes` of their keys. Raises TooMany."""
        if stage.sums is not None:
            return _changed_sums(stage, stage.sums, changes, hashes, lower)
        if stage.recalled is not None:
            return _replaced(stage, stage.recalled, changes, hashes, lower)
        return self._touched(stage, changes, hashes, lower)

    def _touched(
        self,
        stage: RunningStage,
        changes: Mapping[str, pa.Table],
        hashes: Mapping[str, np.ndarray],
        lower: int,
    ) -> pa.Table:
        """The changes of a stage's answer; `hashes` are those of the keys of the changes."""
        if not changes:
            return stage.empty
        times = np.unique(np.concatenate([times_of(t) for t in changes.values()]))
        singles = {i.name for i in stage.inputs if i.single}
        if not singles.isdisjoint(changes):
            return self._at_once(stage, times, lower)
        # Where that helps, the inputs change one after the other at each time.
        ways = len(stage.inputs) if stage.linear else 1
        steps = {
            each.name: np.searchsorted(times, times_of(changes[each.name])) * ways + number % ways
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
            return self._at_once(stage, times, lower)
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
                tables[each.name] = same_in_all(len(reached), bare(rows))
                continue
            of_keys, alone = asked[each.name], each.name in stage.linear
            before = bare(each.index.lookup(of_keys.keys, lower).select([*each.schema.names, DIFF_COLUMN]))
            of = hashes.get(each.name, _NO_HASHES)
            rows = versions(of_keys, before, each.hashes(before), own, of)
            tables[each.name] = pa.concat_tables([rows, loose_versions(reached, own)]) if alone else rows
        if sum(map(total, tables.values())) > MAX_VERSION_ROWS:
            return self._at_once(stage, times, lower)
        self._answers.pop(stage.name, None)
        return difference(stage.evaluate(tables), times[reached // ways], stage.names)

    def _at_once(self, stage: RunningStage, times: np.ndarray, lower: int) -> pa.Table:
        """The changes of a stage's whole answer; of one time, so that it need not be computed for others."""
        if len(times) > 1:
            raise TooMany
        at = int(times[0])
        last = self._answers.pop(stage.name, None)
        # Since then nothing has changed, unless this is another attempt at the same time.
        before = last[1] if last is not None and last[0] < at else stage.whole(lower - 1)
        now = stage.whole(at)
        changed = add_up([now, negated(before)]).rename_columns([*stage.names, DIFF_COLUMN])
        self._answers[stage.name] = (at, now)
        stamps = pa.array(np.full(changed.num_rows, at))
        return changed.add_column(len(stage.names), TIME_COLUMN, stamps)


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
    times = np.unique(np.concatenate([times_of(t) for t in changes.values()]))
    touched = Touched.of(times, list(hashes.values()), [times_of(changes[n]) for n in hashes])
    tables = {
        i.name: signed_versions(
            touched, changes.get(i.name, _no_changes(i.schema)), hashes.get(i.name, _NO_HASHES)
        )
        for i in stage.inputs
    }
    if len(times) > 1 and sum(map(total, tables.values())) > MAX_VERSION_ROWS:
        raise TooMany
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
    times = np.unique(np.concatenate([times_of(t) for t in changes.values()]))
    touched = Touched.of(times, list(hashes.values()), [times_of(changes[n]) for n in hashes])
    keys = touched.keys
    before = own.index.lookup(keys, lower).select([*own.schema.names, DIFF_COLUMN])
    known = (bare(before), own.hashes(before))
    if sum(i.index.count(keys) for i in stage.inputs if i.index is not None) <= MAX_VERSION_ROWS:
        tables: dict[str, pa.Table] = {}
        for each in stage.inputs:
            if each.index is None:
                continue
            rows = bare(each.index.lookup(keys, lower).select([*each.schema.names, DIFF_COLUMN]))
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
        raise TooMany
    now = stage.whole(int(times[0])).rename_columns([*stage.names, DIFF_COLUMN])
    now = now.filter(pa.array(np.isin(own.hashes(now), keys)))
    return replaced(touched, (now, own.hashes(now)), np.zeros(now.num_rows, np.int64), known)


_NO_HASHES = np.zeros(0, np.uint64)
# Without columns in the key.
_ALL = key_hash(pa.table({"one": [1]}), ())


def bare(rows: pa.Table) -> pa.Table:
    """Without what schemas say beside names and types."""
    return pa.table(rows.columns, names=rows.schema.names)


def _no_changes(schema: pa.Schema) -> pa.Table:
    more = [pa.field(TIME_COLUMN, pa.int64()), pa.field(DIFF_COLUMN, pa.int64())]
    return pa.schema([*schema, *more]).empty_table()


def times_of(updates: pa.Table) -> np.ndarray:
    return contiguous(updates.column(TIME_COLUMN)).to_numpy()
