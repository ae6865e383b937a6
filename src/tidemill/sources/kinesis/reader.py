"""Reader of a Kinesis source: the half of the source that is sent to the tasks.

A range is read from the spool of the server while it is there, else from the stream: from a place that is
known, as many records as the range has, up to the number with which it must end. So what is read again is the
same, or an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.sources.contract import MAX_BATCH_ROWS, SourceBatch, SourcePiece
from tidemill.sources.kafka.messages import RowMaker, TopicMessages
from tidemill.sources.kafka.outputs import Opened, open_outputs
from tidemill.sources.kinesis.answers import ARRIVED, DATA, KEY, MAX_RECORDS, SEQUENCE, last_sequence, parse
from tidemill.sources.kinesis.client import KinesisClient, Options, open_client
from tidemill.sources.kinesis.failures import Expired, NoStream, Throttled, not_as_bound
from tidemill.sources.kinesis.places import START, Place
from tidemill.sources.kinesis.spool import read_file
from tidemill.types.kernels import pc

# Bytes of a batch, about.
MAX_BATCH_BYTES = 8 << 20
# Answers at the end of a shard that have nothing, before records count as gone.
EMPTY_ANSWERS = 3
# Between two reads of a shard: there are five per second, for all of its readers.
PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.21, 4.0
# Reads that are refused as too many, before the range is given up for now.
MAX_REFUSALS = 20
_MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class Start:
    """Where a shard begins that nothing was read of: at the oldest record, or the first that arrived at
    `ms` or later."""

    ms: int | None = None

    def iterator(self) -> dict[str, Any]:
        if self.ms is None:
            return {"ShardIteratorType": "TRIM_HORIZON"}
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": self.ms / 1000}


@dataclass(frozen=True, slots=True)
class KinesisPiece(SourcePiece):
    """`from_` is a known place before the range; `last` the number of its last record, if that is known;
    `files` those of the spool that have it, with the number of their first record."""

    from_: Place = START
    last: str | None = None
    files: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KinesisReader:
    """`outputs` is the definition's list, as JSON text; only those in `wanted` are read (None: all)."""

    options: Options = field(repr=False)
    stream: str
    start: Start
    outputs: str = field(repr=False)
    wanted: frozenset[int] | None = None

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """The rows of every output, lot by lot. The records of a lot and their bytes are counted only once,
        with the first batch."""
        shard = piece.partition
        if not isinstance(shard, str):
            raise Internal(f"there is no shard {shard!r}")
        of = piece if isinstance(piece, KinesisPiece) else KinesisPiece(shard, piece.lower, piece.upper)
        opened = [
            (number, output)
            for number, output in enumerate(_opened(self.stream, self.outputs))
            if self.wanted is None or number in self.wanted
        ]
        if not opened:
            return
        lower = of.lower
        for records in _gathered(self._records(shard, of)):
            if records is None:
                number, output = opened[0]
                yield SourceBatch(number, output.none(), 0, 0)
                continue
            messages = self._messages(shard, lower, records)
            count, size = len(messages), records.nbytes
            lower += count
            made: dict[RowMaker, pa.RecordBatch] = {}
            for number, output in opened:
                keyed = output.layout.envelope.keyed
                rows = output.make(_with_tombstones(messages) if keyed else messages, made)
                if rows.num_rows:
                    yield SourceBatch(number, rows, count, size)
                    count = size = 0

    def _messages(self, shard: str, lower: int, records: pa.RecordBatch) -> TopicMessages:
        return TopicMessages(
            shard,
            records.column(KEY),
            records.column(DATA),
            np.arange(lower, lower + records.num_rows),
            records.column(ARRIVED).to_numpy(),
            None,
            self.stream,
            records.column(SEQUENCE),
        )

    def _records(self, shard: str, of: KinesisPiece) -> Iterator[pa.RecordBatch | None]:
        """Exactly the records of the piece; None while there is nothing."""
        if of.files and all(Path(path).exists() for path, _ in of.files):
            for path, first in of.files:
                records = read_file(path)
                begin, end = max(of.lower, first), min(of.upper, first + records.num_rows)
                yield records.slice(begin - first, end - begin)
            return
        yield from read_again(open_client(self.options), self.stream, shard, self.start, of)


def read_again(
    client: KinesisClient, stream: str, shard: str, start: Start, of: KinesisPiece
) -> Iterator[pa.RecordBatch | None]:
    """The records of the piece from the stream itself. Raises Forgotten if they are not there as they
    were."""
    at, after = of.from_.count, of.from_.after
    iterator: str | None = None
    empty, refusals, pause = 0, 0, PAUSE_SECONDS
    while at < of.upper:
        try:
            if iterator is None:
                iterator = _iterator(client, stream, shard, start, after)
            limit = min(MAX_RECORDS, of.upper - at)
            raw = client.raw("GetRecords", stream, {"ShardIterator": iterator, "Limit": limit})
        except Throttled:
            refusals += 1
            if refusals > MAX_REFUSALS:
                raise
            yield None
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
            continue
        except Expired:
            if iterator is None:
                raise
            iterator = None
            refusals += 1
            if refusals > MAX_REFUSALS:
                raise
            continue
        pause = PAUSE_SECONDS
        answer = parse(raw)
        iterator, count = answer.next, answer.records.num_rows
        if count:
            empty = 0
            after = last_sequence(answer.records)
            skipped = min(count, max(0, of.lower - at))
            at += count
            if skipped < count:
                yield answer.records.slice(skipped)
        elif not answer.behind_ms:
            empty += 1
        if at < of.upper and (iterator is None or empty >= EMPTY_ANSWERS):
            raise not_as_bound(
                stream,
                shard,
                f"There should be {of.upper - of.from_.count} records behind {_told(of.from_)}; there are "
                f"{at - of.from_.count}.",
            )
        if at < of.upper and not count:
            yield None
            time.sleep(PAUSE_SECONDS)
    if of.last is not None and after != of.last:
        raise not_as_bound(
            stream,
            shard,
            f"The record number {of.upper - of.from_.count} behind {_told(of.from_)} had the sequence number "
            f"{of.last}; now it has {after}.",
        )


def _iterator(client: KinesisClient, stream: str, shard: str, start: Start, after: str | None) -> str:
    try:
        return iterator_at(client, stream, shard, start, after, "AFTER_SEQUENCE_NUMBER")
    except (NoStream, Expired) as e:
        if after is None and isinstance(e, NoStream):
            raise
        raise not_as_bound(
            stream, shard, f"Sequence number {after} is refused. {e.detail or e.primary}".rstrip(".") + "."
        ) from e


def iterator_at(
    client: KinesisClient, stream: str, shard: str, start: Start, number: str | None, kind: str
) -> str:
    """An iterator at a sequence number (`kind`), or at the start. Raises UpstreamError."""
    place = start.iterator()
    if number is not None:
        place = {"ShardIteratorType": kind, "StartingSequenceNumber": number}
    request = {"StreamName": stream, "ShardId": shard, **place}
    return str(client.patient("GetShardIterator", stream, request)["ShardIterator"])


def _told(place: Place) -> str:
    return "the start" if place.after is None else f"sequence number {place.after}"


def _gathered(found: Iterator[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """In lots that are worth decoding."""
    lot: list[pa.RecordBatch] = []
    rows = size = 0
    for records in found:
        if records is None:
            yield None
            continue
        if lot and (rows + records.num_rows > MAX_BATCH_ROWS or size + records.nbytes > MAX_BATCH_BYTES):
            yield _joined(lot)
            lot, rows, size = [], 0, 0
        lot.append(records)
        rows, size = rows + records.num_rows, size + records.nbytes
    if lot:
        yield _joined(lot)


def _joined(lot: list[pa.RecordBatch]) -> pa.RecordBatch:
    return lot[0] if len(lot) == 1 else pa.concat_batches(lot)


def _with_tombstones(messages: TopicMessages) -> TopicMessages:
    """A record without data deletes its key: Kinesis has no null."""
    empty = pc.equal(pc.binary_length(messages.values), 0)
    values = pc.if_else(empty, pa.scalar(None, pa.binary()), messages.values)
    return replace(messages, values=values)


@lru_cache(maxsize=_MAX_OPENED)
def _opened(stream: str, outputs: str) -> tuple[Opened, ...]:
    found = open_outputs(stream, json.loads(outputs))
    return tuple(output for output in found if isinstance(output, Opened))
