"""The text format of COPY: tab-separated, backslash escapes, `\\N` for NULL, `\\.` for the end.

A block without backslashes is split at its delimiters and line ends. Otherwise the decoder first finds the
escaped bytes, by the parity of each run of backslashes. Numeric escapes are rare and are decoded one by
one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.engine.api import CopyOptions
from tidemill.server.bytecolumns import concatenated, content
from tidemill.server.copy.fields import (
    Bytes,
    Mask,
    Places,
    cells,
    line_ends,
    line_start,
    matches,
    spans_of,
    split,
)
from tidemill.server.copy.formats import LineDecoder
from tidemill.server.copy.values import BadCopyData, CopyValues, with_context
from tidemill.types import wire
from tidemill.types.kernels import pc
from tidemill.types.model import Column

_BACKSLASH, _DOT, _LF = 92, 46, 10
_NAMED = {b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}
_NUMERIC = re.compile(rb"x[0-9A-Fa-f]{1,2}|[0-7]{1,3}")


class TextEncoder:
    """Encodes rows in the text format."""

    def __init__(self, columns: Sequence[Column], options: CopyOptions, timezone: str) -> None:
        self._columns = columns
        self._options = options
        self._timezone = timezone
        self._delimiter = options.delimiter.encode()
        # Values that contain one of these bytes need escapes.
        self._special = np.zeros(256, np.bool_)
        self._special[[_BACKSLASH, *_NAMED.values(), *self._delimiter]] = True

    def start(self) -> list[bytes]:
        if not self._options.header:
            return []
        names = self._escaped(pa.array([c.name.encode() for c in self._columns], pa.binary()))
        return [self._delimiter.join(names.to_pylist()) + b"\n"]

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        if not self._columns:
            return pa.array([b"\n"] * batch.num_rows, pa.binary())
        parts: list[pa.Array | pa.Scalar] = []
        null = self._options.null.encode()
        for column, array in zip(self._columns, batch.columns, strict=True):
            values = self._escaped(wire.encode_text(array, column.type, timezone=self._timezone))
            parts += [values, pa.scalar(self._delimiter)]
        parts[-1] = pa.scalar(b"\n")
        return concatenated(parts, null)

    def end(self) -> list[bytes]:
        return []

    def _escaped(self, values: pa.Array) -> pa.Array:
        if not bool(self._special[np.frombuffer(content(values), np.uint8)].any()):
            return values
        values = pc.replace_substring(values, b"\\", b"\\\\")
        for letter, code in _NAMED.items():
            values = pc.replace_substring(values, bytes([code]), b"\\" + letter)
        if self._delimiter[0] not in _NAMED.values():
            values = pc.replace_substring(values, self._delimiter, b"\\" + self._delimiter)
        return values


class TextDecoder(LineDecoder):
    """Decodes the text format."""

    def __init__(self, values: CopyValues, options: CopyOptions) -> None:
        super().__init__(values, options)
        self._delimiter = ord(options.delimiter)
        self._null = options.null.encode()
        self._default = None if options.default is None else options.default.encode()

    def find_eol(self, pending: bytes, *, final: bool) -> bytes:
        for found in re.finditer(rb"[\r\n]", pending):
            at = found.start()
            if _escaped_at(pending, at):
                continue
            if pending[at] == _LF:
                return b"\n"
            if at + 1 < len(pending):
                return b"\r\n" if pending[at + 1] == _LF else b"\r"
            return b"\r" if final else b""
        return b""

    def last_row_end(self, pending: bytes) -> int:
        last = self.eol[-1:]
        at = pending.rfind(last)
        while at >= 0 and _escaped_at(pending, at):
            at = pending.rfind(last, 0, at)
        return at + 1

    def first_row_end(self, block: bytes) -> int:
        last = self.eol[-1:]
        at = block.index(last)
        while _escaped_at(block, at):
            at = block.index(last, at + 1)
        return at + 1

    def count_lines(self, block: bytes) -> int:
        return 1

    def complete(self, pending: bytes) -> bytes:
        if self.last_row_end(pending) == len(pending):
            return pending
        if _escaped_at(pending, len(pending)):
            # A backslash at the end of the data is dropped.
            pending = pending[:-1]
        return pending + self.eol

    def decode_block(self, block: bytes) -> pa.RecordBatch:
        data = np.frombuffer(block, np.uint8)
        slashes = np.flatnonzero(data == _BACKSLASH) if b"\\" in block else np.zeros(0, np.int64)
        # Which bytes are literal because a backslash precedes them.
        escaped = np.zeros(len(data), np.bool_)
        if len(slashes):
            slashes = _escaping(slashes)
            # The block ends with a line end that is not escaped, so every escape has its byte.
            escaped[slashes + 1] = True
        row_end, stray = line_ends(data, ~escaped, self.eol)
        marks = slashes[data[slashes + 1] == _DOT]
        mark = int(marks[0]) if len(marks) else len(data)
        if min(mark, stray) == len(data):
            return self._rows(data, slashes, escaped, row_end)
        # Rows before this line count, and their errors are reported first.
        start = line_start(row_end, min(mark, stray))
        head = slice(0, start)
        batch = self._rows(data[head], slashes[slashes < start], escaped[head], row_end[head])
        if stray < mark:
            what, escape = ("newline", "\\n") if data[stray] == _LF else ("carriage return", "\\r")
            error = BadCopyData(f"literal {what} found in data", hint=f'Use "{escape}" to represent {what}.')
            raise with_context(error, self.values.context(self.lines + 1))
        if mark != start or block[mark + 2 : mark + 2 + len(self.eol)] != self.eol:
            error = BadCopyData("end-of-copy marker is not alone on its line")
            raise with_context(error, self.values.context(self.lines + 1))
        self.ended = True
        return batch

    def _rows(self, data: Bytes, slashes: Places, escaped: Mask, row_end: Mask) -> pa.RecordBatch:
        """Decode whole rows with known line ends."""
        width = len(self.values.columns)
        is_end = row_end | ((data == self._delimiter) & ~escaped)
        ends = np.flatnonzero(is_end)
        found = cells(ends, row_end[ends], width)
        null, marked = self._markers(data, found.ends, row_end)
        keep: Mask | None = None
        plain = data
        if len(slashes) or self.eol == b"\r\n":
            kept: Mask = np.logical_not(is_end)
            if self.eol == b"\r\n":
                kept[np.flatnonzero(row_end) - 1] = False
            plain = _unescaped(data, slashes, kept)
            keep = kept
        columns = split(plain, found, keep, null, width)
        first = self.lines + 1
        batch = self.values.batch(columns, lambda row: first + row, marked=marked)
        if found.wrong is not None:
            row_ends = np.flatnonzero(row_end)
            start = int(row_ends[found.rows - 1]) + 1 if found.rows else 0
            line = data[start : int(row_ends[found.rows])].tobytes()
            self.raise_narrow(line.rstrip(b"\r"), found.wrong, self.lines + found.rows)
        self.lines += found.rows
        return batch

    def _markers(self, data: Bytes, ends: Places, row_end: Mask) -> tuple[Mask | None, Mask | None]:
        """Which fields are null or the default, and which of them are the default."""
        if not len(ends):
            return None, None
        starts, lengths = spans_of(ends, row_end, self.eol)
        null = matches(data, starts, lengths, self._null)
        if self._default is None:
            return null, None
        marked = matches(data, starts, lengths, self._default)
        return null | marked, marked


def _escaped_at(data: bytes, at: int) -> bool:
    """Whether an odd number of backslashes precedes the byte at `at`."""
    start = at
    while start and data[start - 1] == _BACKSLASH:
        start -= 1
    return (at - start) % 2 == 1


def _escaping(slashes: Places) -> Places:
    """The backslashes that escape the next byte: in each run the first, third, fifth, ..."""
    index = np.arange(len(slashes))
    starts_run = np.ones(len(slashes), np.bool_)
    starts_run[1:] = np.diff(slashes) != 1
    run_start = np.maximum.accumulate(np.where(starts_run, index, 0))
    return slashes[(index - run_start) % 2 == 0]


_MEANING = np.arange(256, dtype=np.uint8)
for _letter, _code in _NAMED.items():
    _MEANING[_letter[0]] = _code
_STARTS_NUMBER = np.zeros(256, np.bool_)
_STARTS_NUMBER[list(b"01234567x")] = True


def _unescaped(data: Bytes, slashes: Places, keep: Mask) -> Bytes:
    """The data with escapes replaced by their values; bytes that are not content are removed from `keep`."""
    result = data.copy()
    targets = slashes + 1
    letters = data[targets]
    result[targets] = _MEANING[letters]
    keep[slashes] = False
    numeric = targets[_STARTS_NUMBER[letters]]
    if len(numeric):
        raw = data.tobytes()
        for at in numeric.tolist():
            found = _NUMERIC.match(raw, at, at + 3)
            if found is None:
                continue
            text = found[0]
            code = int(text[1:], 16) if text[0] == ord("x") else int(text, 8) & 0xFF
            result[at] = code
            keep[at + 1 : at + len(text)] = False
    return result
