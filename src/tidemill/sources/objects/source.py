"""Source of objects: which are there, and how much of each.

Created by `sources.definition` from the catalog's definition. What is bound of an object is stored with its
stamp: an object that is not what it was is an error of the source. An object that is gone after it was read
leaves its rows.
"""

from __future__ import annotations

import itertools
import json
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tidemill.decode.contract import legible
from tidemill.errors import Internal
from tidemill.sources.contract import (
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.objects.compression import AUTO, NONE, compression_of
from tidemill.sources.objects.contents import is_whole
from tidemill.sources.objects.layout import GAUGE, object_layout
from tidemill.sources.objects.piece import ObjectPiece
from tidemill.sources.objects.reader import ObjectReader
from tidemill.sources.objects.store import Listing, ObjectStat, Stamp, Store, changed
from tidemill.sources.offsets import Offsets, PartitionKey

# How long one look at the upstream may take, and one that must see everything.
LOOK_SECONDS = 0.25
FIRST_SECONDS = 8.0
# The bytes of a record, about: what one binding covers follows from it.
RECORD_BYTES = 100
# Objects of one binding.
BOUND_OBJECTS = 10_000
# Bytes of the piece of a large object that a task reads.
PIECE_BYTES = 1 << 20


class ObjectSource(UpstreamSource):
    """Raises KeyError, TypeError or ValueError for an invalid definition."""

    gauge = GAUGE
    offsets_per_record = RECORD_BYTES

    def __init__(self, definition: Mapping[str, Any], store: Store, listing: Listing, name: str) -> None:
        """`name` is what is read, for messages."""
        specs = definition["outputs"]
        self.outputs = tuple(object_layout(spec).output for spec in specs)
        self._name = name
        self._store = store
        self._listing = listing
        self._compression = str(definition.get("compression") or AUTO)
        self._whole = any(is_whole(spec["value"]) for spec in specs)
        self._reader = ObjectReader(store, self._compression, json.dumps(specs, sort_keys=True))
        # How much of each object is there; what is bound, and its stamps.
        self._ends: dict[PartitionKey, int] = {}
        self._bound: dict[str, int] = {}
        self._stamps: dict[str, Stamp] = {}
        # Objects that are not what they were.
        self._wrong: dict[str, UpstreamError] = {}

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:
        self._bound = {str(key): end for key, end in bound.items()}
        self._stamps = {key: Stamp.of(text) for key, text in marks.items()}
        self._ends.update(bound.items())

    # -- what is there

    def frontier(self, now: int) -> Offsets:
        deadline = time.monotonic() + FIRST_SECONDS
        first = not self._listing.complete
        while True:
            for key, stat in self._listing.advance(LOOK_SECONDS).items():
                self._note(key, stat)
            if self._listing.complete or time.monotonic() > deadline:
                break
        for error in self._wrong.values():
            raise error
        if first and not self._listing.complete and not self._bound:
            slow = UpstreamError(
                f"{self._name} is still being listed",
                detail=f"{len(self._listing.found)} objects were found so far.",
                hint="It goes on by itself.",
            )
            slow.transient = True
            raise slow
        self.waits = self._waits()
        return Offsets(self._ends)

    def _note(self, key: str, stat: ObjectStat | None) -> None:
        self._wrong.pop(key, None)
        bound = self._bound.get(key, 0)
        if stat is None:
            # Its rows stay.
            if bound:
                self._ends[key] = bound
            else:
                self._ends.pop(key, None)
            return
        try:
            self._ends[key] = self._end(key, stat, bound, self._stamps.get(key))
        except UpstreamError as e:
            if e.transient:
                # It is looked at again.
                self._listing.found.pop(key, None)
                raise
            self._ends[key] = bound
            self._wrong[key] = e

    def _waits(self) -> str | None:
        return None if self._listing.found or self._bound else f"{self._name} has no objects yet"

    @abstractmethod
    def _end(self, key: str, stat: ObjectStat, bound: int, stamp: Stamp | None) -> int:
        """How much of the object is there, at least what is bound. Raises UpstreamError if it is not what it
        was."""

    @abstractmethod
    def _print(self, key: str, upper: int, stat: ObjectStat | None) -> str:
        """Identifies what is bound. Raises UpstreamError."""

    def stamps(self, lower: Offsets, upper: Offsets) -> dict[PartitionKey, str]:
        made: dict[PartitionKey, str] = {}
        for key in upper.increments(lower):
            name = str(key)
            stat, before = self._listing.found.get(name), self._stamps.get(name)
            if stat is None and before is None:
                raise _vanished(self._store.called, name)
            print_ = self._print(name, upper[key], stat)
            stamp = before if stat is None else Stamp(print_, stat.size, stat.modified)
            if stamp is None:
                raise Internal(f"{name} has no stamp")
            made[key] = stamp.to_text()
            self._stamps[name], self._bound[name] = stamp, upper[key]
        return made

    # -- ranges

    def reader(self) -> SourceReader:
        return self._reader

    def plan(
        self, lower: Offsets, upper: Offsets, ways: int, outputs: frozenset[int]
    ) -> tuple[SourceReader, list[SourcePiece]]:
        reader = ObjectReader(self._store, self._compression, self._reader.outputs, outputs)
        return reader, [self._described(piece) for piece in self.split(lower, upper, ways)]

    def _described(self, piece: SourcePiece) -> ObjectPiece:
        stamp = self._stamps.get(str(piece.partition))
        if stamp is None:
            raise Internal(f"object {piece.partition} was bound without a stamp")
        return ObjectPiece(piece.partition, piece.lower, piece.upper, stamp.size, stamp.modified, stamp.print)

    def _indivisible(self, key: PartitionKey) -> bool:
        return self._whole or compression_of(self._compression, str(key)) != NONE

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """One object after the other, by name. Those that are read as a whole are bound as a whole."""
        room = limits.records
        values = lower.as_dict()
        moving = sorted(upper.increments(lower).items(), key=lambda item: str(item[0]))
        for count, (key, more) in enumerate(moving):
            taken = more if self._indivisible(key) and (more <= room or not count) else min(more, room)
            if self._indivisible(key) and taken < more:
                break
            values[key] = values.get(key, 0) + taken
            room -= taken
            if room <= 0 or count + 1 == BOUND_OBJECTS:
                break
        return Offsets(values)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        pieces: list[SourcePiece] = []
        increments = upper.increments(lower)
        total = sum(increments.values())
        most = max(1, min(ways, total // PIECE_BYTES))
        for key, more in increments.items():
            share = 1 if self._indivisible(key) else max(1, min(more, round(most * more / total)))
            edges = [lower[key] + more * n // share for n in range(share + 1)]
            pieces += [SourcePiece(key, a, b) for a, b in itertools.pairwise(edges)]
        return pieces


def _vanished(called: str, key: str) -> UpstreamError:
    error = UpstreamError(
        f'{called} "{legible(key)}" is gone',
        detail="It was found, and is not there any more.",
        hint="It goes on by itself.",
    )
    error.transient = True
    return error


def check_same(called: str, key: str, stat: ObjectStat, bound: int) -> None:
    """Raises if there is less of it than is bound."""
    if stat.size < bound:
        raise changed(called, key, f"It had at least {bound} bytes; now it has {stat.size} bytes.")
