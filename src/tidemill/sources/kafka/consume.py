"""Consumer of an exact range of a partition, inside a task.

The module keeps one client per connection in the worker, so the next tick does not connect again. Between
ranges the client has no assignment. An assigned client polls the broker continuously and prefetches records
that another worker will read; on two cores that cost ten times as much as the range. A new assignment takes
one to two milliseconds.

A range is complete when its last record, a record at or after its upper end, or the partition's end at or
after its upper end has arrived. The last offsets of a range may have no visible record: transaction markers,
aborted records, compacted records.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from tidemill.sources.contract import MAX_BATCH_ROWS, Forgotten, UpstreamError
from tidemill.sources.kafka.client import Complaint, Unreachable, configuration, explain, refused
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.sources.kafka.native import PARTITION_EOF, Consumer, NativeError, Taken

# Limit of a batch with large messages. What the client has ahead may exceed it: the prefetch size, and one
# message, because librdkafka looks at that size before it fetches.
MAX_BATCH_BYTES = 8 << 20
# Prefetch size of a client: two to three fetches are in flight while one is decoded. More is wasted when the
# range ends, and each client may hold as much.
_AHEAD_KBYTES = 16 << 10
_AHEAD_MESSAGES = 10_000
_FETCH_BYTES = 1 << 20
# The largest accepted response of a broker, and hence the largest message.
MAX_MESSAGE_BYTES = 256 << 20

# Idle clients that are kept; the least recently used are closed first. Sources mostly share a few
# connections. Each client has some threads.
MAX_KEPT = 8

# Duration of one wait, and the silence after which STILL_WAITING is returned, so that the task's deadline is
# checked.
_WAIT_MS = 100
BEAT_SECONDS = 0.5
# A range is given up when its records exist but do not arrive for this long; the tick retries.
STALL_SECONDS = 10.0
_LOOK_UP_MS = 500
_REQUEST_MS = 5000

_SETTINGS: dict[str, str | int] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # A range that does not exist is an error, never another range.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    # A fetch that finds nothing returns at once. A client fetches only while records exist, and the next
    # range must not wait for the response to the previous fetch.
    "fetch.wait.max.ms": 1,
    "fetch.queue.backoff.ms": 1,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": _AHEAD_MESSAGES,
    "queued.max.messages.kbytes": _AHEAD_KBYTES,
    "max.partition.fetch.bytes": _FETCH_BYTES,
    "receive.message.max.bytes": MAX_MESSAGE_BYTES,
}

_GONE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
_NO_TOPIC = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)
_NOT_YET = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.LEADER_NOT_AVAILABLE,
    )
)
# librdkafka requires a group name. We do not join the group, so its authorization does not matter.
_OF_THE_GROUP = frozenset((KafkaError.GROUP_AUTHORIZATION_FAILED,))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Fields to read in addition to value and offset; each has a cost. `writer` is the name of a header that
    says who wrote a record, which is nearly always who wrote the record before: it is read for a whole take
    only if its first and its last message differ in it."""

    timestamps: bool = False
    headers: bool = False
    keys: bool = True
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class RecordBatchBuffer:
    """Messages, and the size of their keys and values; `messages` is None if none have arrived yet."""

    messages: TopicMessages | None
    bytes: int = 0


STILL_WAITING = RecordBatchBuffer(None)


def settings_of(connection: Mapping[str, Any], group_prefix: str | None) -> dict[str, str | int]:
    """The settings of a consumer."""
    return {**configuration(connection), **_SETTINGS, "group.id": f"{group_prefix or ''}tidemill"}


@dataclass(frozen=True, slots=True)
class Range:
    """The records [lower, upper) of a partition. `from_start`: no earlier record was ever requested, so
    reading begins with the first record of the partition, even if that is later."""

    topic: str
    partition: int
    lower: int
    upper: int
    from_start: bool = False


def read_range(settings: Mapping[str, str | int], of: Range, wanted: Wanted) -> Iterator[RecordBatchBuffer]:
    """Exactly the records of the range, in order, in lots of the size of a batch. Yields `STILL_WAITING` if
    none arrived for a while. Raises UpstreamError."""
    if of.lower >= of.upper:
        return
    brokers = str(settings["bootstrap.servers"])
    with _kept(settings) as consumer:
        try:
            if not consumer.knows(of.topic, of.partition):
                yield from _found(consumer, of)
            if of.from_start:
                first, _ = consumer.watermarks(of.topic, of.partition, _REQUEST_MS)
                of = replace(of, lower=max(of.lower, min(first, of.upper)))
            consumer.start(of.topic, of.partition, of.lower)
            yield from _range(consumer, of, wanted, brokers)
        except NativeError as e:
            raise _failure(consumer, of, e, brokers) from e


def _found(consumer: Consumer, of: Range) -> Iterator[RecordBatchBuffer]:
    """Wait until the client knows the partition's leader."""
    began = time.monotonic()
    while True:
        try:
            consumer.look_up(of.topic, of.partition, _LOOK_UP_MS)
            return
        except NativeError as e:
            consumer.serve()
            late = time.monotonic() - began > STALL_SECONDS
            if e.code not in _NOT_YET or late or refused(consumer.complaints.latest()):
                raise
            yield STILL_WAITING


def _still_there(consumer: Consumer, of: Range) -> None:
    """Check that the topic exists: librdkafka waits for a deleted one."""
    try:
        consumer.look_up(of.topic, of.partition, _LOOK_UP_MS)
    except NativeError as e:
        if e.code not in _NOT_YET:
            raise


def _range(consumer: Consumer, of: Range, wanted: Wanted, brokers: str) -> Iterator[RecordBatchBuffer]:
    gathered = _Gathered(of, wanted)
    at = of.lower
    heard = told = time.monotonic()
    while at < of.upper:
        taken = consumer.take(min(MAX_BATCH_ROWS - gathered.rows, of.upper - at), _WAIT_MS)
        now = time.monotonic()
        if taken is None:
            if refused(consumer.complaints.latest()) or now - heard > STALL_SECONDS:
                raise _silence(consumer, of, at, brokers)
            if now - told > BEAT_SECONDS:
                told = now
                yield STILL_WAITING
                _still_there(consumer, of)
            continue
        try:
            reached = _take_in(taken, gathered, of, at)
        finally:
            taken.release()
        if reached > at:
            at, heard = reached, now
        if gathered.full or (at >= of.upper and gathered.rows):
            yield gathered.out()
            heard = told = time.monotonic()


def _take_in(taken: Taken, gathered: _Gathered, of: Range, at: int) -> int:
    """Add the messages of the range. Returns the offset up to which the range has been read."""
    offsets = taken.offsets
    for row in np.flatnonzero(taken.codes).tolist():
        code = int(taken.codes[row])
        if code != PARTITION_EOF and code not in _OF_THE_GROUP:
            raise taken.error(row)
    end = int(offsets[taken.codes == PARTITION_EOF].max(initial=-1))
    mine = (taken.codes == 0) & (taken.partitions == of.partition) & (offsets >= at)
    rows = np.flatnonzero(mine & (offsets < of.upper))
    if len(rows):
        gathered.add(taken, rows)
        at = int(offsets[rows[-1]]) + 1
    if end >= of.upper or bool((offsets[mine] >= of.upper).any()):
        return of.upper
    return at


class _Gathered:
    """Messages of several takes that form one lot."""

    def __init__(self, of: Range, wanted: Wanted) -> None:
        self._of = of
        self._wanted = wanted
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._bytes = 0
        self._keys: list[pa.Array] = []
        self._values: list[pa.Array] = []
        self._offsets: list[np.ndarray] = []
        self._timestamps: list[np.ndarray] = []
        self._headers: list[pa.Array] = []
        self._writers: list[pa.Array] = []

    @property
    def full(self) -> bool:
        return self.rows >= MAX_BATCH_ROWS or self._bytes >= MAX_BATCH_BYTES

    def add(self, taken: Taken, rows: np.ndarray) -> None:
        self.rows += len(rows)
        self._bytes += int(taken.sizes[rows].sum())
        if self._wanted.keys:
            self._keys.append(taken.keys(rows))
        self._values.append(taken.values(rows))
        self._offsets.append(taken.offsets[rows])
        if self._wanted.timestamps:
            self._timestamps.append(taken.timestamps(rows))
        if self._wanted.headers:
            self._headers.append(taken.headers(rows))
        if self._wanted.writer is not None:
            self._writers.append(taken.writers(rows, self._wanted.writer.encode()))

    def out(self) -> RecordBatchBuffer:
        """Return the gathered data and clear it."""
        messages = TopicMessages(
            self._of.partition,
            pa.concat_arrays(self._keys) if self._wanted.keys else pa.nulls(self.rows, pa.binary()),
            pa.concat_arrays(self._values),
            np.concatenate(self._offsets),
            np.concatenate(self._timestamps) if self._wanted.timestamps else None,
            pa.concat_arrays(self._headers) if self._wanted.headers else None,
            self._of.topic,
            writers=None if self._wanted.writer is None else pa.concat_arrays(self._writers),
        )
        lot = RecordBatchBuffer(messages, self._bytes)
        self._clear()
        return lot


# -- clients

# By process (a fork does not have the threads of its parent's clients) and settings.
_idle: OrderedDict[tuple[Any, ...], list[Consumer]] = OrderedDict()
_idle_lock = threading.Lock()


@contextmanager
def _kept(settings: Mapping[str, str | int]) -> Generator[Consumer]:
    """A client for exclusive use, kept for later ranges. After an error it is discarded."""
    key = (os.getpid(), *sorted(settings.items()))
    with _idle_lock:
        idle = _idle.get(key)
        consumer = idle.pop() if idle else None
    if consumer is None:
        try:
            consumer = Consumer(settings)
        except NativeError as e:
            raise UpstreamError("the connection to Kafka cannot be made", detail=str(e)) from e
    consumer.complaints.clear()
    try:
        yield consumer
    except GeneratorExit:
        _put_back(key, consumer)
        raise
    except BaseException:
        consumer.close()
        raise
    _put_back(key, consumer)


def _put_back(key: tuple[Any, ...], consumer: Consumer) -> None:
    consumer.stop()
    surplus: list[Consumer] = []
    with _idle_lock:
        _idle.setdefault(key, []).append(consumer)
        _idle.move_to_end(key)
        while sum(map(len, _idle.values())) > MAX_KEPT:
            oldest = next(iter(_idle))
            if _idle[oldest]:
                surplus.append(_idle[oldest].pop(0))
            else:
                del _idle[oldest]
    for other in surplus:
        other.close()


# -- errors


def _failure(consumer: Consumer, of: Range, error: NativeError, brokers: str) -> UpstreamError:
    if error.code in _GONE:
        return _gone(consumer, of)
    if error.code in _NO_TOPIC:
        return Unreachable(f'partition {of.partition} of topic "{of.topic}" is not there', detail=str(error))
    consumer.serve()
    complaints = [*consumer.complaints.latest(), Complaint(error.code, str(error))]
    return explain(complaints, brokers, str(error))


def _gone(consumer: Consumer, of: Range) -> UpstreamError:
    """The broker reported that the range is outside the partition. A busy broker may report this of an
    existing range, so the caller checks before it gives up."""
    place = f'partition {of.partition} of topic "{of.topic}"'
    try:
        low, high = consumer.watermarks(of.topic, of.partition, _REQUEST_MS)
    except NativeError as e:
        return Unreachable(f"what {place} has cannot be told", detail=str(e))
    found = f"It has those from {low} up to {high}."
    if low <= of.lower <= high:
        return Unreachable(
            f"{place} did not give records that it has",
            detail=f"Those from {of.lower} up to {of.upper} were asked for, and called out of range. {found}",
        )
    return Forgotten(
        f"{place} does not have the records that are to be read",
        detail=f"Those from {of.lower} up to {of.upper} were there when they were bound. {found}",
        hint="Retention removed them, or the topic was truncated or created anew: drop the source and create "
        "it again. A topic should keep its records for longer than its readers may be away.",
    )


def _silence(consumer: Consumer, of: Range, at: int, brokers: str) -> UpstreamError:
    return explain(
        consumer.complaints.latest(),
        brokers,
        f'No record came for {STALL_SECONDS:g} s. Partition {of.partition} of topic "{of.topic}" was '
        f"read up to {at}, and should have records up to {of.upper}.",
    )
