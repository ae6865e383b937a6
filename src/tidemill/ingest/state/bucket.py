"""The state of one bucket of a collection at one upper, open for one task.

Created by `StateStore.open` and by `fill`. New rows stay in memory until `commit`, which stores them for the
next tick. The state is only a cache: if a commit fails or its files are lost, the next tick finds an older
state or none, and reads the collection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import KeyShape
from tidemill.envelope.upsert import FoundRows, as_updates, upsert
from tidemill.errors import Internal
from tidemill.ingest.exchange import truncates
from tidemill.ingest.state.manifest import Manifest, manifest_name, write_manifest
from tidemill.ingest.state.merge import merged
from tidemill.ingest.state.run import REST_ROWS, StateRun
from tidemill.runs.merge import MergePlan, plan
from tidemill.runs.run import RunFacts, remove, write_run
from tidemill.sources.contract import TRUNCATE_COLUMN

log = logging.getLogger(__name__)

# New rows stay in the manifest up to this size, about 600 rows. The manifest is rewritten in every tick,
# which takes some tens of microseconds; a separate file takes a hundred or more.
HEAD_BYTES = 64 << 10

_NOWHERE = np.zeros(0, dtype=np.int64)


class Keeper(Protocol):
    """The protocol of a bucket's store."""

    def adopt(self, folder: str, shape: KeyShape, runs: list[StateRun]) -> list[StateRun] | None:
        """The finished merge of the runs, if there is one; with no run if no rows were left."""
        ...

    def merge_later(self, folder: str, shape: KeyShape, runs: list[StateRun], *, oldest: bool) -> None: ...

    def committed(self, folder: str, manifest: Manifest, runs: list[StateRun]) -> None:
        """Note that this is the bucket's newest state."""
        ...


class BucketState:
    """Used by one task, in one thread."""

    def __init__(
        self,
        keeper: Keeper,
        folder: str,
        shape: KeyShape,
        upper: int,
        kept: Manifest | None,
        runs: list[StateRun],
    ) -> None:
        self.shape = shape
        # The contents are the collection's bucket at upper - 1, with later puts.
        self.upper = upper
        self._keeper = keeper
        self._folder = folder
        # The last stored state, which determines what the next commit may remove; None if there was none.
        self._kept = kept
        # Its runs, newest first.
        self._runs = runs
        # Rows that are in no run: those put since the last commit, newest first, then the manifest's head.
        self._fresh: list[StateRun] = [] if kept is None or kept.head is None else [kept.head]
        # Whether anything was put since the last commit, and whether it was much at once.
        self._dirty = self._much = False

    @property
    def bytes(self) -> int:
        """Bytes on disk, and of new rows in memory."""
        return sum(run.bytes for run in (*self._fresh, *self._runs))

    def apply(self, records: pa.Table, time: int) -> Iterator[pa.RecordBatch]:
        """The updates that result from the records of one time (`envelope.upsert`), which the state
        remembers. Records that are too many for one table may be passed in several calls with the same time,
        in order. The updates of all calls together are those of the time."""
        if time < self.upper:
            raise Internal(f"records at {time} for a state at {self.upper}")
        if TRUNCATE_COLUMN in records.schema.names:
            at = truncates(records).nonzero()[0]
            records = records.drop([TRUNCATE_COLUMN])
            if len(at):
                yield from self._emptied(time)
                records = records.slice(int(at[-1]) + 1)
        changed = upsert(records, self.shape, time, self)
        self.put(changed.rows, changed.hashes, changed.deleted)
        yield from changed.updates.to_batches()

    def _emptied(self, time: int) -> Iterator[pa.RecordBatch]:
        """Retractions of all rows. After that, the state is empty."""
        runs = [*self._fresh, *self._runs]
        for batch in merged(runs, self.shape, oldest=True) if runs else ():
            rows = pa.RecordBatch.from_arrays(batch.columns[1:-1], schema=self.shape.schema)
            yield as_updates(rows, self.shape, time, -1)
        self._fresh, self._runs, self._dirty = [], [], True

    def lookup(self, rows: pa.RecordBatch, hashes: np.ndarray) -> FoundRows:
        """See `envelope.upsert.KeyState`."""
        keys = [rows.column(i) for i in self.shape.key]
        left = np.arange(len(hashes))
        absent = np.ones(len(hashes), dtype=np.bool_)
        places: list[np.ndarray] = []
        found: list[pa.RecordBatch] = []
        for run in (*self._fresh, *self._runs):
            for where, batch in run.find(hashes, keys, left, self.shape):
                places.append(where)
                found.append(batch)
                absent[where] = False
            left = absent.nonzero()[0]
            if not len(left):
                break
        return self._found(places, found)

    def _found(self, places: list[np.ndarray], found: list[pa.RecordBatch]) -> FoundRows:
        """Without tombstones."""
        if not found:
            return FoundRows(_no_rows(self.shape.schema), _NOWHERE)
        batch, where = found[0], places[0]
        if len(found) > 1:
            batch, where = pa.concat_batches(found), np.concatenate(places)
        deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
        if deleted.any():
            kept = (~deleted).nonzero()[0]
            batch, where = batch.take(pa.array(kept)), where[kept]
        columns = batch.columns[1:-1]
        return FoundRows(pa.RecordBatch.from_arrays(columns, schema=self.shape.schema), where)

    def select(self, wanted: Callable[[pa.RecordBatch], np.ndarray]) -> tuple[pa.RecordBatch, np.ndarray]:
        """The rows that `wanted` marks, and their hashes, in the order of the hashes. `wanted` must not mark
        rows that were replaced or deleted since they were put: newer rows are not checked."""
        rows: list[pa.RecordBatch] = []
        hashes: list[np.ndarray] = []
        for run in (*self._fresh, *self._runs):
            for batch in run.batches:
                deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
                at = pa.array((wanted(batch) & ~deleted).nonzero()[0])
                if len(at):
                    chosen = batch.take(at)
                    rows.append(pa.RecordBatch.from_arrays(chosen.columns[1:-1], schema=self.shape.schema))
                    hashes.append(chosen.column(0).to_numpy())
        if not rows:
            return _no_rows(self.shape.schema), np.zeros(0, np.uint64)
        together = np.concatenate(hashes)
        order = np.argsort(together, kind="stable")
        return pa.concat_batches(rows).take(pa.array(order)), together[order]

    def put(self, rows: pa.RecordBatch, hashes: np.ndarray, deleted: np.ndarray) -> None:
        """Set the rows of the keys. The keys are distinct and in the order of their hashes."""
        if len(hashes):
            self._fresh.insert(0, StateRun.of(rows, hashes, deleted, self.shape.kept_schema))
            self._dirty = True
            self._much |= len(hashes) >= REST_ROWS

    def advance(self, upper: int) -> None:
        """The rows put so far complete the state at `upper`, which a later commit may store."""
        self.upper = upper

    def commit(self, upper: int) -> bool:
        """Store the state as the one at `upper`. Returns False if the disk refuses; then nothing is
        stored."""
        if upper < self.upper:
            raise Internal(f"a state went back from {self.upper} to {upper}")
        try:
            self._commit(upper)
        except FileNotFoundError:
            # The folder was removed.
            try:
                os.makedirs(self._folder, exist_ok=True)
                self._commit(upper)
            except OSError as error:
                return self._refused(upper, error)
        except OSError as error:
            return self._refused(upper, error)
        return True

    def _refused(self, upper: int, error: OSError) -> bool:
        log.warning(
            "upsert state %s was not kept at %d, it will be read again: %s", self._folder, upper, error
        )
        return False

    def _commit(self, upper: int) -> None:
        before = self._kept
        if before is not None and before.upper == upper:
            if self._dirty:
                raise Internal(f"the state at {upper} is there already")
            return
        head, runs = self._settled(str(upper))
        facts = tuple(_facts(run) for run in runs)
        names = {f.name for f in facts}
        dropped = () if before is None else tuple(r.name for r in before.runs if r.name not in names)
        kept = Manifest(upper, head, facts, None if before is None else before.upper, dropped)
        write_manifest(self._folder, kept, self.shape.kept_schema)
        if before is not None:
            self._remove_older(before, names)
        self._fresh, self._dirty = ([] if head is None else [head]), False
        self._runs, self._kept, self.upper = runs, kept, upper
        self._keeper.committed(self._folder, kept, runs)
        later = plan(0, [run.rows for run in runs]).later
        if later is not None:
            oldest = later[1] == len(runs)
            self._keeper.merge_later(self._folder, self.shape, runs[slice(*later)], oldest=oldest)
        if self._much:
            for run in runs:
                run.rest()
            self._much = False

    def _settled(self, label: str) -> tuple[StateRun | None, list[StateRun]]:
        """Head and runs of the next state. New rows stay in the head while it is small. Otherwise they become
        a run, together with the runs that `merge.plan` merges inline."""
        runs, todo = self._merged_meanwhile(sum(run.rows for run in self._fresh))
        if not self._dirty:
            return (self._fresh[0] if self._fresh else None), runs
        if sum(run.bytes for run in self._fresh) <= HEAD_BYTES:
            head = self._fresh
            if len(head) > 1 or (head and not runs and head[0].tombstones):
                rows = list(merged(head, self.shape, oldest=not runs))
                head = [StateRun(rows)] if rows else []
            return (head[0] if head else None), runs
        rest = runs[todo.inline :]
        group = [*self._fresh, *runs[: todo.inline]]
        new = write_merged(self._folder, label, self.shape, group, oldest=not rest)
        return None, rest if new is None else [new, *rest]

    def _merged_meanwhile(self, fresh: int) -> tuple[list[StateRun], MergePlan]:
        """The runs, in which finished background merges replace their inputs."""
        runs = self._runs
        todo = plan(fresh, [run.rows for run in runs])
        while todo.later is not None:
            first, end = todo.later
            done = self._keeper.adopt(self._folder, self.shape, runs[first:end])
            if done is None:
                break
            runs = [*runs[:first], *done, *runs[end:]]
            todo = plan(fresh, [run.rows for run in runs])
        return runs, todo

    def _remove_older(self, before: Manifest, names: set[str]) -> None:
        """Keep two states, because a failed tick is repeated from the previous one."""
        if before.previous is not None:
            remove(os.path.join(self._folder, manifest_name(before.previous)))
        for name in before.dropped:
            if name not in names:
                remove(os.path.join(self._folder, name))


def write_merged(
    folder: str, label: str, shape: KeyShape, group: list[StateRun], *, oldest: bool
) -> StateRun | None:
    """Write the runs (newest first) as one. Returns None if no rows are left. Raises OSError."""
    batches: Iterator[pa.RecordBatch]
    if len(group) == 1 and not (oldest and group[0].tombstones):
        batches = iter(group[0].batches)
    else:
        batches = merged(group, shape, oldest=oldest)
    written = write_run(folder, label, shape.kept_schema, batches, StateRun)
    for run in group:
        run.rest()
    return written


def _facts(run: StateRun) -> RunFacts:
    if run.facts is None:
        raise Internal("a run of a manifest has no file")
    return run.facts


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
