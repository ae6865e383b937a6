"""A run: rows in the order of their key hashes, as one Arrow IPC file, mapped into memory.

The first column is `mz_key_hash`; the others are its users': the upsert states of sources (`ingest.state`)
and `arrangements`. Files never change. They are written under a temporary name and then renamed to one that
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
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tidemill import failpoints

FP_RUN_WRITTEN = failpoints.register("runs.run_written", "a run's temporary file was written")
FP_RUN_NAMED = failpoints.register("runs.run_named", "a run got its name, no manifest names it yet")

RUN_SUFFIX = ".run"
TEMPORARY_SUFFIX = ".tmp"

# The approximate size of an Arrow batch: far below the 2 GB limit of a string column in a batch. A merge
# holds a few times this in memory.
BATCH_BYTES = 16 << 20

# Smaller files are not worth a call to release their pages.
REST_BYTES = 1 << 20

# Counter for temporary names. Forked processes share its value, but not their process ids.
_PROCESS = uuid.uuid4().hex
_count = itertools.count()

_NO_HASHES = np.zeros(0, dtype=np.uint64)
_NOWHERE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The description of a run in a manifest."""

    name: str
    rows: int
    bytes: int
    crc: int


class HashRun:
    """A run, in memory or mapped; its rows never change. `facts` is None while it has no file. Hashes are not
    copied but read in place, batch by batch: a copy would keep a tenth of every state in the memory of every
    process that has it open."""

    __slots__ = ("_hashes", "_mapped", "_starts", "batches", "facts", "lasts")

    def __init__(self, batches: Sequence[pa.RecordBatch], facts: RunFacts | None = None) -> None:
        self.batches = batches
        self.facts = facts
        # The file's bytes; None without a file.
        self._mapped: pa.Buffer | None = None
        # The first row of each batch, and the end of the last one.
        self._starts = list(itertools.accumulate((b.num_rows for b in batches), initial=0))
        # The hashes of each batch, uncopied, and the last hash of each, to find the batch of a hash.
        self._hashes = [b.column(0).to_numpy() for b in batches]
        self.lasts = np.array([h[-1] for h in self._hashes], dtype=np.uint64)

    @property
    def rows(self) -> int:
        return self._starts[-1]

    @property
    def bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches) if self.facts is None else self.facts.bytes

    def rest(self) -> None:
        """Release the pages of a run that is not needed soon. They stay in the system's cache, but no longer
        belong to this process. The next access maps them again; only memory and time change."""
        if self._mapped is not None and self._mapped.size >= REST_BYTES:
            _give_up(self._mapped)

    def take(self, positions: np.ndarray) -> pa.RecordBatch:
        """The rows at ascending positions, at least one."""
        pieces = [self.batches[n].take(pa.array(at)) for n, at in self._by_batch(positions)]
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

    def hashes_at(self, positions: np.ndarray) -> np.ndarray:
        """The hashes at ascending positions."""
        pieces = [self._hashes[n][at] for n, at in self._by_batch(positions)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([_NO_HASHES, *pieces])

    def _by_batch(self, positions: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The batches that contain any of the ascending positions, and the rows of each."""
        if len(self.batches) == 1:
            yield 0, positions
            return
        edges = positions.searchsorted(self._starts).tolist()
        for n, (a, b) in enumerate(itertools.pairwise(edges)):
            if a < b:
                yield n, positions[a:b] - self._starts[n]

    def search(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of the ascending hashes, the number of smaller hashes in this run, and whether the next
        one is equal."""
        at = np.full(len(wanted), self.rows)
        there = np.zeros(len(wanted), dtype=np.bool_)
        begin = 0
        for n, end in enumerate(wanted.searchsorted(self.lasts, side="right").tolist()):
            if begin < end:
                # None of these is greater than the batch's last hash.
                piece, hashes = wanted[begin:end], self._hashes[n]
                place = hashes.searchsorted(piece)
                at[begin:end] = place + self._starts[n]
                there[begin:end] = hashes[place] == piece
                begin = end
        return at, there

    def positions(self, wanted: np.ndarray) -> np.ndarray:
        """Of all rows with one of the ascending, distinct hashes."""
        return np.concatenate([_NOWHERE, *(spread(first, end) for first, end in self._places(wanted))])

    def count(self, wanted: np.ndarray) -> int:
        """The number of these rows."""
        return sum(int((end - first).sum()) for first, end in self._places(wanted))

    def _places(self, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ranges of positions, batch by batch."""
        begin = 0
        for n, end in enumerate(wanted.searchsorted(self.lasts, side="right").tolist()):
            if begin < end:
                piece, hashes, start = wanted[begin:end], self._hashes[n], self._starts[n]
                yield hashes.searchsorted(piece, "left") + start, hashes.searchsorted(piece, "right") + start
                # Rows of the last one may follow in the next batch.
                begin = end - 1 if wanted[end - 1] == self.lasts[n] else end

    def slice(self, lower: int, upper: int) -> list[pa.RecordBatch]:
        """The rows at [lower, upper)."""
        return [
            batch.slice(max(0, lower - start), min(upper, end) - max(lower, start))
            for batch, (start, end) in zip(self.batches, itertools.pairwise(self._starts), strict=True)
            if start < upper and lower < end
        ]


def spread(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The numbers of all ranges [first, end), one range after the other."""
    counts = end - first
    total = int(counts.sum())
    if not total:
        return _NOWHERE
    starts = np.cumsum(counts) - counts
    return np.arange(total) + np.repeat(first - starts, counts)


def cut(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch as batches of about BATCH_BYTES; none without rows."""
    if not batch.num_rows:
        return []
    rows = max(1, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
    return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]


R = TypeVar("R", bound=HashRun)


class _Checked:
    """A file object for pyarrow that computes the checksum of the written bytes."""

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
    folder: str, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], kind: type[R]
) -> R | None:
    """Write a run; its name begins with `label`. Returns None without rows. Raises OSError. A crash leaves a
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
    run = open_run(folder, RunFacts(name, rows, file.bytes, file.crc), schema, kind, checked=True)
    if run is None:
        raise FileNotFoundError(f"run {name} vanished")
    return run


def pack(run: HashRun, schema: pa.Schema) -> pa.Buffer:
    """The run as the bytes of its file."""
    sink = pa.BufferOutputStream()
    _write(sink, schema, run.batches)
    return sink.getvalue()


def unpack(data: pa.Buffer, schema: pa.Schema, kind: type[R]) -> R | None:
    """The run from such bytes, without a copy. None if they are anything else."""
    try:
        reader = pa.ipc.open_file(data)
        if not reader.schema.equals(schema):
            return None
        return kind([reader.get_batch(i) for i in range(reader.num_record_batches)])
    except (OSError, pa.ArrowException):
        return None


def _write(sink: Any, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch)
    return rows


def open_run(
    folder: str, facts: RunFacts, schema: pa.Schema, kind: type[R], *, checked: bool = False
) -> R | None:
    """The run that the facts describe; None if the file is missing or anything else. Reads the whole file,
    unless its bytes were `checked` when they were written. A large run's pages are released afterwards: a
    lookup maps only the few pages that it needs."""
    try:
        buffer = pa.memory_map(os.path.join(folder, facts.name)).read_buffer()
    except OSError:
        return None
    if buffer.size != facts.bytes or (not checked and _checksum(buffer) != facts.crc):
        return None
    run = unpack(buffer, schema, kind)
    if run is None or run.rows != facts.rows:
        return None
    run.facts = facts
    run._mapped = buffer  # pyright: ignore[reportPrivateUsage]
    return run


def _checksum(mapped: pa.Buffer) -> int:
    """For a large file, at most BATCH_BYTES are in this process's memory at a time, and nothing at the
    end."""
    crc = 0
    for at in range(0, mapped.size, BATCH_BYTES):
        piece = mapped[at : at + BATCH_BYTES]
        crc = zlib.crc32(piece, crc)
        if mapped.size >= REST_BYTES:
            _give_up(piece)
    return crc


def _give_up(mapped: pa.Buffer) -> None:
    """Release pages of a read-only mapping. The address must be the start of a page."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise(ctypes.c_void_p(mapped.address), ctypes.c_size_t(mapped.size), mmap.MADV_DONTNEED)


def temporary_path(folder: str) -> str:
    """A name in the folder that no other process or thread uses."""
    return os.path.join(folder, f"{_PROCESS}-{os.getpid()}-{next(_count)}{TEMPORARY_SUFFIX}")


def remove(path: str) -> None:
    """Another process may have removed it already. The sweep removes what cannot be removed now."""
    try:
        os.unlink(path)
    except OSError:
        pass
