"""Topic of a sink: created if missing, and searched for the last statement.

Statements go to partition 0, each with a key that contains the writer and the upper. The last one is thus
found from the end of one partition, without decoding. Updates have no key and may be in any partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidemill.errors import InvalidValue
from tidemill.sinks.definition import WHOLE
from tidemill.sinks.target import Check
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.client import Complaints, Unreachable, configuration, explain
from tidemill.sources.kafka.consume import Range, Wanted, read_range, settings_of
from tidemill.sources.kafka.metadata import CREATE_SECONDS, Admin, NoTopic

# Where statements are.
STATEMENTS = 0
# A history is useful only from its beginning: topics that are created here keep everything.
TOPIC_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# The distance from the end of the partition at which the search for the last statement starts, and its
# growth. An idle sink makes a statement once a second; all messages of a snapshot may precede a statement.
FIRST_LOOK, FARTHER = 64, 16
# The time limit for reading a topic's first and last offsets, for a running sink.
LOOK_SECONDS = 10.0
# How often a topic that was just made is looked for.
APPEAR_SECONDS = 0.1

_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The first offset of the partition with the statements, and its end; the number of partitions; whether
    no partition has a record; what distinguishes the topic from a later one with its name (None if the
    brokers are too old)."""

    low: int
    high: int
    partitions: int
    empty: bool
    topic_id: str | None


def statement_key(share: tuple[int, int], upper: int) -> bytes:
    return b"%d/%d %d" % (*share, upper)


def read_key(key: bytes) -> tuple[tuple[int, int], int] | None:
    """The share and the upper; None for the keys of other programs."""
    try:
        of, upper = key.decode("ascii").split(" ")
        number, writers = of.split("/")
        return (int(number), int(writers)), int(upper)
    except ValueError:
        return None


def place_of(connection: Mapping[str, Any], topic: str, seconds: float = LOOK_SECONDS) -> TopicPlace:
    """Raises NoTopic, Unreachable."""
    admin = Admin(connection)
    identity = admin.identity(topic, seconds)
    partitions = identity.partitions
    low = admin.starts(topic, partitions, seconds)
    high = admin.ends(topic, partitions, seconds)
    empty = all(low[p] == high[p] for p in partitions)
    return TopicPlace(low[STATEMENTS], high[STATEMENTS], len(partitions), empty, identity.topic_id)


def make_topic(
    connection: Mapping[str, Any],
    topic: str,
    partitions: int | None,
    replicas: int | None,
    config: Mapping[str, str] = TOPIC_CONFIG,
) -> TopicPlace:
    """The topic, created with these settings if it does not exist. Raises UpstreamError, and InvalidValue if
    it exists with another number of partitions."""
    try:
        found = place_of(connection, topic, CREATE_SECONDS)
    except NoTopic:
        _create(connection, topic, partitions, replicas, config)
        return _appeared(connection, topic)
    if partitions not in (None, found.partitions):
        raise InvalidValue(
            f'topic "{topic}" has {found.partitions} partitions, not {partitions}',
            detail="It was there before, and is not changed.",
            hint="Leave PARTITION COUNT out, or choose another topic.",
            sqlstate="22023",
        )
    return found


def _appeared(connection: Mapping[str, Any], topic: str) -> TopicPlace:
    """A broker may know a topic some moments after another one has made it."""
    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            return place_of(connection, topic, CREATE_SECONDS)
        except NoTopic:
            if time.monotonic() > deadline:
                raise
            time.sleep(APPEAR_SECONDS)


def _create(
    connection: Mapping[str, Any],
    topic: str,
    partitions: int | None,
    replicas: int | None,
    config: Mapping[str, str],
) -> None:
    complaints = Complaints()
    settings: dict[str, Any] = {**configuration(connection), "error_cb": complaints}
    client = AdminClient(settings)
    # -1: the broker's default.
    new = NewTopic(topic, partitions or -1, replicas or -1, config=dict(config))
    future = client.create_topics([new], request_timeout=CREATE_SECONDS)[topic]
    try:
        future.result(CREATE_SECONDS + 1)
    except (KafkaException, FutureTimeout) as e:
        client.poll(0)
        error = e.args[0] if e.args and isinstance(e.args[0], KafkaError) else None
        if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        raise _refusal(topic, error, complaints, str(settings["bootstrap.servers"])) from e


def _refusal(topic: str, error: KafkaError | None, complaints: Complaints, brokers: str) -> UpstreamError:
    said = "They did not answer in time." if error is None else error.str()
    code = None if error is None else error.code()
    if code in _FORBIDDEN:
        return Unreachable(
            f'the Kafka broker does not let us make topic "{topic}"',
            detail=said,
            hint="The user needs CREATE on the topic or the cluster, or somebody else makes the topic; and "
            "then DESCRIBE, READ and WRITE on it.",
            sqlstate="42501",
        )
    if code in (
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
    ):
        return UpstreamError(
            f'topic "{topic}" cannot be made',
            detail=said,
            hint="Give PARTITION COUNT and REPLICATION FACTOR that the brokers allow, or make the topic "
            "first.",
            sqlstate="22023",
        )
    return explain(complaints.latest(), brokers, said)


def last_upper(
    connection: Mapping[str, Any], topic: str, share: tuple[int, int], place: TopicPlace, check: Check
) -> int | None:
    """The time before which the topic has all updates of the share: the greatest upper among the last
    statements of that share, or of writers that write everything. None if there is no statement."""
    settings = settings_of(connection, None)
    end, window = place.high, FIRST_LOOK
    while end > place.low:
        begin = max(place.low, end - window)
        uppers = [
            upper
            for of, upper in _statements(settings, Range(topic, STATEMENTS, begin, end), check)
            if of in (share, WHOLE)
        ]
        if uppers:
            # Of two writers, the one that is behind may have written last.
            return max(uppers)
        end, window = begin, window * FARTHER
    return None


def _statements(
    settings: Mapping[str, str | int], of: Range, check: Check
) -> Iterator[tuple[tuple[int, int], int]]:
    for lot in read_range(settings, of, Wanted()):
        check()
        if lot.messages is not None:
            for key in lot.messages.keys.drop_null().to_pylist():
                found = read_key(key)
                if found is not None:
                    yield found
