"""The csv format of COPY: quoted fields, doubled quotes, line ends inside quotes; an unquoted null string is
NULL.

With the default escape (the quote itself) a byte is inside quotes if an odd number of quotes precedes it.
A quote directly after a closing quote is a quote in the value. So the decoder only needs to count quotes.
With another escape character the decoder visits each mark (not each byte) in order.

A whole line `\\.` outside quotes ends the data, as in PostgreSQL up to 17, which is the version we report:
psql up to 17 sends that line to the server. A last line `\\.` without a line end is data, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.engine.api import CopyOptions
from tidemill.server.bytecolumns import concatenated, content
from tidemill.server.copy.fields import (
    Bytes,
    Cells,
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

_CR, _LF = 13, 10


class CsvEncoder:
    """Encodes rows in the csv format."""

    def __init__(self, columns: Sequence[Column], options: CopyOptions, timezone: str) -> None:
        self._columns = columns
        self._options = options
        self._timezone = timezone
        self._delimiter = options.delimiter.encode()
        self._quote = options.quote.encode()
        self._escape = options.escape.encode()
        self._null = options.null.encode()
        # Values without any of these bytes need no quotes, except the null string (and `\\.`, if it is alone
        # in its line).
        self._special = np.zeros(256, np.bool_)
        self._special[[_CR, _LF, *self._delimiter, *self._quote]] = True

    def start(self) -> list[bytes]:
        if not self._options.header:
            return []
        names = self._quoted(pa.array([c.name.encode() for c in self._columns], pa.binary()), forced=False)
        return [self._delimiter.join(names.to_pylist()) + b"\n"]

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        if not self._columns:
            return pa.array([b"\n"] * batch.num_rows, pa.binary())
        parts: list[pa.Array | pa.Scalar] = []
        for column, array in zip(self._columns, batch.columns, strict=True):
            forced = self._options.force_quote == ("*",) or column.name in self._options.force_quote
            values = wire.encode_text(array, column.type, timezone=self._timezone)
            parts += [self._quoted(values, forced=forced), pa.scalar(self._delimiter)]
        parts[-1] = pa.scalar(b"\n")
        return concatenated(parts, self._null)

    def end(self) -> list[bytes]:
        return []

    def _quoted(self, values: pa.Array, *, forced: bool) -> pa.Array:
        """The values, quoted where necessary; nulls stay null."""
        if forced:
            needs = values.is_valid()
        else:
            needs = pc.equal(values, pa.scalar(self._null))
            if bool(self._special[np.frombuffer(content(values), np.uint8)].any()):
                for special in (self._delimiter, self._quote, b"\n", b"\r"):
                    needs = pc.or_(needs, pc.match_substring(values, special))
            if len(self._columns) == 1:
                # Older clients would read a line with only this as the end of the data.
                needs = pc.or_(needs, pc.equal(values, pa.scalar(b"\\.")))
        if not pc.any(needs).as_py():
            return values
        quoted = values
        if self._escape != self._quote:
            quoted = pc.replace_substring(quoted, self._escape, self._escape + self._escape)
        quoted = pc.replace_substring(quoted, self._quote, self._escape + self._quote)
        quote = pa.scalar(self._quote)
        return pc.if_else(needs, pc.binary_join_element_wise(quote, quoted, quote, b""), values)


class CsvDecoder(LineDecoder):
    """Decodes the csv format."""

    def __init__(self, values: CopyValues, options: CopyOptions) -> None:
        super().__init__(values, options)
        self._delimiter = ord(options.delimiter)
        self._quote = ord(options.quote)
        self._escape = ord(options.escape)
        self._null = options.null.encode()
        self._default = None if options.default is None else options.default.encode()
        names = [c.name for c in values.columns]
        self._force_not_null = _numbers(options.force_not_null, names)
        self._force_null = _numbers(options.force_null, names)
        # The last line had no line end.
        self._end_added = False

    def find_eol(self, pending: bytes, *, final: bool) -> bytes:
        data = np.frombuffer(pending, np.uint8)
        ends = np.flatnonzero(self._outside((data == _LF) | (data == _CR), data))
        if not len(ends):
            return b""
        at = int(ends[0])
        if data[at] == _LF:
            return b"\n"
        if at + 1 < len(data):
            return b"\r\n" if data[at + 1] == _LF else b"\r"
        return b"\r" if final else b""

    def last_row_end(self, pending: bytes) -> int:
        ends = self._eols(pending)
        return int(ends[-1]) + 1 if len(ends) else 0

    def first_row_end(self, block: bytes) -> int:
        ends = self._eols(block)
        return int(ends[0]) + 1 if len(ends) else len(block)

    def _eols(self, block: bytes) -> Places:
        data = np.frombuffer(block, np.uint8)
        return np.flatnonzero(self._outside(data == self.eol[-1], data))

    def count_lines(self, block: bytes) -> int:
        return block.count(self.eol[:1])

    def complete(self, pending: bytes) -> bytes:
        # Inside quotes the added line end does not end a row, and `decode_block` sees the open quote.
        self._end_added = self.last_row_end(pending) != len(pending)
        return pending + self.eol if self._end_added else pending

    # -- quotes

    def _marks(self, data: Bytes) -> tuple[Places, Places]:
        """The positions of the quotes that open or close a quoted section, and of the characters that are not
        content."""
        if self._escape != self._quote:
            return self._escaped_marks(data)
        quotes = np.flatnonzero(data == self._quote)
        markup = np.ones(len(quotes), np.bool_)
        # Quotes number 2, 4, ... open a section. One directly after a closing quote is a quote in the value.
        markup[2::2] = np.diff(quotes)[1::2] != 1
        return quotes, quotes[markup]

    def _escaped_marks(self, data: Bytes) -> tuple[Places, Places]:
        marks = np.flatnonzero((data == self._quote) | (data == self._escape))
        toggles: list[int] = []
        markup: list[int] = []
        inside = False
        literal = -1
        for at in marks.tolist():
            if at == literal:
                continue
            if (
                inside
                and data[at] == self._escape
                and at + 1 < len(data)
                and self._is_mark(int(data[at + 1]))
            ):
                markup.append(at)
                literal = at + 1
            elif data[at] == self._quote:
                toggles.append(at)
                markup.append(at)
                inside = not inside
        return np.array(toggles, np.int64), np.array(markup, np.int64)

    def _is_mark(self, byte: int) -> bool:
        return byte in (self._quote, self._escape)

    def _outside(self, mask: Mask, data: Bytes) -> Mask:
        """`mask` without the bytes inside quotes."""
        toggles, _ = self._marks(data)
        return mask & ~_inside(toggles, len(data)) if len(toggles) else mask

    # -- rows

    def decode_block(self, block: bytes) -> pa.RecordBatch:
        data = np.frombuffer(block, np.uint8)
        toggles, markup = self._marks(data)
        outside = ~_inside(toggles, len(data))
        row_end, stray = line_ends(data, outside, self.eol)
        unterminated = int(toggles[-1]) if len(toggles) % 2 else len(data)
        mark = self._end_mark(block, row_end)
        if min(stray, unterminated, mark) == len(data):
            return self._rows(data, markup, outside, row_end)
        # Rows before this line count, and their errors are reported first.
        start = line_start(row_end, min(stray, unterminated, mark))
        head = slice(0, start)
        batch = self._rows(data[head], markup[markup < start], outside[head], row_end[head])
        if mark < min(stray, unterminated):
            self.ended = True
            return batch
        if stray < unterminated:
            what = "newline" if data[stray] == _LF else "carriage return"
            error = BadCopyData(
                f"unquoted {what} found in data", hint=f"Use quoted CSV field to represent {what}."
            )
            raise with_context(error, self.values.context(self.lines + 1))
        text = block[start:].removesuffix(self.eol)
        error = BadCopyData("unterminated CSV quoted field")
        raise with_context(error, self.values.context(self.lines + 1 + self.count_lines(text), value=text))

    def _end_mark(self, block: bytes, row_end: Mask) -> int:
        """The start of the end-of-data line; the length of the block if there is none."""
        line = b"\\." + self.eol
        end = len(block) - len(self.eol) * self._end_added
        at = block.find(line, 0, end)
        while at > 0 and not row_end[at - 1]:
            at = block.find(line, at + 1, end)
        return at if at >= 0 else len(block)

    def _rows(self, data: Bytes, markup: Places, outside: Mask, row_end: Mask) -> pa.RecordBatch:
        """Decode whole rows with known line ends."""
        row_ends = np.flatnonzero(row_end)
        is_end = row_end | ((data == self._delimiter) & outside)
        ends = np.flatnonzero(is_end)
        found = cells(ends, row_end[ends], len(self.values.columns))
        keep: Mask | None = None
        if len(markup) or self.eol == b"\r\n":
            kept: Mask = np.logical_not(is_end)
            kept[markup] = False
            if self.eol == b"\r\n":
                kept[row_ends - 1] = False
            keep = kept
        columns, marked = self._columns(data, found, keep, row_end)
        batch = self.values.batch(columns, lambda row: self._line_of(data, int(row_ends[row])), marked=marked)
        if found.wrong is not None:
            start = int(row_ends[found.rows - 1]) + 1 if found.rows else 0
            end = int(row_ends[found.rows])
            text = data[start:end].tobytes().rstrip(b"\r")
            self.raise_narrow(text, found.wrong, self.lines + self.count_lines(data[:start].tobytes()))
        self.lines += self.count_lines(data.tobytes())
        return batch

    def _columns(
        self, data: Bytes, found: Cells, keep: Mask | None, row_end: Mask
    ) -> tuple[list[pa.Array], Mask | None]:
        """The fields by column, and which of them represent the column's default."""
        width = len(self.values.columns)
        ends = found.ends
        null: Mask | None = None
        marked: Mask | None = None
        if len(ends):
            starts, lengths = spans_of(ends, row_end, self.eol)
            null = matches(data, starts, lengths, self._null)
            for i in self._force_not_null:
                null[i::width] = False
            if self._default is not None:
                marked = matches(data, starts, lengths, self._default)
                null |= marked
        columns = split(data, found, keep, null, width)
        for i in self._force_null:
            is_null = pc.equal(columns[i], pa.scalar(self._null))
            columns[i] = pc.if_else(is_null, pa.scalar(None, pa.binary()), columns[i])
        return columns, marked

    def _line_of(self, data: Bytes, row_end: int) -> int:
        return self.lines + self.count_lines(data[: row_end + 1].tobytes())


def _inside(toggles: Places, size: int) -> Mask:
    """Which bytes are inside quotes, given the starts and ends of quoted sections."""
    flips = np.zeros(size, np.uint8)
    flips[toggles] = 1
    return (np.cumsum(flips, dtype=np.uint8) & 1).astype(np.bool_)


def _numbers(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """The numbers of the named columns; `*` means all."""
    if tuple(wanted) == ("*",):
        return list(range(len(names)))
    return [i for i, name in enumerate(names) if name in wanted]
