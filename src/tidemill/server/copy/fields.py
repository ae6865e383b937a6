"""Field splitting for text and csv: from delimiter positions in a block to one byte column per table column.

The format decoders first find which bytes are delimiters and which are markup. Promise: no Python code per
row or field.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


_CR, _LF = 13, 10


def line_ends(data: Bytes, counts: Mask, eol: bytes) -> tuple[Mask, int]:
    """Which bytes end a row (the last byte of each line end), and the offset of the first line end of another
    kind; the length of the data if there is none. `counts` says which bytes are not escaped or quoted."""
    lf = (data == _LF) & counts
    cr = (data == _CR) & counts
    if eol == b"\n":
        ends, stray = lf, cr
    elif eol == b"\r":
        ends, stray = cr, lf
    else:
        # Each LF has its CR and each CR its LF.
        ends = lf.copy()
        ends[:1] = False
        ends[1:] &= cr[:-1]
        stray = lf ^ ends
        lone = cr.copy()
        lone[:-1] &= ~lf[1:]
        stray |= lone
    return ends, int(np.argmax(stray)) if bool(stray.any()) else len(data)


def line_start(row_end: Mask, place: int) -> int:
    """The start of the line that contains `place`."""
    before = np.flatnonzero(row_end[:place])
    return int(before[-1]) + 1 if len(before) else 0


@dataclass(slots=True)
class Cells:
    """The fields of whole rows, row after row. `ends` are the offsets of the delimiters and line ends after
    them. `rows` is the number of rows before the first with the wrong number of fields."""

    ends: Places
    rows: int
    # The number of fields of the first row with the wrong number; None if all are right.
    wrong: int | None


def cells(ends: Places, is_row_end: Mask, width: int) -> Cells:
    """Check the number of fields of each row. `is_row_end` says which of `ends` end a row."""
    if len(ends) % width == 0:
        # The usual case, without a check of each row.
        last = is_row_end[width - 1 :: width]
        if bool(last.all()) and int(is_row_end.sum()) == len(last):
            return Cells(ends, len(last), None)
    row_ends = np.flatnonzero(is_row_end)
    counts = np.diff(row_ends, prepend=-1)
    bad = int(np.argmax(counts != width))
    return Cells(ends[: bad * width], bad, int(counts[bad]))


def split(data: Bytes, cells: Cells, keep: Mask | None, null: Mask | None, width: int) -> list[pa.Array]:
    """Split the fields into `width` byte columns. `keep` says which bytes are content (None: all but the
    ends); `null` which fields are null."""
    ends = cells.ends
    if not len(ends):
        return [pa.array([], pa.binary())] * width
    size = int(ends[-1]) + 1
    if keep is None:
        keep = np.ones(size, np.bool_)
        keep[ends] = False
        offsets = ends - np.arange(len(ends))
    else:
        keep = keep[:size]
        offsets = np.cumsum(keep, dtype=np.int64)[ends]
    bounds = np.concatenate([np.zeros(1, np.int64), offsets]).astype(np.int32)
    content = data[:size][keep]
    validity = None
    if null is not None and bool(null.any()):
        validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    fields = pa.Array.from_buffers(
        pa.binary(), len(ends), [validity, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    if width == 1:
        return [fields]
    every = np.arange(0, len(ends), width, dtype=np.int64)
    return [fields.take(pa.array(every + i)) for i in range(width)]


def matches(data: Bytes, starts: Places, lengths: Places, wanted: bytes) -> Mask:
    """Which of the spans contain exactly `wanted`."""
    found = lengths == len(wanted)
    for i, byte in enumerate(wanted):
        if not bool(found.any()):
            break
        # Spans of another length may extend beyond the end; the bytes read there are ignored.
        found &= data[np.minimum(starts + i, len(data) - 1)] == byte
    return found


def spans_of(ends: Places, row_end: Mask, eol: bytes) -> tuple[Places, Places]:
    """The starts and lengths of the raw fields, from their ends."""
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    lengths = ends - starts
    if eol == b"\r\n":
        lengths -= row_end[ends]
    return starts, lengths
