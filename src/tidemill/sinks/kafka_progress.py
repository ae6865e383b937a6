"""Progress records of a keyed sink: up to which time its topic is complete, in a topic beside it.

A record is written in the transaction that it counts, so both become visible together, or neither does. The
topic has one partition and is compacted; a record's key is the sink, so that a sink that is created anew does
not continue from another one's. A record also has the life of the process that wrote it, which is greater
than that of every earlier one: a server that has lost its data directory to another stops there. And it has
the identity of the topic, so that one that was created anew is not taken for the one that has the rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from tidemill.sinks.kafka_topic import FARTHER, FIRST_LOOK, LOOK_SECONDS
from tidemill.sinks.target import Check, SinkError
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.consume import Range, Wanted, read_range, settings_of
from tidemill.sources.kafka.metadata import Admin, NoTopic

PARTITION = 0
# Segments are small, and closed every hour, so that the brokers can remove old records.
TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "16777216", "segment.ms": "3600000"}


_PAUSE_SECONDS = 0.1


class Undecided(UpstreamError):
    """A record of the sink is neither committed nor aborted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`upper` is None while nothing is complete. `topic_id` is that of the topic whose progress it is."""

    upper: int | None
    life: int
    topic_id: str | None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def progress_topic(topic: str) -> str:
    """The name of the topic, if the statement gives none."""
    return f"{topic[:230]}-tidemill-progress"


def wait_until_decided(connection: Mapping[str, Any], topic: str, sink: bytes, check: Check) -> None:
    """Returns when no record of the sink is behind the last stable offset, where `last_progress` does not see
    it. The sink's own transactions must have ended. A record is there while another sink's transaction is
    open, and for good where brokers have lost the end of a transaction: one that restarts with old metadata
    takes partitions that it does not know for deleted ones. Raises Undecided after a while, UpstreamError."""
    admin, deadline = Admin(connection), time.monotonic() + LOOK_SECONDS
    settings = {**settings_of(connection, None), "isolation.level": "read_uncommitted"}
    while True:
        stable = admin.ends(topic, (PARTITION,), LOOK_SECONDS)[PARTITION]
        written = admin.written(topic, (PARTITION,), LOOK_SECONDS)[PARTITION]
        mine = False
        for lot in read_range(settings, Range(topic, PARTITION, stable, written), Wanted()):
            check()
            mine = mine or (lot.messages is not None and sink in lot.messages.keys.to_pylist())
        if not mine:
            return
        if time.monotonic() > deadline:
            raise Undecided(
                f'it is not decided whether the last transaction in topic "{topic}" counts',
                detail=f"The last stable offset is {stable}, and the sink has written after it.",
                hint="It is tried again by itself. If it stays so, the brokers have lost the end of a "
                f'transaction: "kafka-transactions.sh find-hanging --topic {topic}" names it, and '
                '"abort" ends it, also in the topic of the sink.',
            )
        check()
        time.sleep(_PAUSE_SECONDS)


def last_progress(connection: Mapping[str, Any], topic: str, sink: bytes, check: Check) -> Progress | None:
    """The last record of the sink before the last stable offset; None if there is none. Raises SinkError,
    UpstreamError."""
    admin = Admin(connection)
    try:
        low = admin.starts(topic, (PARTITION,), LOOK_SECONDS)[PARTITION]
        end = admin.ends(topic, (PARTITION,), LOOK_SECONDS)[PARTITION]
    except NoTopic as e:
        raise SinkError(
            f'there is no topic "{topic}"',
            detail="It had the sink's progress.",
            hint="DROP the sink, and CREATE it anew with another topic.",
        ) from e
    settings, window = settings_of(connection, None), FIRST_LOOK
    while end > low:
        begin = max(low, end - window)
        found: Progress | None = None
        for lot in read_range(settings, Range(topic, PARTITION, begin, end), Wanted()):
            check()
            if lot.messages is not None:
                keys, values = lot.messages.keys.to_pylist(), lot.messages.values.to_pylist()
                mine = [v for k, v in zip(keys, values, strict=True) if k == sink and v is not None]
                found = _read(mine[-1], topic) if mine else found
        if found is not None:
            return found
        end, window = begin, window * FARTHER
    return None


def _read(value: bytes, topic: str) -> Progress:
    try:
        said = cast("dict[str, Any]", json.loads(value))
        return Progress(said["upper"], int(said["life"]), said["topic_id"])
    except (ValueError, KeyError, TypeError):
        raise SinkError(
            f'the progress in topic "{topic}" cannot be read',
            detail=repr(value[:200]),
            hint="Another program wrote to it. DROP the sink, and CREATE it anew with another topic.",
        ) from None
