"""Kinesis source: which shards there are, how far they were received, and ranges of them.

Created by `sources.definition` from the catalog's definition, with the resolved connection. A shard is a
partition; the gauge counts its records from where reading began, and each binding is stored with the sequence
numbers of its last records. A range is definite because a shard never changes: so many records behind a known
one, the last of which has a known number. The children of a shard are bound later than its last records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.errors import Internal
from tidemill.sources.aws_role import frozen
from tidemill.sources.contract import (
    Lag,
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamSource,
)
from tidemill.sources.kafka.outputs import output_of
from tidemill.sources.kinesis.client import open_client
from tidemill.sources.kinesis.failures import NoStream, deleted, made_anew, vanished
from tidemill.sources.kinesis.layout import GAUGE
from tidemill.sources.kinesis.places import Place, Places
from tidemill.sources.kinesis.reader import KinesisPiece, KinesisReader, Start
from tidemill.sources.kinesis.receiver import LEAST_RETENTION_MS, Receiver
from tidemill.sources.kinesis.shards import ShardInfo, ancestors, is_behind, list_shards, retention_ms
from tidemill.sources.kinesis.spool import Spool
from tidemill.sources.offsets import Offsets, PartitionKey

# How long the first calls wait for the ends of the shards.
FIRST_SECONDS = 3.0
# The list of shards is asked for whenever something was received, and else so often.
LIST_SECONDS = 10.0
# How often the definition is told up to when everything was read. The least retention period is a day.
NOTE_MS = 3_600_000
READ_UNTIL = "read_until"

_NOT_THERE = "Create it, and it is read; or drop the source, if STREAM or the connection is wrong."


class KinesisSource(UpstreamSource):
    """Raises KeyError, TypeError or ValueError for an invalid definition."""

    gauge = GAUGE

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._options = frozen(definition["connection"])
        self._stream = str(definition["stream"])
        start = definition.get("start_ms")
        self._start = Start(None if start is None else int(start))
        specs = definition["outputs"]
        self.outputs = tuple(output_of(self._stream, spec) for spec in specs)
        self.partitions = frozenset(str(shard) for shard in definition.get("shards") or ())
        self._reader = KinesisReader(
            self._options, self._stream, self._start, json.dumps(specs, sort_keys=True)
        )
        # What was stored of it: everything that arrived before was bound.
        self._noted: int | None = definition.get(READ_UNTIL)
        # That was received, and up to when everything that arrived was; to be noted once it is bound.
        self._candidate: tuple[Offsets, int] | None = None
        self._bound: dict[str, Place] = {}
        # Shards that the upstream has removed, which were read to their ends.
        self._gone: set[str] = set()
        # What certainly is bound.
        self._sure = Offsets()
        self._places = Places()
        self._spool: Spool | None = None
        self._receiver: Receiver | None = None
        self._listed: dict[str, ShardInfo] = {}
        self._listed_at = 0.0
        # Who comes from whom, also of shards that are gone.
        self._parents: dict[str, tuple[str, ...]] = {}
        self._told = Offsets()
        self._waits_for_end = 0.0

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:
        self._bound = {str(shard): Place(count, marks.get(str(shard))) for shard, count in bound.items()}
        self._told = self._sure = bound

    def recall_places(self, places: Mapping[PartitionKey, Sequence[tuple[int, str]]]) -> None:
        self._places.recall(places)

    # -- where the upstream stands

    def frontier(self, now: int) -> Offsets:
        receiver = self._opened()
        if not self.complete:
            self._look_for_the_end(receiver)
        places = receiver.places()
        reached = Offsets({**self._told.as_dict(), **{s: p.count for s, p in places.items()}})
        if reached != self._told or time.monotonic() - self._listed_at > LIST_SECONDS or self._drained():
            # Afterwards: what was received is of this stream.
            self._list(receiver)
        try:
            receiver.check()
        except NoStream:
            # It was deleted, or a shard was removed: the list tells.
            self._list(receiver)
            raise
        shard = receiver.refused()
        self.waits = None if shard is None else f'reads of shard "{shard}" are refused: it is read too often'
        self._told = reached
        self._note(receiver, reached)
        return reached

    def _look_for_the_end(self, receiver: Receiver) -> None:
        """Whether everything that is there was received. The first call waits for it a little."""
        seconds, self._waits_for_end = self._waits_for_end, 0.0
        if receiver.wait_caught_up(seconds):
            # Their children may be new.
            self._list(receiver)
            self.complete = receiver.wait_caught_up(seconds)

    def _opened(self) -> Receiver:
        if self._receiver is not None:
            return self._receiver
        spool = self._spool or Spool()
        self._spool = spool
        receiver = Receiver(open_client(self._options), self._stream, self._start, spool)
        self.complete, self._waits_for_end = False, FIRST_SECONDS
        try:
            self._list(receiver)
        except BaseException:
            receiver.close()
            raise
        receiver.start()
        self._receiver = receiver
        return receiver

    def _list(self, receiver: Receiver) -> None:
        """Ask for the shards. Raises if they are not those that were read."""
        try:
            listed = list_shards(open_client(self._options), self._stream)
        except NoStream as e:
            if self._told == Offsets():
                e.hint = _NOT_THERE
                raise
            raise deleted(self._stream, str(self._told)) from e
        received = receiver.shards()
        for name, info in listed.items():
            state = received.get(name)
            place = self._bound.get(name, Place()) if state is None else state.place
            if place.after is not None and is_behind(info.starts, place.after):
                raise made_anew(self._stream, name, place.after, info.starts)
        for name in {*received, *self._bound} - listed.keys() - self._gone:
            self._check_gone(receiver, name, listed)
            self._gone.add(name)
        self._parents |= {name: info.parents for name, info in listed.items()}
        for name, info in listed.items():
            receiver.add(info, self._bound.get(name, Place()), self._noted)
        self._listed, self._listed_at = listed, time.monotonic()

    def _check_gone(self, receiver: Receiver, name: str, listed: Mapping[str, ShardInfo]) -> None:
        """A shard is not listed any more: it must have been read to its end."""
        state = receiver.shards().get(name)
        if state is not None and state.drained:
            receiver.forget(name)
            return
        if state is None:
            # It was removed while nobody read it. If its children were read, it was at its end before; if
            # not, what it had has expired, and was read if everything was read that arrived before.
            children = [child for child, info in listed.items() if name in info.parents]
            if any(self._bound.get(child, Place()).count for child in children):
                return
            until, moment = self._noted, int(time.time() * 1000)
            if until is not None and listed:
                if until >= moment - LEAST_RETENTION_MS:
                    return
                if until >= moment - retention_ms(open_client(self._options), self._stream):
                    return
        raise vanished(self._stream, name)

    def _drained(self) -> bool:
        """Whether a shard has ended whose children are not known."""
        receiver = self._receiver
        if receiver is None:
            return False
        known = {parent for info in self._listed.values() for parent in info.parents}
        return any(state.drained and name not in known for name, state in receiver.shards().items())

    def _note(self, receiver: Receiver, reached: Offsets) -> None:
        """Remember up to when everything was read, once that is bound."""
        if self._candidate is not None and self._candidate[0] <= self._sure:
            until = self._candidate[1]
            self._candidate = None
            if until - (self._noted or 0) >= NOTE_MS:
                self._noted = until
                self.learned = {**(self.learned or {}), READ_UNTIL: until}
        if self._candidate is None:
            states = receiver.shards()
            untils = [state.read_until for state in states.values() if not state.drained]
            known = [until for until in untils if until is not None]
            counts = Offsets({name: state.place.count for name, state in states.items()})
            if known and len(known) == len(untils) and counts <= reached:
                self._candidate = reached, min(known)

    def stamps(self, lower: Offsets, upper: Offsets) -> dict[PartitionKey, str]:
        found: dict[PartitionKey, str] = {}
        for partition in upper.increments(lower):
            shard, count = str(partition), upper[partition]
            sequence = None if self._spool is None else self._spool.sequence(shard, count)
            if sequence is None:
                raise Internal(f"record {count} of shard {shard} is to be bound and was not received")
            found[partition] = sequence
            self._places.note(shard, count, sequence)
            self._bound[shard] = Place(count, sequence)
        return found

    def durable(self, frontier: Offsets) -> None:
        if self._sure <= frontier:
            self._sure = frontier
        if self._spool is not None:
            self._spool.discard(frontier)
        self._places.forget(frontier)

    def lag(self, ingested: Offsets) -> Lag | None:
        receiver, spool = self._receiver, self._spool
        if receiver is None or spool is None:
            return None
        size, oldest, behind = 0, None, 0
        for name, state in receiver.shards().items():
            waiting, arrived = spool.behind(name, ingested[name])
            size += waiting
            behind = max(behind, state.behind_ms)
            if arrived is not None:
                oldest = arrived if oldest is None else min(oldest, arrived)
        if oldest is not None:
            behind = max(behind, int(time.time() * 1000) - oldest)
        # Of what was not received, the service tells the time alone.
        return Lag(size if self.complete else None, behind / 1000)

    # -- dividing

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """No shard together with one that it comes from: their records of a key are in order."""
        moving = {str(shard) for shard in upper.increments(lower)}
        held = {shard for shard in moving if ancestors(shard, self._parents) & moving}
        reached = {p: lower[p] if str(p) in held else end for p, end in upper.items()}
        return super().cut(lower, Offsets(reached), limits)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        """What is not in the spool is read from the stream, one record after the other."""
        pieces: list[SourcePiece] = []
        spooled: dict[PartitionKey, int] = {}
        for partition, more in upper.increments(lower).items():
            a, b = lower[partition], upper[partition]
            if self._spool is not None and self._spool.files(str(partition), a, b) is not None:
                spooled[partition] = more
            else:
                pieces.append(self._described(str(partition), a, b))
        whole = Offsets({p: lower[p] for p in spooled})
        for piece in super().split(whole, whole.plus(spooled), ways):
            pieces.append(self._described(str(piece.partition), piece.lower, piece.upper))
        return pieces

    def _described(self, shard: str, lower: int, upper: int) -> KinesisPiece:
        files = None if self._spool is None else self._spool.files(shard, lower, upper)
        paths = () if files is None else tuple((file.path, file.first) for file in files)
        last = self._places.at(shard, upper)
        return KinesisPiece(shard, lower, upper, self._places.before(shard, lower), last, paths)

    # -- reading

    def reader(self) -> SourceReader:
        return self._reader

    def plan(
        self, lower: Offsets, upper: Offsets, ways: int, outputs: frozenset[int]
    ) -> tuple[SourceReader, list[SourcePiece]]:
        reader = KinesisReader(self._options, self._stream, self._start, self._reader.outputs, outputs)
        return reader, self.split(lower, upper, ways)

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        if self._spool is not None:
            self._spool.close()
        self._receiver = self._spool = None
