"""The base of an arrangement: the rows and their counts at one time, in sorted runs on disk.

    <folder>/manifest                       the runs, the time, and what the rows are
            /<label>-<size>-<checksum>.run

The contents are the sum over all runs; a retraction is a row with a negative count until a merge meets its
row. Files are not synced to the disk: whoever opens a base compares them with the manifest's checksums, and
finds none after a power cut. Not thread-safe, except that `find` may run beside everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.arrangements.summed import merged, sorted_batch
from tidemill.runs.merge import MergePlan, merged_name, plan
from tidemill.runs.run import (
    RUN_SUFFIX,
    TEMPORARY_SUFFIX,
    HashRun,
    RunFacts,
    cut,
    open_run,
    remove,
    write_run,
)
from tidemill.runs.small_file import get_small, put_small

FP_ADDED = failpoints.register("arrangements.added", "a run of new rows is there, no manifest names it")
FP_KEPT = failpoints.register(
    "arrangements.kept", "the manifest names the new runs, the old ones are there too"
)
FP_MERGED = failpoints.register("arrangements.merged", "the background has merged runs, nobody knows yet")

MANIFEST = "manifest"
HASH_FIELD = pa.field("mz_key_hash", pa.uint64())


@dataclass(frozen=True, slots=True)
class Manifest:
    """`about` says what the rows are. `upper`: they are the contents just before it, and before every time
    from `since` on. `marks`: what the collections that they come from had then (`Base.marks`)."""

    about: dict[str, Any]
    since: int
    upper: int
    runs: tuple[RunFacts, ...]
    marks: dict[str, str | None]


def read_manifest(folder: str) -> Manifest | None:
    """None if it is missing or damaged."""
    found = get_small(folder, MANIFEST)
    if found is None:
        return None
    about, since, upper, runs, marks = found[0]
    return Manifest(about, since, upper, tuple(RunFacts(*run) for run in runs), marks)


class Base:
    def __init__(self, folder: str, schema: pa.Schema, about: dict[str, Any]) -> None:
        """Without rows, and not on disk. `schema`: the columns, then `mz_diff`."""
        self.folder = folder
        self.about = about
        self.schema = schema
        self.stored = pa.schema([HASH_FIELD, *schema])
        # Newest first.
        self.runs: tuple[HashRun, ...] = ()
        # The time of the manifest, which a later process would find; None without one. The rows are the
        # contents just before all times from `since` on, too: until then nothing changed.
        self.kept: int | None = None
        self.since = 0
        # For each collection something that it has now and will have, and that no other history of it has.
        self.marks: Callable[[], dict[str, str | None]] = dict

    @classmethod
    def open(cls, folder: str, schema: pa.Schema, about: dict[str, Any]) -> Base | None:
        """What a manifest in the folder describes, if all of it is there; removes other files."""
        base, manifest = cls(folder, schema, about), read_manifest(folder)
        if manifest is None or manifest.about != about:
            return None
        runs = [open_run(folder, facts, base.stored, HashRun) for facts in manifest.runs]
        if None in runs:
            return None
        base.runs = tuple(run for run in runs if run is not None)
        base.since, base.kept = manifest.since, manifest.upper
        base._remove_others()
        return base

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)

    def fill(self, batches: Iterable[pa.RecordBatch], upper: int) -> None:
        """All rows at once, in the order of their hashes: the contents just before `upper`. Raises
        OSError."""
        os.makedirs(self.folder, exist_ok=True)
        run = write_run(self.folder, str(upper), self.stored, batches, HashRun)
        self._keep(() if run is None else (run,), upper, upper)

    def add(self, rows: pa.Table, hashes: np.ndarray, since: int, upper: int) -> tuple[HashRun, ...]:
        """Rows with which the contents are those just before `upper`, and before all times from `since` on.
        Returns runs that should be merged later. Raises OSError; then nothing has changed."""
        if not len(hashes):
            self._keep(self.runs, since, upper)
            return ()
        os.makedirs(self.folder, exist_ok=True)
        fresh = HashRun(cut(sorted_batch(rows, hashes, self.stored)))
        todo = self._plan(fresh.rows)
        group, rest = (fresh, *self.runs[: todo.inline]), self.runs[todo.inline :]
        new = write_run(self.folder, str(upper), self.stored, merged(group), HashRun)
        failpoints.hit(FP_ADDED)
        try:
            self._keep(rest if new is None else (new, *rest), since, upper)
        except OSError:
            self._remove([] if new is None else [new])
            raise
        later = self._plan(0).later
        return () if later is None else self.runs[slice(*later)]

    def _plan(self, fresh: int) -> MergePlan:
        return plan(fresh, [run.rows for run in self.runs])

    def merge(self, runs: Sequence[HashRun]) -> HashRun | None:
        """The runs as one; None if nothing is left. Nobody knows of it yet. May run beside all else."""
        run = write_run(self.folder, merged_name(runs), self.stored, merged(runs), HashRun)
        for old in runs:
            old.rest()
        failpoints.hit(FP_MERGED)
        return run

    def replace(self, old: Sequence[HashRun], new: HashRun | None) -> None:
        """Use a merge of runs, if they are all still in use. Raises OSError."""
        at = self.runs.index(old[0]) if old[0] in self.runs else -1
        if at < 0 or self.runs[at : at + len(old)] != tuple(old) or self.kept is None:
            self._remove([] if new is None else [new])
            return
        rest = self.runs[at + len(old) :]
        self._keep((*self.runs[:at], *(() if new is None else (new,)), *rest), self.since, self.kept)

    def _keep(self, runs: tuple[HashRun, ...], since: int, upper: int) -> None:
        facts = [[f.name, f.rows, f.bytes, f.crc] for run in runs if (f := run.facts) is not None]
        put_small(self.folder, MANIFEST, [self.about, since, upper, facts, self.marks()])
        failpoints.hit(FP_KEPT)
        gone = [run for run in self.runs if run not in runs]
        self.runs, self.since, self.kept = runs, since, upper
        self._remove(gone)

    def _remove(self, runs: Sequence[HashRun]) -> None:
        for run in runs:
            if run.facts is not None:
                remove(os.path.join(self.folder, run.facts.name))

    def _remove_others(self) -> None:
        """What a crash has left."""
        names = {run.facts.name for run in self.runs if run.facts is not None}
        for name in os.listdir(self.folder):
            if name.endswith(TEMPORARY_SUFFIX) or (name.endswith(RUN_SUFFIX) and name not in names):
                remove(os.path.join(self.folder, name))


def find_in(runs: Sequence[HashRun], hashes: np.ndarray, schema: pa.Schema) -> list[pa.Table]:
    """For each run its rows with one of the hashes (sorted, unique)."""
    found: list[pa.Table] = []
    for run in runs:
        at = run.positions(hashes)
        if len(at):
            batch = run.take(at)
            found.append(pa.Table.from_arrays(batch.columns[1:], schema=schema))
    return found
