"""CSV decoder: a message is one record with a fixed number of text columns.

Fields are separated by the delimiter. A field in double quotes may contain delimiters, line ends and doubled
quotes. An empty field is an empty text. One line end after the record belongs to it. Messages are decoded by
columns, except those with quotes anywhere but around whole fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoded
from tidemill.decode.cursor import PAD, Bytes
from tidemill.decode.gather import Gathered
from tidemill.decode.reader import Unreadable
from tidemill.decode.utf8 import texts, why_no_text
from tidemill.types.columns import spans, valid_mask
from tidemill.types.model import TEXT, Column

PREFIX = "csv deserialization error: "
_QUOTE = '"'


class CsvMessageDecoder:
    def __init__(self, names: Sequence[str], delimiter: str = ",") -> None:
        self.columns = tuple(Column(name, TEXT) for name in names)
        self._delimiter = delimiter

    def decode(self, messages: pa.Array) -> Decoded:
        text, wrong = texts(messages)
        gathered = Gathered(len(messages), [pa.string()] * len(self.columns))
        if wrong is not None:
            for row in np.flatnonzero(wrong).tolist():
                gathered.fail(row, PREFIX + str(why_no_text(messages[row].as_py())))
        rows = np.flatnonzero(valid_mask(text))
        records = _Records(text, rows, self._delimiter, len(self.columns))
        sure = records.sure()
        if len(sure):
            gathered.add(rows[sure], records.columns(sure))
        for row in np.delete(rows, sure).tolist():
            try:
                gathered.replace(row, self._fields(text[row].as_py()))
            except Unreadable as error:
                gathered.fail(row, PREFIX + str(error))
        return gathered.decoded()

    def _fields(self, record: str) -> list[str]:
        fields = split(record.removesuffix("\n").removesuffix("\r"), self._delimiter)
        if len(fields) != len(self.columns):
            raise Unreadable(f"expected {len(self.columns)} columns, got {len(fields)}")
        return fields


def split(record: str, delimiter: str) -> list[str]:
    """The fields of one record; raises Unreadable."""
    fields: list[str] = []
    at = 0
    while True:
        if record.startswith(_QUOTE, at):
            field, at = _quoted(record, at + 1)
            if at < len(record) and record[at] != delimiter:
                raise Unreadable(f"{record[at]!r} behind a quoted field")
        else:
            stop = record.find(delimiter, at)
            stop = len(record) if stop < 0 else stop
            field, at = record[at:stop], stop
            if "\n" in field or "\r" in field:
                raise Unreadable("more than one record in the message")
        fields.append(field)
        if at == len(record):
            return fields
        at += 1


def _quoted(record: str, at: int) -> tuple[str, int]:
    """The text up to the closing quote, and the position after it."""
    pieces: list[str] = []
    while True:
        stop = record.find(_QUOTE, at)
        if stop < 0:
            raise Unreadable("a quoted field has no end")
        pieces.append(record[at:stop])
        at = stop + 1
        if not record.startswith(_QUOTE, at):
            return _QUOTE.join(pieces), at
        at += 1


class _Records:
    """Records that are decoded together."""

    def __init__(self, text: pa.Array, rows: np.ndarray, delimiter: str, width: int) -> None:
        offsets, data = spans(text)
        first = int(offsets[0])
        self._bytes = Bytes(data[first : int(offsets[-1])])
        octets = self._bytes.octets
        self._width = width
        self._start = offsets[:-1][rows].astype(np.int64) + (PAD - first)
        end = offsets[1:][rows].astype(np.int64) + (PAD - first)
        for line_end in (b"\n", b"\r"):
            end = end - ((end > self._start) & (octets[end - 1] == line_end[0]))
        self._end = end
        self._quotes = np.flatnonzero(octets == ord(_QUOTE))
        self._cuts = self._outside(np.flatnonzero(octets == ord(delimiter)))
        self._breaks = self._outside(np.flatnonzero((octets == ord("\n")) | (octets == ord("\r"))))

    def _outside(self, places: np.ndarray) -> np.ndarray:
        """The positions that are within a record and outside quotes."""
        if not len(places) or not len(self._start):
            return places[:0]
        record = np.maximum(np.searchsorted(self._start, places, side="right") - 1, 0)
        inside = (places >= self._start[record]) & (places < self._end[record])
        if len(self._quotes):
            before = np.searchsorted(self._quotes, places)
            inside &= (before - np.searchsorted(self._quotes, self._start)[record]) % 2 == 0
        return places[inside]

    def sure(self) -> np.ndarray:
        """The records with `columns` fields; the others must be read one by one."""
        cuts = np.searchsorted(self._cuts, self._end) - np.searchsorted(self._cuts, self._start)
        sure = cuts == self._width - 1
        if len(self._breaks):
            sure &= np.searchsorted(self._breaks, self._end) == np.searchsorted(self._breaks, self._start)
        chosen = np.flatnonzero(sure)
        if len(self._quotes) and len(chosen):
            start, stop = self._edges(chosen)
            quotes = np.searchsorted(self._quotes, stop) - np.searchsorted(self._quotes, start)
            whole = (quotes == 2) & self._in_quotes(start, stop)
            chosen = chosen[((quotes == 0) | whole).all(axis=1)]
        return chosen

    def _edges(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The start and end of each field: one row per record."""
        count = self._width - 1
        first = np.searchsorted(self._cuts, self._start[chosen])
        cuts = (
            self._cuts[first[:, None] + np.arange(count)] if count else np.empty((len(chosen), 0), np.int64)
        )
        start = np.column_stack([self._start[chosen], cuts + 1])
        stop = np.column_stack([cuts, self._end[chosen]])
        return start, stop

    def _in_quotes(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        octets = self._bytes.octets
        long = stop - start >= 2
        return long & (octets[start] == ord(_QUOTE)) & (octets[stop - 1] == ord(_QUOTE))

    def columns(self, chosen: np.ndarray) -> list[pa.Array]:
        start, stop = self._edges(chosen)
        if len(self._quotes):
            quoted = self._in_quotes(start, stop)
            start, stop = start + quoted, stop - quoted
        return [self._bytes.column(start[:, i], stop[:, i]).cast(pa.string()) for i in range(self._width)]
