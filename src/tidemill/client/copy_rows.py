"""The decoder of COPY ... TO STDOUT: columns in storage form, without Python code per row.

Each CopyData message is one row, so the start of every row is known. A block of rows is decoded column
by column: all lengths of the first column, then of the second, and so on. Used by `link`; pure.

Binary is the normal format: half the work for the server, and unambiguous. If the type of a column is
not known here, only its text form is usable, and the block uses csv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv

from tidemill.client.errors import ProtocolViolation
from tidemill.client.forms import ClientField, held, held_schema
from tidemill.types.columns import validity_buffer
from tidemill.types.kernels import pc
from tidemill.types.model import Kind
from tidemill.types.wire import decode_binary, decode_text

# The binary signature of COPY, no flags, no extension. The server sends it before the first row.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
# Types that pyarrow's csv reader parses directly.
_CSV_DIRECT = {Kind.INT2, Kind.INT4, Kind.INT8, Kind.TEXT, Kind.BOOL, Kind.MZ_TIMESTAMP}

# In csv, a row starts with a time of at most 19 digits, a comma and a letter.
_CSV_HEAD = 24
# Values of a fixed width up to this are copied as rows of a matrix.
_NARROW = 16

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class CopyRows(Protocol):
    """Decodes blocks of rows to tables."""

    # The options in COPY's WITH.
    options: str

    def decode(self, rows: Sequence[memoryview]) -> pa.Table: ...

    def progressed(self, row: memoryview) -> bool:
        """Whether a row of a subscription is a progress row, before it is decoded: its second
        column is true."""
        ...


def rows_of(fields: Sequence[ClientField]) -> CopyRows:
    return CsvRows(fields) if any(f.opaque for f in fields) else BinaryRows(fields)


class BinaryRows:
    options = "FORMAT binary"

    def __init__(self, fields: Sequence[ClientField]) -> None:
        self._fields = fields
        self._header_seen = False

    def decode(self, rows: Sequence[memoryview]) -> pa.Table:
        """Decode the rows, without the header before the first and the trailer after the last one."""
        block = list(rows)
        if block and not self._header_seen:
            if bytes(block[0][: len(_HEADER)]) != _HEADER:
                raise ProtocolViolation("COPY did not begin with its binary signature")
            self._header_seen = True
            block[0] = block[0][len(_HEADER) :]
        if block and bytes(block[-1]) == _TRAILER:
            block.pop()
        data = np.frombuffer(b"".join(block), np.uint8)
        sizes = np.fromiter(map(len, block), np.int64, len(block))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if len(block):
            _check(sizes >= 2, "a row has no number of fields")
            counts = data[starts].astype(np.int64) << 8 | data[starts + 1]
            _check(counts == len(self._fields), f"a row does not have {len(self._fields)} fields")
        at = starts + 2
        columns: list[pa.Array] = []
        for field in self._fields:
            values, at = _column(data, at, ends)
            columns.append(_decoded(values, field))
        _check(at == ends, "a row is longer than its fields")
        return held(columns, self._fields)

    def progressed(self, row: memoryview) -> bool:
        at = 2 if self._header_seen or bytes(row[: len(_HEADER)]) != _HEADER else len(_HEADER) + 2
        # After the length and value of the first column: the length (1) and the value of the second.
        at += 4 + int.from_bytes(row[at : at + 4]) + 4
        return bytes(row[at : at + 1]) == b"\x01"


def _column(data: Bytes, at: Places, ends: Places) -> tuple[pa.Array, Places]:
    """The values whose length prefixes are at the offsets `at`, and the offsets of the next ones."""
    _check(at + 4 <= ends, "a row ends within a length")
    raw = np.ascontiguousarray(data[at[:, None] + np.arange(4)]) if len(at) else np.zeros((0, 4), np.uint8)
    lengths = raw.view(">i4").reshape(len(at)).astype(np.int64)
    valid = lengths >= 0
    lengths = np.maximum(lengths, 0)
    begin = at + 4
    after = begin + lengths
    _check(after <= ends, "a row ends within a value")
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > np.iinfo(np.int32).max:
        raise ProtocolViolation("a block of rows is larger than 2 GB")
    width = int(lengths[0]) if len(lengths) else 0
    if 0 < width <= _NARROW and bool((lengths == width).all()):
        values = data[begin[:, None] + np.arange(width)]
    else:
        # Byte k has the same distance from the start of its value in the source and in the result.
        values = data[np.arange(total) + np.repeat(begin - offsets[:-1], lengths)]
    buffers = [validity_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(at), buffers), after


def _decoded(values: pa.Array, field: ClientField) -> pa.Array:
    if field.type.kind is Kind.JSONB:
        # A version byte, then the server's canonical text, which is used as it is.
        return pc.binary_slice(values, 1, 2**31 - 1).cast(pa.string())
    return decode_binary(values, field.type)


def _check(right: npt.NDArray[np.bool_], text: str) -> None:
    if not bool(right.all()):
        raise ProtocolViolation(text)


class CsvRows:
    options = "FORMAT csv"

    def __init__(self, fields: Sequence[ClientField]) -> None:
        self._fields = fields
        schema = held_schema(fields)
        self._names = schema.names
        direct = [f.type.kind in _CSV_DIRECT for f in fields]
        types = {
            n: schema.field(n).type if d else pa.string() for n, d in zip(self._names, direct, strict=True)
        }
        self._convert = pcsv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        )

    def decode(self, rows: Sequence[memoryview]) -> pa.Table:
        data = b"".join(rows)
        if not data:
            return held_schema(self._fields).empty_table()
        read = pcsv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(data) + 1)
        parse = pcsv.ParseOptions(newlines_in_values=True)
        try:
            table = pcsv.read_csv(pa.BufferReader(data), read, parse, self._convert)
        except pa.ArrowInvalid as e:
            raise ProtocolViolation("a row of COPY's csv cannot be read", detail=str(e)) from None
        columns = [
            column.combine_chunks() if f.type.kind in _CSV_DIRECT else decode_text(column, f.type)
            for column, f in zip(table.columns, self._fields, strict=True)
        ]
        return held(columns, self._fields)

    def progressed(self, row: memoryview) -> bool:
        return bytes(row[:_CSV_HEAD]).split(b",", 2)[1:2] == [b"t"]


def text_rows(values: Sequence[Sequence[bytes | None]], fields: Sequence[ClientField]) -> pa.Table:
    """Columns of texts, as in a small result."""
    columns: list[pa.Array] = []
    for field, texts in zip(fields, values, strict=True):
        column = pa.array(texts, pa.binary())
        columns.append(column.cast(pa.string()) if field.opaque else decode_text(column, field.type))
    return held(columns, fields)
