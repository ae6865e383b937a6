"""The state of one bucket of a collection at one upper, open for one task.

Made by `StateStore.open` and by `fill`. What a task puts stays in memory until `commit`, which writes it as
the newest run. Nothing here is needed again: if a commit fails or its files are lost, the next tick finds an
older state or none, and reads the collection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import Shape, key_columns
from tidemill.envelope.upsert import Found, upsert
from tidemill.errors import Internal
from tidemill.ingest.state.manifest import Manifest, manifest_name, write_manifest
from tidemill.ingest.state.merge import Plan, merged, plan
from tidemill.ingest.state.run import Run, RunFacts, open_run, remove, write_run

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """What a bucket needs of its store."""

    def adopt(self, folder: str, shape: Shape, runs: list[Run]) -> list[Run] | None:
        """The merge of the runs, if somebody has finished it; no run if nothing was left of them."""
        ...

    def merge_later(self, folder: str, shape: Shape, runs: list[Run], *, oldest: bool) -> None: ...

    def committed(self, folder: str, runs: list[Run]) -> None:
        """The bucket's newest state is made of these."""
        ...


class BucketState:
    """For one task, one thread."""

    def __init__(
        self,
        keeper: Keeper,
        folder: str,
        shape: Shape,
        upper: int,
        runs: list[Run],
        manifest: Manifest | None,
    ) -> None:
        self.shape = shape
        # What is here is the collection's bucket at upper - 1, with what was put since.
        self.upper = upper
        self._keeper = keeper
        self._folder = folder
        # With files, newest first.
        self._runs = runs
        # Put since the last commit, newest first.
        self._fresh: list[Run] = []
        # The files' last state; it tells what the next commit may remove. None: there was none.
        self._manifest = manifest

    def apply(self, records: pa.Table, time: int) -> pa.Table:
        """The updates that the records of one time give (`envelope.upsert`), remembered. Records that are too
        many for one table may come in several calls of the same time, in their order: the updates of all
        together are the time's."""
        if time < self.upper:
            raise Internal(f"records at {time} for a state at {self.upper}")
        changed = upsert(records, self.shape, time, self)
        self.put(changed.rows, changed.hashes, changed.deleted)
        return changed.updates

    def lookup(self, rows: pa.Table, hashes: np.ndarray) -> Found:
        """See `envelope.upsert.State`."""
        keys = key_columns(rows.select(self.shape.key_names), range(len(self.shape.key)))
        left = np.arange(len(hashes))
        absent = np.ones(len(hashes), dtype=np.bool_)
        places: list[np.ndarray] = []
        found: list[pa.RecordBatch] = []
        for run in (*self._fresh, *self._runs):
            for where, batch in run.find(hashes, keys, left, self.shape):
                places.append(where)
                found.append(batch)
                absent[where] = False
            left = np.flatnonzero(absent)
            if not len(left):
                break
        return self._found(places, found)

    def _found(self, places: list[np.ndarray], found: list[pa.RecordBatch]) -> Found:
        """Without tombstones, in the order of the keys."""
        if not found:
            return Found(self.shape.schema.empty_table(), np.zeros(0, dtype=np.int64))
        batch, where = found[0], places[0]
        if len(found) > 1:
            batch, where = pa.concat_batches(found), np.concatenate(places)
        deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
        if len(found) > 1 or deleted.any():
            order = np.argsort(where, kind="stable")
            order = order[~deleted[order]]
            batch, where = batch.take(pa.array(order)), where[order]
        return Found(pa.Table.from_batches([batch]).select(range(1, batch.num_columns - 1)), where)

    def put(self, rows: pa.Table, hashes: np.ndarray, deleted: np.ndarray) -> None:
        """The keys' rows from now on; distinct keys, in the order of their hashes."""
        if len(hashes):
            self._fresh.insert(0, Run.of(rows, hashes, deleted))

    def advance(self, upper: int) -> None:
        """What was put makes this the state at `upper`, which some later commit may keep."""
        self.upper = upper

    def commit(self, upper: int) -> bool:
        """Keep the state as the one at `upper`. False when the disk refuses: then nothing is kept."""
        if upper < self.upper:
            raise Internal(f"a state went back from {self.upper} to {upper}")
        try:
            self._commit(upper)
        except FileNotFoundError:
            # Somebody removed the folder.
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
        fresh = sum(run.rows for run in self._fresh)
        runs, todo = self._merged_meanwhile(fresh)
        if fresh:
            group = [*self._fresh, *runs[: todo.inline]]
            rest = runs[todo.inline :]
            new = write_merged(self._folder, str(upper), self.shape, group, oldest=not rest)
            runs = rest if new is None else [new, *rest]
        before = () if self._manifest is None else tuple(run.name for run in self._manifest.runs)
        facts = tuple(_facts(run) for run in runs)
        names = {f.name for f in facts}
        previous = None if self._manifest is None else self._manifest.upper
        if previous != upper:
            dropped = tuple(name for name in before if name not in names)
            manifest = Manifest(upper, facts, previous, dropped)
        else:
            # Nothing but merges; what they replaced is left to the sweep.
            manifest = Manifest(upper, facts)
        write_manifest(self._folder, manifest)
        if self._manifest is not None and previous != upper:
            self._remove_older(self._manifest, {*names, *before})
        self._fresh, self._runs, self._manifest, self.upper = [], runs, manifest, upper
        self._keeper.committed(self._folder, runs)
        later = plan(0, [run.rows for run in runs]).later
        if later is not None:
            oldest = later[1] == len(runs)
            self._keeper.merge_later(self._folder, self.shape, runs[slice(*later)], oldest=oldest)

    def _merged_meanwhile(self, fresh: int) -> tuple[list[Run], Plan]:
        """The runs, with merges that the background has finished in place of their inputs."""
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

    def _remove_older(self, manifest: Manifest, needed: set[str]) -> None:
        """Two states stay: a tick that failed is redone from the one before it."""
        if manifest.previous is not None:
            remove(os.path.join(self._folder, manifest_name(manifest.previous)))
        for name in manifest.dropped:
            if name not in needed:
                remove(os.path.join(self._folder, name))


def write_merged(folder: str, label: str, shape: Shape, group: list[Run], *, oldest: bool) -> Run | None:
    """Write the runs (newest first) as one; None when nothing is left of them. Raises OSError."""
    batches: Iterable[pa.RecordBatch]
    batches = group[0].batches if len(group) == 1 and not oldest else merged(group, shape, oldest=oldest)
    facts = write_run(folder, label, shape, batches)
    if facts.rows:
        run = open_run(folder, facts, shape, trusted=True)
        if run is not None:
            return run
        raise FileNotFoundError(f"run {facts.name} vanished")
    remove(os.path.join(folder, facts.name))
    return None


def _facts(run: Run) -> RunFacts:
    if run.facts is None:
        raise Internal("a run of a manifest has no file")
    return run.facts
