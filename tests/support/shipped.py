"""Readers of tests and benchmarks on their way to Spark's workers, which cannot import either.

The reader's own module says `cloudpickle.register_pickle_by_value(sys.modules[__name__])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle

from tidemill.sources.contract import SourceBatch, SourcePiece, SourceReader


class Shipped:
    """A reader as workers get it: by value."""

    def __init__(self, reader: SourceReader) -> None:
        self._bytes: bytes = cloudpickle.dumps(reader)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return cloudpickle.loads, (self._bytes,)

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        return cloudpickle.loads(self._bytes).read(piece)
