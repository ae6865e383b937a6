"""What every COPY format offers, and what the two line-wise ones share: gathering bytes until rows are whole.

`LineDecoder` keeps the bytes after the last whole row. Promises: bytes are scanned a bounded number of times
however they are cut (a row that does not end is looked at again only when twice as much is there); one row is
limited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import pyarrow as pa

from tidemill.errors import InvalidValue, LimitExceeded
from tidemill.server import limits
from tidemill.server.copy.values import Values


class CopyEncoder(Protocol):
    """Arrow batches to COPY rows. A row is what clients get in one CopyData message."""

    def start(self) -> list[bytes]:
        """Rows before the first batch (a header line)."""
        ...

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """One byte string for each row of the batch."""
        ...

    def end(self) -> list[bytes]:
        """Rows after the last batch."""
        ...


class CopyDecoder(Protocol):
    """COPY bytes to Arrow batches. After an error it is not used again."""

    def feed(self, data: bytes) -> list[pa.RecordBatch]: ...

    def finish(self) -> list[pa.RecordBatch]:
        """There is no more data."""
        ...


class BadCopyData(InvalidValue):
    """The data is not in the format (22P04)."""

    sqlstate = "22P04"


class LineDecoder(ABC):
    """Text and csv: rows end at line ends, which the first line decides: LF, CR LF or CR."""

    def __init__(self, values: Values, *, header: bool) -> None:
        self.values = values
        # Bytes after the last whole row, in the pieces they came in.
        self._pieces: list[bytes] = []
        self._size = 0
        # Scan again when this many bytes are there.
        self._scan_at = 1
        # What ends a line; b"" until the first end was seen.
        self.eol = b""
        # Lines consumed so far.
        self.lines = 0
        self._skip_header = header
        # The end-of-data mark was seen: what follows is not data.
        self.ended = False

    def feed(self, data: bytes) -> list[pa.RecordBatch]:
        if self.ended:
            return []
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._scan_at:
            return []
        pending = b"".join(self._pieces)
        cut = self._cut(pending)
        rest = pending[cut:]
        if len(rest) > limits.MAX_COPY_ROW_BYTES:
            raise LimitExceeded(
                f"row of COPY data is longer than {limits.MAX_COPY_ROW_BYTES} bytes",
                detail=self.values.context(self.lines + 1),
            )
        self._pieces, self._size, self._scan_at = [rest], len(rest), 2 * len(rest) + 1
        return self._decode(pending[:cut])

    def finish(self) -> list[pa.RecordBatch]:
        pending = b"".join(self._pieces)
        self._pieces = []
        if self.ended or not pending:
            return []
        if not self.eol:
            self.eol = self.find_eol(pending, final=True) or b"\n"
        return self._decode(self.complete(pending))

    def _cut(self, pending: bytes) -> int:
        if not self.eol:
            self.eol = self.find_eol(pending, final=False)
            if not self.eol:
                return 0
        return self.last_row_end(pending)

    def _decode(self, block: bytes) -> list[pa.RecordBatch]:
        """Rows of a block that ends at a row's end."""
        if self._skip_header and block:
            end = self.first_row_end(block)
            self.lines += self.count_lines(block[:end])
            block = block[end:]
            self._skip_header = False
        if not block:
            return []
        batch = self.decode_block(block)
        return [batch] if batch.num_rows else []

    @abstractmethod
    def find_eol(self, pending: bytes, *, final: bool) -> bytes:
        """What ends the first row of `pending`; b"" if that cannot be said yet."""

    @abstractmethod
    def last_row_end(self, pending: bytes) -> int:
        """Behind the last line end that ends a row; 0 if there is none."""

    @abstractmethod
    def first_row_end(self, block: bytes) -> int:
        """Behind the first line end that ends a row, in a block that has one."""

    @abstractmethod
    def count_lines(self, block: bytes) -> int:
        """The lines of whole rows, as error messages count them."""

    @abstractmethod
    def complete(self, pending: bytes) -> bytes:
        """The last row, whose line end is missing or not, with its line end."""

    @abstractmethod
    def decode_block(self, block: bytes) -> pa.RecordBatch:
        """Decode whole rows; adds to `lines`."""
