"""Contents of an object: the messages of a range, by the format of an output.

Called by `reader` in the tasks. A message belongs to the range in which it begins. Contents that can only be
read from the beginning on (compressed ones, and one value for the whole object) belong to its first byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import MAX_MESSAGE_BYTES, shortened
from tidemill.decode.csv import CsvMessageDecoder
from tidemill.sources.objects.compression import NONE, Corrupt, expanded
from tidemill.sources.objects.lines import Broken, Lines, Stream, ranged, streamed
from tidemill.sources.objects.piece import ObjectPiece
from tidemill.sources.objects.tables import AVRO, PARQUET, AvroContents, Columns, ParquetContents
from tidemill.types.kernels import pc

_BOM = b"\xef\xbb\xbf"


class Contents(Protocol):
    # One value for the whole object: it is bound as a whole.
    whole: bool
    # Complete lines can be read while the object grows.
    tailed: bool

    def read(
        self, piece: ObjectPiece, stream: Stream, compression: str
    ) -> Iterator[Lines | Columns | Broken]:
        """What begins in the piece. Raises UpstreamError."""
        ...


def contents_of(form: Mapping[str, Any]) -> Contents:
    """By the format of an output (`layout`)."""
    return _CONTENTS[form["format"]](form)


class LineContents:
    """A message per line. Empty lines are messages of text only. The first line of CSV with a header names
    the columns."""

    whole = False
    tailed = True

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._keeps_empty = form["format"] in ("text", "regex")
        self._header = CsvHeader(form) if form.get("header") else None

    def read(self, piece: ObjectPiece, stream: Stream, compression: str) -> Iterator[Lines | Broken]:
        if compression == NONE:
            found = ranged(stream, piece.lower, piece.upper, piece.size)
        elif piece.lower == 0:
            found = _until_corrupt(stream, piece.size, compression)
        else:
            return
        first = piece.lower == 0
        for lines in found:
            if isinstance(lines, Lines):
                if first:
                    lines, wrong = self._begin(lines)
                    if wrong is not None:
                        yield wrong
                if not self._keeps_empty:
                    lines = _without_empty(lines)
                if not len(lines.offsets):
                    first = False
                    continue
            yield lines
            first = False

    def _begin(self, lines: Lines) -> tuple[Lines, Broken | None]:
        """The first line without a byte order mark, and without the header."""
        line: bytes = lines.values[0].as_py()
        bare = line.removeprefix(_BOM)
        if self._header is not None:
            return lines.slice(1, len(lines.offsets) - 1), self._header.check(bare)
        if bare is line:
            return lines, None
        values = pa.concat_arrays([pa.array([bare], pa.binary()), lines.values.slice(1)])
        return Lines(values, lines.offsets), None


class CsvHeader:
    """The header that each object has."""

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._names: list[str] = form["columns"]
        self._decoder = CsvMessageDecoder(self._names, form["delimiter"])

    def check(self, line: bytes) -> Broken | None:
        decoded = self._decoder.decode(pa.array([line], pa.binary()))
        found = None if decoded.errors is not None else [c[0].as_py() for c in decoded.columns]
        if found == self._names:
            return None
        shown = shortened(line.decode("utf-8", "replace"))
        return Broken(0, f"the header is {shown}; expected are the columns {', '.join(self._names)}")


class WholeContents:
    """The object is one message."""

    whole = True
    tailed = False

    def __init__(self, form: Mapping[str, Any]) -> None:
        pass

    def read(self, piece: ObjectPiece, stream: Stream, compression: str) -> Iterator[Lines | Broken]:
        if piece.lower:
            return
        data = bytearray()
        try:
            for chunk in expanded(partial(stream, 0, piece.size), compression):
                data += chunk
                if len(data) > MAX_MESSAGE_BYTES:
                    yield Broken(0, f"it has more than {MAX_MESSAGE_BYTES} bytes")
                    return
        except Corrupt as e:
            yield Broken(0, str(e))
            return
        yield Lines(pa.array([bytes(data)], pa.binary()), np.zeros(1, np.int64))


def _until_corrupt(stream: Stream, size: int, compression: str) -> Iterator[Lines | Broken]:
    """The complete lines up to where the contents break off, and why they do."""
    corrupt: list[Corrupt] = []
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        try:
            for data in expanded(partial(stream, 0, size), compression):
                read += len(data)
                yield data
        except Corrupt as e:
            corrupt.append(e)

    held: Lines | Broken | None = None
    for found in streamed(chunks()):
        if held is not None:
            yield held
        held = found
    if not corrupt:
        if held is not None:
            yield held
        return
    if isinstance(held, Lines):
        held = _complete(held, read)
    if held is not None:
        yield held
    yield Broken(read, str(corrupt[0]))


def _complete(lines: Lines, read: int) -> Lines | None:
    """Without a last line that has no end."""
    last = len(lines.offsets) - 1
    if int(lines.offsets[last]) + len(lines.values[last].as_py()) < read:
        return lines
    return lines.slice(0, last) if last else None


def _without_empty(lines: Lines) -> Lines:
    sizes = pc.binary_length(lines.values).to_numpy()
    if bool((sizes > 0).all()):
        return lines
    chosen = sizes > 0
    return Lines(lines.values.filter(pa.array(chosen)), lines.offsets[chosen])


_CONTENTS: dict[str, Callable[[Mapping[str, Any]], Contents]] = {
    **dict.fromkeys(("text", "json", "csv", "regex"), LineContents),
    "bytes": WholeContents,
    PARQUET: ParquetContents,
    AVRO: AvroContents,
}


def is_whole(form: Mapping[str, Any]) -> bool:
    """Whether an object is read, and bound, as a whole."""
    return contents_of(form).whole


def is_tailed(form: Mapping[str, Any]) -> bool:
    """Whether an object is read while it grows."""
    return contents_of(form).tailed
