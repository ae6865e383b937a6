"""Reader of a folder source, the half that is sent to the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from tidemill.cdcv2.wording import sentence, words
from tidemill.decode.contract import legible
from tidemill.errors import Internal, InvalidValue
from tidemill.sources.contract import (
    MAX_BATCH_ROWS,
    Forgotten,
    SourceBatch,
    SourcePiece,
    Stated,
    UpstreamError,
)
from tidemill.sources.files.form import MAGIC, Broken, Found, avro_header, lines, records
from tidemill.sources.stream_rows import DECODE_ERROR, StreamRows

# How the position of a message is described (`contract.Stream`).
WORDS = ("file ", ", byte ")
# What offsets count.
KIB = 1024
# Messages that are decoded at once: by their bytes, or (small ones) by their number.
BATCH_BYTES = 8 << 20
# Formats whose decoders a worker keeps open.
MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class FilesReader:
    """`folder` with all links followed; `output` is the definition's, as JSON text."""

    folder: str
    output: str = field(repr=False)

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        if not isinstance(piece.partition, str):
            raise Internal(f"a folder has no file {piece.partition!r}")
        path = Path(self.folder) / piece.partition
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                if -(-size // KIB) < piece.upper:
                    raise _gone(piece, f"It has {size} bytes now.")
                yield from self._batches(file, piece)
        except FileNotFoundError:
            raise _gone(piece, "It is not there any more.") from None
        except OSError as e:
            raise unreadable(piece.partition, e) from e

    def _batches(self, file: BinaryIO, piece: SourcePiece) -> Iterator[SourceBatch]:
        """The kilobytes are counted with the first batch."""
        records, size = piece.records, 0
        name = legible(cast("str", piece.partition))
        held: list[tuple[int, bytes]] = []
        found, writer = _messages(file, piece, self.output)
        rows = _rows(self.output, writer)
        for at, message in chain(found, [(0, None)]):
            if isinstance(message, bytes):
                held.append((at, message))
                size += len(message)
            full = size >= BATCH_BYTES or len(held) >= MAX_BATCH_ROWS
            if held and (full or not isinstance(message, bytes)):
                for batch in rows.make(name, [a for a, _ in held], [m for _, m in held], size):
                    yield replace(batch, records=records)
                    records = 0
                held, size = [], 0
            if isinstance(message, Broken):
                text = f"{DECODE_ERROR}{message.why}\nIn {WORDS[0]}{name}{WORDS[1]}{at}."
                yield replace(rows.none(), stated=(Stated(at, text),))


def _messages(file: BinaryIO, piece: SourcePiece, output: str) -> tuple[Iterator[Found], str | None]:
    """Those that begin in the piece, and the schema that they were written with, if they have one."""
    lower, upper = piece.lower * KIB, piece.upper * KIB
    file.seek(0)
    is_avro = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    if json.loads(output)["value"]["format"] == "json":
        if not is_avro:
            return lines(file, lower, upper), None
        why = "an Avro file among those of JSON"
    else:
        try:
            header = avro_header(file)
            return records(file, header, lower, upper), header.schema
        except InvalidValue as e:
            why = words(e)
    # Only the reader of the beginning reports it.
    return iter([(0, Broken(why))] if lower == 0 else []), None


@lru_cache(maxsize=MAX_OPENED)
def _rows(output: str, writer: str | None) -> StreamRows:
    """What makes rows of messages that were written with a schema (None: ours)."""
    spec = json.loads(output)
    return StreamRows(0, spec, WORDS, writer)


def _gone(piece: SourcePiece, found: str) -> Forgotten:
    return Forgotten(
        f'file "{legible(str(piece.partition))}" is not what it was when it was bound',
        detail=f"Its kilobytes from {piece.lower} up to {piece.upper} are to be read. {found}",
        hint="Files that a source reads must stay as they are: put it back, or drop the source and create it "
        "again.",
    )


def unreadable(name: str, error: OSError) -> UpstreamError:
    failed = UpstreamError(f'file "{legible(name)}" cannot be read', detail=sentence(error))
    failed.transient = True
    return failed
