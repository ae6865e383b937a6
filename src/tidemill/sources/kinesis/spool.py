"""The spool: received records on their way from the receiver to the tasks, as Arrow files.

Written by the threads of `receiver`, one file for each answer with records. The tasks map the files. It is a
cache: it is not synced, is lost with the process, and is not needed to read a range again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.scratch import Scratch
from tidemill.sources.kinesis.answers import ARRIVED, SEQUENCE, last_sequence
from tidemill.sources.offsets import Offsets

# Above, the receiver stops reading until something is durable.
MAX_BYTES = 512 << 20

_PREFIX = "tidemill-kinesis-"


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """The records of a shard with the numbers [first, end)."""

    path: str
    first: int
    end: int
    size: int
    last: str
    # When the first of them arrived upstream, in milliseconds.
    arrived: int


def read_file(path: str) -> pa.RecordBatch:
    """The records of a file. It may be deleted afterwards."""
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as file:
        return file.get_batch(0)


class Spool:
    """Thread-safe; a shard is written by one thread at a time."""

    def __init__(self) -> None:
        self._scratch = Scratch(_PREFIX)
        self.folder: Path = self._scratch.path
        self._lock = threading.Lock()
        self._files: dict[str, list[SpoolFile]] = {}
        self._size = 0
        self._number = 0

    def add(self, shard: str, first: int, records: pa.RecordBatch) -> None:
        with self._lock:
            self._number += 1
            path = self.folder / f"{self._number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, records.schema) as writer:
            writer.write_batch(records)
        arrived = int(records.column(ARRIVED)[0].as_py())
        size = path.stat().st_size
        file = SpoolFile(str(path), first, first + records.num_rows, size, last_sequence(records), arrived)
        with self._lock:
            files = self._files.setdefault(shard, [])
            if files and files[-1].end != first:
                raise Internal(f"records of {shard} from {first} on follow those up to {files[-1].end}")
            files.append(file)
            self._size += size

    @property
    def full(self) -> bool:
        return self._size > MAX_BYTES

    def files(self, shard: str, lower: int, upper: int) -> tuple[SpoolFile, ...] | None:
        """The files with the records [lower, upper), in order; None if some are not here."""
        with self._lock:
            files = self._files.get(shard, [])
            if not files or files[0].first > lower or files[-1].end < upper:
                return None
            begin = bisect_right(files, lower, key=lambda file: file.end)
            end = bisect_right(files, upper - 1, key=lambda file: file.first)
            return tuple(files[begin:end])

    def sequence(self, shard: str, count: int) -> str | None:
        """The number of the last of so many records; None if it is not here."""
        found = self.files(shard, count - 1, count)
        if not found:
            return None
        (file,) = found
        if file.end == count:
            return file.last
        return str(read_file(file.path).column(SEQUENCE)[count - 1 - file.first].as_py())

    def behind(self, shard: str, count: int) -> tuple[int, int | None]:
        """Of the records behind so many: their bytes, and when the first file of them arrived."""
        with self._lock:
            files = [file for file in self._files.get(shard, []) if file.end > count]
        return sum(file.size for file in files), files[0].arrived if files else None

    def discard(self, durable: Offsets) -> None:
        """Delete the files in which everything is durable."""
        gone: list[SpoolFile] = []
        with self._lock:
            for shard, files in self._files.items():
                count = bisect_right(files, durable[shard], key=lambda file: file.end)
                gone += files[:count]
                del files[:count]
            self._size -= sum(file.size for file in gone)
        for file in gone:
            Path(file.path).unlink(missing_ok=True)

    def close(self) -> None:
        self._scratch.remove()
