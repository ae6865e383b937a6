"""The binary format of COPY: a signature, rows of length-prefixed binary values, a trailer.

Rows have no delimiters: each length gives the position of the next value. If a block has no nulls and each
column has a fixed width, all rows have the same layout and are cut by arithmetic. Otherwise the decoder
follows the lengths one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import LimitExceeded
from tidemill.server import limits
from tidemill.server.bytecolumns import concatenated, fixed_width, prefixes
from tidemill.server.copy.values import BadCopyData, CopyValues
from tidemill.types import wire
from tidemill.types.model import Column

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
# The signature, no flags, no header extension.
HEADER = SIGNATURE + struct.pack("!ii", 0, 0)
TRAILER = struct.pack("!h", -1)

# A flag in this half must not be ignored.
_CRITICAL_FLAGS = 0xFFFF0000


class BinaryEncoder:
    """Encodes rows in the binary format. As in PostgreSQL, the header is sent with the first row: some
    clients rely on it."""

    def __init__(self, columns: Sequence[Column], *, begun: bool = False) -> None:
        self._columns = columns
        self._header_sent = begun

    def start(self) -> list[bytes]:
        return []

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        head = fixed_width(np.full(batch.num_rows, len(self._columns), ">i2"), 2)
        parts: list[pa.Array] = [head]
        for column, array in zip(self._columns, batch.columns, strict=True):
            values = wire.encode_binary(array, column.type)
            parts += [prefixes(values), values]
        rows = concatenated(parts)
        if not self._header_sent and batch.num_rows:
            self._header_sent = True
            first = pa.array([HEADER + rows[0].as_py()], pa.binary())
            rows = pa.concat_arrays([first, rows.slice(1)])
        return rows

    def end(self) -> list[bytes]:
        return [TRAILER if self._header_sent else HEADER + TRAILER]


class BinaryDecoder:
    """Decodes the binary format."""

    def __init__(self, values: CopyValues) -> None:
        self._values = values
        # The bytes from the first incomplete row on, in pieces as received; and the size at which to scan
        # again.
        self._pieces: list[bytes] = []
        self._size = 0
        self._scan_at = 1
        self._header_seen = False
        self._ended = False
        self._rows = 0

    def feed(self, data: bytes) -> list[pa.RecordBatch]:
        if self._ended:
            if data:
                raise BadCopyData("received copy data after EOF marker")
            return []
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._scan_at:
            return []
        block = b"".join(self._pieces)
        at = 0
        if not self._header_seen:
            at = self._header(block)
        batches: list[pa.RecordBatch] = []
        if self._header_seen:
            at = self._take(block, at, batches)
        rest = block[at:]
        if len(rest) > limits.MAX_COPY_ROW_BYTES:
            raise LimitExceeded(f"row of COPY data is longer than {limits.MAX_COPY_ROW_BYTES} bytes")
        self._pieces, self._size, self._scan_at = [rest], len(rest), 2 * len(rest) + 1
        if self._ended and rest:
            raise BadCopyData("received copy data after EOF marker")
        return batches

    def finish(self) -> list[pa.RecordBatch]:
        self._scan_at = 0
        batches = self.feed(b"") if not self._ended else []
        if not self._header_seen:
            raise BadCopyData("COPY file signature not recognized")
        if self._size:
            raise BadCopyData("unexpected EOF in COPY data", context=self._values.context(self._rows + 1))
        return batches

    def _header(self, block: bytes) -> int:
        """The offset after the header if there is one, else 0."""
        if block[: len(SIGNATURE)] != SIGNATURE[: len(block)]:
            raise BadCopyData("COPY file signature not recognized")
        if len(block) < len(HEADER):
            return 0
        flags, extension = struct.unpack_from("!Ii", block, len(SIGNATURE))
        if flags & _CRITICAL_FLAGS:
            raise BadCopyData("unrecognized critical flags in COPY file header")
        if not 0 <= extension <= limits.MAX_COPY_ROW_BYTES:
            raise BadCopyData("invalid COPY file header (wrong length)")
        if len(block) < len(HEADER) + extension:
            return 0
        self._header_seen = True
        return len(HEADER) + extension

    def _take(self, block: bytes, at: int, batches: list[pa.RecordBatch]) -> int:
        """Decode the whole rows from `at` on; return where the first unfinished one starts."""
        at, alike = self._alike(block, at)
        if alike is not None:
            batches.append(alike)
        starts, lengths, at = self._follow(block, at)
        if len(starts):
            batches.append(self._batch(np.frombuffer(block, np.uint8), starts, lengths))
        return at

    def _alike(self, block: bytes, at: int) -> tuple[int, pa.RecordBatch | None]:
        """The rows from `at` on that have the layout of the first, provided that it has no nulls."""
        starts, lengths, end = self._follow(block, at, at_most=1)
        if not len(starts) or bool((lengths < 0).any()):
            return at, None
        stride = end - at
        count = (len(block) - at) // stride
        if count < 2:
            return at, None
        width = len(self._values.columns)
        grid = np.frombuffer(block, np.uint8, count=count * stride, offset=at).reshape(count, stride)
        # All bytes other than values: the count of fields and the length prefixes.
        places = np.concatenate([[0, 1], *(starts[0, i] - at - 4 + np.arange(4) for i in range(width))])
        same = (grid[:, places] == grid[0, places]).all(axis=1)
        rows = count if bool(same.all()) else int(np.argmin(same))
        fields = [
            fixed_width(np.ascontiguousarray(grid[:rows, s : s + n]), n)
            if n
            else pa.array([b""] * rows, pa.binary())
            for s, n in zip((starts[0] - at).tolist(), lengths[0].tolist(), strict=True)
        ]
        batch = self._values.batch(fields, lambda row: self._rows + row + 1, binary=True)
        self._rows += rows
        return at + rows * stride, batch

    def _follow(
        self, block: bytes, at: int, at_most: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """Offsets and lengths (-1 null) of the fields of whole rows, and where the first unfinished row
        starts."""
        width = len(self._values.columns)
        starts: list[int] = []
        lengths: list[int] = []
        size = len(block)
        length_at = struct.Struct("!i").unpack_from
        while len(starts) != (-1 if at_most is None else at_most * width):
            if size - at < 2:
                break
            (count,) = struct.unpack_from("!h", block, at)
            if count == -1:
                if at_most is None:
                    self._ended = True
                    at += 2
                break
            if count != width:
                raise BadCopyData(
                    f"row field count is {count}, expected {width}",
                    context=self._values.context(self._rows + len(starts) // width + 1),
                )
            place = at + 2
            row_starts: list[int] = []
            row_lengths: list[int] = []
            for _ in range(width):
                if size - place < 4:
                    break
                (length,) = length_at(block, place)
                if length < -1:
                    raise BadCopyData(
                        "invalid field size",
                        context=self._values.context(self._rows + len(starts) // width + 1),
                    )
                place += 4
                row_starts.append(place)
                row_lengths.append(length)
                place += max(length, 0)
            if len(row_starts) < width or place > size:
                break
            starts += row_starts
            lengths += row_lengths
            at = place
        shape = (-1, width)
        return np.array(starts, np.int64).reshape(shape), np.array(lengths, np.int64).reshape(shape), at

    def _batch(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        fields: list[pa.Array] = []
        for i in range(starts.shape[1]):
            begin, size = starts[:, i], np.maximum(lengths[:, i], 0)
            bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
            # The source offset of each byte of the result.
            source = np.arange(int(bounds[-1])) + np.repeat(begin - bounds[:-1], size)
            null = lengths[:, i] < 0
            validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if bool(null.any()) else None
            buffers = [validity, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data[source])]
            fields.append(pa.Array.from_buffers(pa.binary(), len(begin), buffers))
        batch = self._values.batch(fields, lambda row: self._rows + row + 1, binary=True)
        self._rows += len(starts)
        return batch
