"""The spool: received transactions on their way from the one connection to the tasks.

Written by `receiver` in the server; `segment` describes the files. A transaction is visible with its commit
and not before, whatever its size; one that was cut off by a lost connection leaves nothing. The spool is a
cache: it is not synced, is lost with the process, and is then filled again from the replication slot, which
is moved only to what is durable in the shards.

Memory is bounded by a block. The disk is bounded by `MAX_BYTES`: above, the receiver stops reading, and
PostgreSQL keeps the log. One open transaction may exceed this, up to `MAX_TRANSACTION_BYTES`, because nothing
of it can be used before its end.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tidemill.errors import Internal
from tidemill.scratch import Scratch
from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.segment import (
    BLOCK_HEADER,
    HEADER,
    INDEX,
    RELATION,
    RELATIONS_FILE,
    STATE,
    STATE_FILE,
    index_path,
    segment_path,
)

# A block: what a task decodes at once. Its messages are at most two rows each.
BLOCK_MESSAGES = 32_768
BLOCK_BYTES = 4 << 20
# Files are deleted as a whole, when everything in them is durable.
SEGMENT_BYTES = 64 << 20
# Complete transactions that are not durable yet: some minutes of a fast upstream.
MAX_BYTES = 4 << 30
# One transaction: some hundred million rows. It must not fill the disk of the server.
MAX_TRANSACTION_BYTES = 128 << 30

_PREFIX = "tidemill-pg-"


class TransactionTooLarge(UpstreamError):
    sqlstate = "54000"
    permanent = True


@dataclass(slots=True)
class _Pending:
    """Messages in memory. `places` and `ends` are the numbers of messages through each commit, and the end
    LSNs."""

    messages: list[bytes | memoryview] = field(default_factory=list[bytes | memoryview])
    size: int = 0
    places: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class _Segment:
    sequence: int
    size: int = 0
    # The greatest end LSN in it.
    high: int = 0


class Spool:
    """One thread writes; `blocks`, `frontier`, `floor` and `size` may be read by others. `floor` and
    `frontier` are as `segment` says."""

    def __init__(self) -> None:
        self._scratch = Scratch(_PREFIX)
        self.folder: Path = self._scratch.path
        # None before `begin`.
        self.floor: int | None = None
        self.frontier = 0
        self._pending = _Pending()
        # The number of the next message, and of the first one in `_pending`.
        self._number = self._first = 0
        # Blocks of the open transaction that are written already, with their segments; and their size.
        self._parts: list[tuple[_Segment, np.ndarray]] = []
        self._parts_size = 0
        # Nothing that ends up to here is to come, except what is in `_pending`; and the same behind that.
        self._low = self._after = 0
        self._segments: list[_Segment] = [_Segment(0)]
        self._file: BinaryIO | None = None
        self._relations: dict[int, bytes] = {}
        self._relations_file: BinaryIO | None = None
        # Guards `_blocks`, all blocks with complete transactions: one or more rows of `INDEX` each.
        self._lock = threading.Lock()
        self._blocks: list[np.ndarray] = []
        self._state = os.open(self.folder / STATE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    # -- writing

    def begin(self, floor: int) -> None:
        """The first transaction will end after `floor`."""
        self.floor = self.frontier = self._low = self._after = floor
        self._write_state()

    def add(self, message: bytes | memoryview) -> None:
        """A message of the open transaction, with its header."""
        pending = self._pending
        pending.messages.append(message)
        pending.size += len(message)
        if len(pending.messages) >= BLOCK_MESSAGES or pending.size >= BLOCK_BYTES:
            self._spill()

    @property
    def number(self) -> int:
        """The number of the next message."""
        return self._first + len(self._pending.messages)

    def describe(self, relid: int, message: bytes) -> bool:
        """The messages of rows from the next one on have this description (a relation message without its
        header). Returns False if it is the same as before."""
        if self._relations.get(relid) == message:
            return False
        self._relations[relid] = message
        if self._relations_file is None:
            self._relations_file = open(self.folder / RELATIONS_FILE, "ab", buffering=0)  # noqa: SIM115
        self._relations_file.write(RELATION.pack(self.number, len(message)) + message)
        return True

    def commit(self, end_lsn: int) -> None:
        """The open transaction is complete. It is visible after the next `flush`."""
        if end_lsn <= self._last:
            raise Internal(f"a commit at {end_lsn} follows one at {self._last}")
        pending = self._pending
        if self._parts:
            self._write(len(pending.messages))
            self._publish_parts(end_lsn)
        elif len(pending.messages) > self._complete:
            pending.places.append(len(pending.messages))
            pending.ends.append(end_lsn)
        else:
            self.advance(end_lsn)

    def advance(self, lsn: int) -> None:
        """No transaction that ends up to here is to come. Only between transactions. Visible after the next
        `flush`."""
        if self.open:
            raise Internal("the frontier moves inside a transaction")
        self._after = max(self._after, lsn)

    @property
    def open(self) -> bool:
        """Whether there is an incomplete transaction."""
        return bool(self._parts) or len(self._pending.messages) > self._complete

    @property
    def _complete(self) -> int:
        """How many pending messages are of complete transactions."""
        return self._pending.places[-1] if self._pending.places else 0

    @property
    def _last(self) -> int:
        return max(self._low, self._after, *self._pending.ends[-1:])

    @property
    def reached(self) -> int:
        """Where the frontier will be after `flush`."""
        return self._last

    @property
    def stale(self) -> bool:
        """Whether `flush` would move the frontier."""
        return self._last > self.frontier

    def flush(self) -> None:
        """Make complete transactions visible."""
        if self._complete:
            self._write(self._complete)
        self._low = max(self._low, self._after)
        if self.frontier < self._low:
            self.frontier = self._low
            self._write_state()

    def cut_off(self) -> None:
        """The connection is lost: forget the open transaction, which will be sent again."""
        self.flush()
        self._first = self.number
        self._pending = _Pending()
        self._parts, self._parts_size = [], 0

    def _spill(self) -> None:
        """A block is full: complete transactions go into one, and the open one into parts, if it alone is
        large."""
        if self._complete:
            self._write(self._complete)
            if len(self._pending.messages) < BLOCK_MESSAGES // 2 and self._pending.size < BLOCK_BYTES // 2:
                return
        self._write(len(self._pending.messages))
        if self._parts_size > MAX_TRANSACTION_BYTES:
            raise TransactionTooLarge(
                "a transaction of the upstream is too large",
                detail=f"It has more than {MAX_TRANSACTION_BYTES >> 30} GB.",
                hint="Drop the source and create it again; its tables are then read as they are.",
            )

    def _write(self, count: int) -> None:
        """The first `count` pending messages as a block: the complete transactions, or a part of the open
        one."""
        if not count:
            return
        pending = self._pending
        whole = count == self._complete
        messages = pending.messages[:count]
        lengths = np.fromiter(map(len, messages), np.uint32, count)
        size = int(lengths.sum(dtype=np.int64))
        places = np.array(pending.places, np.uint32)
        ends = np.array(pending.ends, np.uint64)
        header = BLOCK_HEADER.pack(count, len(places), size)
        data = b"".join([header, lengths.tobytes(), places.tobytes(), ends.tobytes(), *messages])
        segment, offset = self._append(data)
        block = np.zeros(1, INDEX)
        block["low"], block["offset"], block["size"] = self._low, offset, len(data)
        block["number"], block["messages"] = self._first, count
        self._pending = _Pending(pending.messages[count:], pending.size - size)
        self._first += count
        if whole:
            self._low = pending.ends[-1]
            self._publish(segment, block, self._low)
        else:
            self._parts.append((segment, block))
            self._parts_size += len(data)

    def _publish_parts(self, end_lsn: int) -> None:
        for segment, block in self._parts:
            self._publish(segment, block, end_lsn)
        self._parts, self._parts_size = [], 0
        self._low = end_lsn

    def _publish(self, segment: _Segment, block: np.ndarray, high: int) -> None:
        """Readers look no further than the frontier, which moves after this."""
        block["high"] = high
        segment.high = high
        with open(index_path(self.folder, segment.sequence), "ab", buffering=0) as file:
            file.write(block.tobytes())
        with self._lock:
            self._blocks.append(block)

    def _append(self, data: bytes) -> tuple[_Segment, int]:
        segment = self._segments[-1]
        if segment.size >= SEGMENT_BYTES:
            segment = self._roll()
        if self._file is None:
            self._file = open(segment_path(self.folder, segment.sequence), "ab", buffering=0)  # noqa: SIM115
        offset = self._file.tell()
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view) :]
        segment.size = offset + len(data)
        return segment, offset

    def _roll(self) -> _Segment:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._segments.append(_Segment(self._segments[-1].sequence + 1))
        return self._segments[-1]

    def _write_state(self) -> None:
        os.pwrite(self._state, STATE.pack(self.floor or 0, self.frontier), 0)

    # -- discarding

    def discard(self, durable: int) -> None:
        """Delete segments in which everything is durable."""
        if self._segments[-1].size >= SEGMENT_BYTES and not self._parts:
            self._roll()
        held = min((segment.sequence for segment, _ in self._parts), default=self._segments[-1].sequence)
        gone = 0
        while self._segments[gone].sequence < held and self._segments[gone].high <= durable:
            gone += 1
        if not gone:
            return
        dead, self._segments = self._segments[:gone], self._segments[gone:]
        self.floor = max(self.floor or 0, *(segment.high for segment in dead))
        self._write_state()
        for segment in dead:
            for path in (index_path, segment_path):
                path(self.folder, segment.sequence).unlink(missing_ok=True)
        with self._lock:
            every = self._every()
            self._blocks = [every[every["high"] > self.floor]]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(segment.size for segment in list(self._segments))

    @property
    def full(self) -> bool:
        """Whether complete transactions have used up their share of the disk."""
        return self.size - self._parts_size > MAX_BYTES

    # -- the driver's view

    def blocks(self, lower: int, upper: int) -> np.ndarray:
        """The blocks with transactions of (lower, upper], in order, as rows of `INDEX`."""
        with self._lock:
            every = self._every()
            self._blocks = [every]
        return every[(every["high"] > lower) & (every["low"] < upper)]

    def _every(self) -> np.ndarray:
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0, INDEX)

    def close(self) -> None:
        """Nothing is called afterwards."""
        for file in (self._file, self._relations_file):
            if file is not None:
                file.close()
        self._file = self._relations_file = None
        if self._state >= 0:
            os.close(self._state)
            self._state = -1
        self._scratch.remove()


def framed(message: bytes) -> bytes:
    """A message of this server, with an empty header."""
    return bytes(HEADER) + message
