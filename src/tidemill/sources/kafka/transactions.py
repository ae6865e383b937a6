"""What topics of Debezium say about transactions, read on the driver.

Called by `ingest.transactions`, which decides what a source binds. Only the block of a change and the
announcements are decoded (`decode.debezium.transactions`); rows are read by tasks, once they are bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import legible
from tidemill.decode.debezium.positions import last_commits
from tidemill.decode.debezium.transactions import BEGIN, END, TransactionReader
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.consume import Range, Wanted, read_range
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.types.kernels import pc

# Of messages whose transactions can be read.
FORMATS = ("avro", "json")
# The header in which the connector says which of its runs wrote a change: a UUID of version 7, whose first 48
# bits are the time of the start.
RUN_HEADER = "__debezium.context.runId"
_RUN_DIGITS = 12

# Right behind a snapshot the transaction before is not known.
UNKNOWN_COMMIT = -1

_CHANGES = Wanted(timestamps=True, keys=False, writer=RUN_HEADER)
_ANNOUNCED = Wanted(timestamps=True, keys=False)


class NoTransaction(UpstreamError):
    """A change belongs to no transaction."""

    sqlstate = "22000"
    permanent = True


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """How a topic is read. `value`: the format of its values. `begun`: partitions that are read from their
    start offset; others from their first record."""

    settings: dict[str, str | int]
    topic: str
    value: dict[str, Any]
    begun: frozenset[int]

    def lots(self, partition: int, lower: int, upper: int, wanted: Wanted) -> Iterator[TopicMessages]:
        first = lower == 0 and partition not in self.begun
        of = Range(self.topic, partition, lower, upper, from_start=first)
        for lot in read_range(self.settings, of, wanted):
            if lot.messages is not None:
                yield lot.messages


@dataclass(frozen=True, slots=True)
class SeenChanges:
    """Consecutive records of a partition, by columns. `ids` of their transactions, null without one;
    `orders`: the number of the change in it; `last_commits`: the end of the transaction before it in
    PostgreSQL's log, `UNKNOWN_COMMIT` elsewhere; `runs`: when the run of the connector began, 0 if it does
    not say."""

    offsets: np.ndarray
    times: np.ndarray
    ids: pa.Array
    orders: np.ndarray
    last_commits: np.ndarray
    runs: np.ndarray


@dataclass(frozen=True, slots=True)
class SeenAnnouncements:
    """`ends`: whether it is an END; `counts` as lists of (data_collection, event_count)."""

    offsets: np.ndarray
    times: np.ndarray
    ends: np.ndarray
    ids: pa.Array
    counts: pa.Array


class ChangeScanner:
    """Of a table's topic."""

    def __init__(self, access: TopicAccess) -> None:
        self._access = access
        self._reader = TransactionReader(access.value)

    def scan(self, partition: int, lower: int, upper: int) -> Iterator[SeenChanges]:
        """Exactly the records of the range. Raises UpstreamError."""
        for messages in self._access.lots(partition, lower, upper, _CHANGES):
            found = self._reader.changes(messages.values)
            if found.logged.any():
                raise self._no_transaction(partition, int(messages.offsets[int(np.argmax(found.logged))]))
            yield SeenChanges(
                messages.offsets,
                _times(messages),
                found.ids,
                found.orders,
                last_commits(found.sequences, UNKNOWN_COMMIT)[0],
                _runs(messages.writers),
            )

    def _no_transaction(self, partition: int, offset: int) -> NoTransaction:
        return NoTransaction(
            "a change does not say to which transaction it belongs",
            detail=f'It is in topic "{legible(self._access.topic)}", partition {partition}, offset {offset}.',
            hint="Set provide.transaction.metadata = true in the connector. Changes from before that cannot "
            "be read with TRANSACTION METADATA: begin behind them with START OFFSET or START TIMESTAMP.",
        )


class AnnouncementScanner:
    """Of the transaction topic, which has one partition."""

    def __init__(self, access: TopicAccess) -> None:
        self._access = access
        self._reader = TransactionReader(access.value)

    def scan(self, lower: int, upper: int) -> Iterator[SeenAnnouncements]:
        """Exactly the records of the range. Raises UpstreamError."""
        for messages in self._access.lots(0, lower, upper, _ANNOUNCED):
            found = self._reader.announcements(messages.values)
            known = pc.and_(pc.is_in(found.statuses, pa.array([BEGIN, END])), found.ids.is_valid())
            if not pc.all(known).as_py():
                at = int(pc.index(known, False).as_py())
                raise self._unreadable(int(messages.offsets[at]))
            ends = np.asarray(pc.equal(found.statuses, END))
            yield SeenAnnouncements(messages.offsets, _times(messages), ends, found.ids, found.counts)

    def _unreadable(self, offset: int) -> NoTransaction:
        return NoTransaction(
            "a record of the transaction topic cannot be read",
            detail=f'Topic "{legible(self._access.topic)}", offset {offset}, is neither BEGIN nor END of a '
            "transaction.",
            hint="The topic must be the one that the connector's provide.transaction.metadata = true makes, "
            "usually called <topic.prefix>.transaction.",
        )


def _times(messages: TopicMessages) -> np.ndarray:
    assert messages.timestamps is not None
    return messages.timestamps


def _runs(column: pa.Array | None) -> np.ndarray:
    """The start of the run, in milliseconds."""
    assert column is not None
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    encoded = column.dictionary_encode()
    starts = np.array([_start(value) for value in encoded.dictionary.to_pylist()], np.int64)
    at = np.asarray(pc.fill_null(encoded.indices, len(starts)))
    return np.append(starts, 0)[at]


def _start(value: bytes) -> int:
    digits = value.decode("ascii", errors="replace").replace('"', "").replace("-", "")[:_RUN_DIGITS]
    try:
        return int(digits, 16) if len(digits) == _RUN_DIGITS else 0
    except ValueError:
        return 0
