"""A run: rows of distinct keys in the order of their key hashes, as one Arrow IPC file, mapped into memory.

Its columns are `mz_key_hash`, those of the state's shape, and `mz_tombstone` (the key has no row, whatever an
older run holds). Files never change. They are written under a temporary name and then renamed to one that
contains their size and checksum, so that a name never stands for two contents.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.envelope.keys import KeyShape, rows_equal

FP_RUN_WRITTEN = failpoints.register("ingest.state.run_written", "a run's temporary file was written")
FP_RUN_NAMED = failpoints.register("ingest.state.run_named", "a run got its name, no manifest names it yet")

RUN_SUFFIX = ".run"
TEMPORARY_SUFFIX = ".tmp"

# Rows of one Arrow batch take about so much: far below the 2 GB that a string column of a batch can hold, and
# what a merge holds in memory a few times over.
BATCH_BYTES = 16 << 20

# Smaller files are not worth a call to let go of.
REST_BYTES = 1 << 20

# Who looks for so many keys of a bucket, or brings so many rows, lets go of the pages then. The system maps
# 64 kB around each place that is looked at, and a key has some four: a tick of ten thousand records had the
# whole state in its process's memory. Pages that a smaller tick looks at stay: of a tick of a thousand
# records getting them back took 6 of 21 ms.
REST_ROWS = 256

# Of temporary names: forked processes have the first in common, but not their ids.
_PROCESS = uuid.uuid4().hex
_count = itertools.count()

_NO_HASHES = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a manifest says of a run."""

    name: str
    rows: int
    bytes: int
    crc: int


class StateRun:
    """In memory or mapped; its rows never change. `facts` is None while it has no file of its own. Hashes are
    looked at where they lie, batch by batch: a copy of them would be a tenth of every state in the memory of
    every process that has it open."""

    __slots__ = ("_hashes", "_lasts", "_mapped", "_starts", "batches", "facts")

    def __init__(self, batches: Sequence[pa.RecordBatch], facts: RunFacts | None = None) -> None:
        self.batches = batches
        self.facts = facts
        # The file's bytes; None while it has none.
        self._mapped: pa.Buffer | None = None
        # Where each batch begins, and the end of the last.
        self._starts = list(itertools.accumulate((b.num_rows for b in batches), initial=0))
        # Of each batch, uncopied, and the last of each: which batch a hash is in.
        self._hashes = [b.column(0).to_numpy() for b in batches]
        self._lasts = np.array([h[-1] for h in self._hashes], dtype=np.uint64)

    @staticmethod
    def of(rows: pa.RecordBatch, hashes: np.ndarray, deleted: np.ndarray, schema: pa.Schema) -> StateRun:
        """From rows of a state's shape, in the order of the hashes; `schema` is its `kept_schema`."""
        columns = [pa.array(hashes), *rows.columns, pa.array(deleted)]
        return StateRun(cut(pa.RecordBatch.from_arrays(columns, schema=schema)))

    @property
    def rows(self) -> int:
        return self._starts[-1]

    @property
    def bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches) if self.facts is None else self.facts.bytes

    @property
    def tombstones(self) -> int:
        return sum(batch.column(batch.num_columns - 1).true_count for batch in self.batches)

    def rest(self) -> None:
        """It is not needed soon: its pages stay in the system's cache, but are no longer this process's.
        Whoever looks at them again gets them back from there: this changes nothing but memory and time."""
        if self._mapped is not None and self._mapped.size >= REST_BYTES:
            _give_up(self._mapped)

    def take(self, positions: np.ndarray) -> pa.RecordBatch:
        """The rows at ascending positions, of which there is one at least."""
        pieces = [self.batches[n].take(pa.array(at)) for n, at in self._by_batch(positions)]
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

    def hashes_at(self, positions: np.ndarray) -> np.ndarray:
        """The hashes at ascending positions."""
        pieces = [self._hashes[n][at] for n, at in self._by_batch(positions)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([_NO_HASHES, *pieces])

    def _by_batch(self, positions: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Batches that have any of the ascending positions, and which of their rows those are."""
        if len(self.batches) == 1:
            yield 0, positions
            return
        edges = positions.searchsorted(self._starts).tolist()
        for n, (a, b) in enumerate(itertools.pairwise(edges)):
            if a < b:
                yield n, positions[a:b] - self._starts[n]

    def search(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of the ascending hashes how many of this run are less, and whether it is the next."""
        at = np.full(len(wanted), self.rows)
        there = np.zeros(len(wanted), dtype=np.bool_)
        begin = 0
        for n, end in enumerate(wanted.searchsorted(self._lasts, side="right").tolist()):
            if begin < end:
                # None of these is greater than the batch's last.
                piece, hashes = wanted[begin:end], self._hashes[n]
                place = hashes.searchsorted(piece)
                at[begin:end] = place + self._starts[n]
                there[begin:end] = hashes[place] == piece
                begin = end
        return at, there

    def slice(self, lower: int, upper: int) -> list[pa.RecordBatch]:
        """The rows at [lower, upper)."""
        return [
            batch.slice(max(0, lower - start), min(upper, end) - max(lower, start))
            for batch, (start, end) in zip(self.batches, itertools.pairwise(self._starts), strict=True)
            if start < upper and lower < end
        ]

    def find(
        self, hashes: np.ndarray, keys: Sequence[pa.Array], among: np.ndarray, shape: KeyShape
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Of the keys at the ascending positions `among` those that are here: their positions, and the run's
        rows for them, copied. Of many keys one batch after another, which rests when its keys are found: no
        more than a batch's pages are in memory, however large the run is."""
        if len(among) < REST_ROWS:
            yield from self._find(hashes, keys, among, shape)
            return
        begin = 0
        for end in hashes[among].searchsorted(self._lasts, side="right").tolist():
            if begin < end:
                yield from self._find(hashes, keys, among[begin:end], shape)
                self.rest()
            begin = end

    def _find(
        self, hashes: np.ndarray, keys: Sequence[pa.Array], among: np.ndarray, shape: KeyShape
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """More than one answer only where different keys have one hash."""
        if not self.rows or not len(among):
            return
        wanted = hashes[among]
        at, there = self.search(wanted)
        hit = there.nonzero()[0]
        while hit.size:
            rows = self.take(at[hit])
            where = among[hit]
            chosen = [k if len(where) == len(k) else k.take(pa.array(where)) for k in keys]
            same = rows_equal([rows.column(1 + i) for i in shape.key], chosen, len(where))
            if same.all():
                yield where, rows
                return
            if same.any():
                yield where[same], rows.filter(pa.array(same))
            # Another key of the same hash: the next row may be the one.
            hit = hit[~same]
            at[hit] += 1
            hit = hit[at[hit] < self.rows]
            hit = hit[self.hashes_at(at[hit]) == wanted[hit]]


def cut(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch as batches of about BATCH_BYTES; none of no rows."""
    if not batch.num_rows:
        return []
    rows = max(1, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
    return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]


class _Checked:
    """A file that keeps the checksum of what is written, as pyarrow wants files."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.crc = 0
        self.bytes = 0
        self.closed = False

    def write(self, data: bytes | pa.Buffer) -> int:
        view = memoryview(data)
        self.crc = zlib.crc32(view, self.crc)
        self.bytes += view.nbytes
        while view.nbytes:
            view = view[os.write(self._fd, view) :]
        return self.bytes

    def flush(self) -> None: ...

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._fd)


def write_run(
    folder: str, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> StateRun | None:
    """Write a run; `label` begins its name. None when there are no rows. Raises OSError; a crash leaves a
    temporary file."""
    temporary = temporary_path(folder)
    file = _Checked(temporary)
    try:
        try:
            rows = _write(pa.PythonFile(file, "w"), schema, batches)
        finally:
            file.close()
        failpoints.hit(FP_RUN_WRITTEN)
        if not rows:
            remove(temporary)
            return None
        name = f"{label}-{file.bytes}-{file.crc:08x}{RUN_SUFFIX}"
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        remove(temporary)
        raise
    failpoints.hit(FP_RUN_NAMED)
    run = open_run(folder, RunFacts(name, rows, file.bytes, file.crc), schema, checked=True)
    if run is None:
        raise FileNotFoundError(f"run {name} vanished")
    return run


def pack(run: StateRun, schema: pa.Schema) -> pa.Buffer:
    """The run as the bytes that its file would have."""
    sink = pa.BufferOutputStream()
    _write(sink, schema, run.batches)
    return sink.getvalue()


def unpack(data: pa.Buffer, schema: pa.Schema) -> StateRun | None:
    """The run of such bytes; its columns lie in them, uncopied. None when they are anything else."""
    try:
        reader = pa.ipc.open_file(data)
        if not reader.schema.equals(schema):
            return None
        return StateRun([reader.get_batch(i) for i in range(reader.num_record_batches)])
    except (OSError, pa.ArrowException):
        return None


def _write(sink: Any, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch)
    return rows


def open_run(folder: str, facts: RunFacts, schema: pa.Schema, *, checked: bool = False) -> StateRun | None:
    """The run that the facts tell of; None when the file is missing or anything else. The whole file is
    looked at, unless its bytes were `checked` on their way into it. A large run then rests: a lookup gets
    back the few pages that it needs."""
    try:
        buffer = pa.memory_map(os.path.join(folder, facts.name)).read_buffer()
    except OSError:
        return None
    if buffer.size != facts.bytes or (not checked and _checksum(buffer) != facts.crc):
        return None
    run = unpack(buffer, schema)
    if run is None or run.rows != facts.rows:
        return None
    run.facts = facts
    run._mapped = buffer  # pyright: ignore[reportPrivateUsage]
    return run


def _checksum(mapped: pa.Buffer) -> int:
    """Of a large file no more than BATCH_BYTES is in this process's memory at a time, and nothing at last."""
    crc = 0
    for at in range(0, mapped.size, BATCH_BYTES):
        piece = mapped[at : at + BATCH_BYTES]
        crc = zlib.crc32(piece, crc)
        if mapped.size >= REST_BYTES:
            _give_up(piece)
    return crc


def _give_up(mapped: pa.Buffer) -> None:
    """Of a mapping that is only read. The address is that of a page's beginning."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise(ctypes.c_void_p(mapped.address), ctypes.c_size_t(mapped.size), mmap.MADV_DONTNEED)


def temporary_path(folder: str) -> str:
    """A name in the folder that no other process or thread takes."""
    return os.path.join(folder, f"{_PROCESS}-{os.getpid()}-{next(_count)}{TEMPORARY_SUFFIX}")


def remove(path: str) -> None:
    """Somebody else may have been faster, and what cannot be removed is swept later."""
    try:
        os.unlink(path)
    except OSError:
        pass
