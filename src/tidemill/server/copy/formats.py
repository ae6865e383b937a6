"""The interface of COPY encoders and decoders, and the base of the line formats text and csv.

`LineDecoder` keeps the bytes after the last complete row. Promises: each byte is scanned a bounded number
of times, however the input is cut (an incomplete row is scanned again only when its size has doubled); the
size of a row is limited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NoReturn, Protocol, Self

import pyarrow as pa

from tidemill.engine.api import CopyOptions
from tidemill.errors import LimitExceeded
from tidemill.server import limits
from tidemill.server.copy.values import BadCopyData, CopyValues, with_context


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


def wrong_width(values: CopyValues, fields: int, line: int, text: bytes) -> Exception:
    """A row with too few or too many fields."""
    if fields < len(values.columns):
        error = BadCopyData(f'missing data for column "{values.columns[fields].name}"')
    else:
        error = BadCopyData("extra data after last expected column")
    return with_context(error, values.context(line, value=text))


class LineDecoder(ABC):
    """Text and csv: rows end at line ends, which the first line decides: LF, CR LF or CR."""

    def __init__(self, values: CopyValues, options: CopyOptions) -> None:
        self.values = values
        self._options = options
        # Bytes after the last whole row, in the pieces they came in.
        self._pieces: list[bytes] = []
        self._size = 0
        # Scan again when this many bytes are there.
        self._scan_at = 1
        # What ends a line; b"" until the first end was seen.
        self.eol = b""
        # Lines consumed so far.
        self.lines = 0
        self._skip_header = options.header
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
                context=self.values.context(self.lines + 1),
            )
        self._pieces, self._size, self._scan_at = [rest], len(rest), 2 * len(rest) + 1
        return self._decode(pending[:cut])

    def finish(self) -> list[pa.RecordBatch]:
        pending = b"".join(self._pieces)
        self._pieces = []
        if not pending and self._skip_header and self._options.header_match:
            # Nothing is a header line too, and the wrong one.
            self.eol = self.eol or b"\n"
            self._check_header(self.eol)
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
            if self._options.header_match:
                self._check_header(block[:end])
            self.lines += self.count_lines(block[:end])
            block = block[end:]
            self._skip_header = False
        if not block:
            return []
        batch = self.decode_block(block)
        return [batch] if batch.num_rows else []

    def _check_header(self, line: bytes) -> None:
        """HEADER MATCH: the line names the columns, in their order."""
        names = [c.name for c in self.values.columns]
        narrow = BadCopyData(f"wrong number of fields in header line: expected {len(names)}")
        try:
            found = self._sibling(self.values.texts()).decode_block(line)
        except BadCopyData as e:
            raise with_context(narrow, e.context or "") from None
        if not found.num_rows:
            # The mark that ends the data.
            raise with_context(narrow, self.values.context(1))
        for n, (name, column) in enumerate(zip(names, found.columns, strict=True)):
            got = column[0].as_py()
            if got != name:
                shown = "null value" if got is None else f'"{got}"'
                error = BadCopyData(
                    f'column name mismatch in header line field {n + 1}: got {shown}, expected "{name}"'
                )
                raise with_context(error, self.values.context(1))

    def raise_narrow(self, line: bytes, fields: int, before: int) -> NoReturn:
        """A row has another number of fields than the table. What is wrong with the values of one that has
        too few comes first. `before` is how many lines stand before it."""
        if 0 < fields < len(self.values.columns):
            part = self._sibling(self.values.first(fields))
            part.lines = before
            part.decode_block(line + self.eol)
        at = before + self.count_lines(line + self.eol)
        raise wrong_width(self.values, fields, at, line)

    def _sibling(self, values: CopyValues) -> Self:
        """A decoder of the same format for other columns."""
        plain = replace(self._options, header=False, header_match=False)
        other = type(self)(values, plain)
        other.eol = self.eol
        return other

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
