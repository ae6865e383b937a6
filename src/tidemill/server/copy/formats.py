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
    """Encodes Arrow batches as COPY rows. A row is the content of one CopyData message."""

    def start(self) -> list[bytes]:
        """Bytes before the first batch (a header line)."""
        ...

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """One byte string for each row of the batch."""
        ...

    def end(self) -> list[bytes]:
        """Bytes after the last batch."""
        ...


class CopyDecoder(Protocol):
    """Decodes COPY bytes to Arrow batches. It must not be used again after an error."""

    def feed(self, data: bytes) -> list[pa.RecordBatch]: ...

    def finish(self) -> list[pa.RecordBatch]:
        """Handle the end of the data."""
        ...


def wrong_width(values: CopyValues, fields: int, line: int, text: bytes) -> Exception:
    """The error for a row with too few or too many fields."""
    if fields < len(values.columns):
        error = BadCopyData(f'missing data for column "{values.columns[fields].name}"')
    else:
        error = BadCopyData("extra data after last expected column")
    return with_context(error, values.context(line, value=text))


class LineDecoder(ABC):
    """Base of text and csv: rows end at line ends, and the first line decides which: LF, CR LF or CR."""

    def __init__(self, values: CopyValues, options: CopyOptions) -> None:
        self.values = values
        self._options = options
        # Bytes after the last whole row, in pieces as received.
        self._pieces: list[bytes] = []
        self._size = 0
        # The size at which to scan again.
        self._scan_at = 1
        # The line end; b"" until the first one was seen.
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
            # Empty input is a header line too, and a wrong one.
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
        """Decode a block that ends at a row's end."""
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
        """HEADER MATCH: check that the line names the columns in their order."""
        names = [c.name for c in self.values.columns]
        narrow = BadCopyData(f"wrong number of fields in header line: expected {len(names)}")
        try:
            found = self._sibling(self.values.texts()).decode_block(line)
        except BadCopyData as e:
            raise with_context(narrow, e.context or "") from None
        if not found.num_rows:
            # The end-of-data mark.
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
        """Raise the error for a row with the wrong number of fields. If it has too few, errors in its values
        are raised first. `before` is the number of lines before it."""
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
        """The line end of the first row of `pending`; b"" if it is not known yet."""

    @abstractmethod
    def last_row_end(self, pending: bytes) -> int:
        """The offset after the last line end that ends a row; 0 if there is none."""

    @abstractmethod
    def first_row_end(self, block: bytes) -> int:
        """The offset after the first line end that ends a row, in a block that contains one."""

    @abstractmethod
    def count_lines(self, block: bytes) -> int:
        """The number of lines in whole rows, as error messages count them."""

    @abstractmethod
    def complete(self, pending: bytes) -> bytes:
        """The last row with its line end, which is added if it is missing."""

    @abstractmethod
    def decode_block(self, block: bytes) -> pa.RecordBatch:
        """Decode whole rows and add their lines to `lines`."""
