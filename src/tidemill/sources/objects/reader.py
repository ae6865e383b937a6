"""Reader of objects: the half of the source that is sent to the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

from tidemill.sources.contract import SourceBatch, SourcePiece
from tidemill.sources.objects.compression import compression_of
from tidemill.sources.objects.contents import Contents, contents_of
from tidemill.sources.objects.lines import Broken
from tidemill.sources.objects.piece import ObjectPiece, expect_key
from tidemill.sources.objects.rows import ObjectRows
from tidemill.sources.objects.store import Store

# Sources whose decoders a worker keeps open.
MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """`outputs` is the definition's list, as JSON text; only those in `wanted` are read (None: all)."""

    store: Store
    compression: str
    outputs: str = field(repr=False)
    wanted: frozenset[int] | None = None

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """Each output is read on its own. The records are counted with the first."""
        key = expect_key(piece)
        of = self._known(key, piece)
        compression = compression_of(self.compression, key)
        stream = partial(self.store.stream, key, of.print)
        counts = True
        for number, (rows, contents) in enumerate(_opened(self.outputs, self.store.called)):
            if self.wanted is not None and number not in self.wanted:
                continue
            last = of.lower
            for found in contents.read(of, stream, compression):
                records = 0 if isinstance(found, Broken) else len(found.offsets)
                size = 0
                if records and not isinstance(found, Broken):
                    size, last = max(0, int(found.offsets[-1]) - last), int(found.offsets[-1])
                for batch in rows.make(found, of):
                    if counts:
                        yield SourceBatch(number, batch, batch.num_rows, size)
                    else:
                        yield SourceBatch(number, batch, 0, 0)
                    size = 0
            counts = False

    def _known(self, key: str, piece: SourcePiece) -> ObjectPiece:
        if isinstance(piece, ObjectPiece):
            return piece
        stat = self.store.stat(key)
        return ObjectPiece(key, piece.lower, piece.upper, stat.size, stat.modified, stat.tag)


@lru_cache(maxsize=MAX_OPENED)
def _opened(outputs: str, called: str) -> tuple[tuple[ObjectRows, Contents], ...]:
    return tuple((ObjectRows(spec, called), contents_of(spec["value"])) for spec in json.loads(outputs))
