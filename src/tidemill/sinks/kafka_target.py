"""Kafka topic target.

The producer is librdkafka's, with acknowledgements of all replicas. Updates are distributed over the
partitions; messages of a statement go to the first (`kafka_topic`). The amount in flight is limited. If the
brokers acknowledge nothing for a while and report errors meanwhile, the target fails, and the next attempt
starts from the contents of the topic. A message with an unknown outcome exists or is written again; readers
drop the repetition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from tidemill.sinks.kafka_topic import (
    LOOK_SECONDS,
    STATEMENTS,
    last_upper,
    place_of,
    statement_key,
)
from tidemill.sinks.target import Check, Opening, SinkError, SinkPace, Written
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.client import Complaints, Unreachable, configuration, explain, refused
from tidemill.sources.kafka.metadata import NoTopic

# Messages sent and not acknowledged: enough to keep the brokers busy while the next messages are encoded. The
# limit is per sink.
MAX_IN_FLIGHT_BYTES = 32 << 20
MAX_IN_FLIGHT = 10_000
# A message for one row may be large; the broker decides whether it is too large.
MAX_MESSAGE_BYTES = 64 << 20
# After this time without an acknowledgement, and with reported errors, the target fails.
SILENCE_SECONDS = 5.0
# The client's own limit for a message, for brokers that neither answer nor close the connection.
MESSAGE_SECONDS = 60.0
_WAIT_SECONDS = 0.05

_SETTINGS: dict[str, str | int] = {
    "acks": "all",
    "enable.idempotence": "true",
    "compression.type": "lz4",
    # Messages are batches already.
    "linger.ms": 1,
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "message.timeout.ms": int(MESSAGE_SECONDS * 1000),
    # Twice the limits here, so that these take effect first.
    "queue.buffering.max.kbytes": 2 * MAX_IN_FLIGHT_BYTES // 1024,
    "queue.buffering.max.messages": 2 * MAX_IN_FLIGHT,
}

_FORBIDDEN = frozenset((KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED))
_TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
_NO_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))
_POLICY = frozenset((KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG))


def open_kafka_target(opening: Opening) -> KafkaTarget:
    topic = opening.definition.topic
    assert topic is not None
    share = opening.definition.share
    return KafkaTarget(opening.connection, topic, share, opening.written, opening.check)


class KafkaTarget:
    """`target.TargetWriter`."""

    pace = SinkPace(round_seconds=0.0, idle_seconds=1.0)

    def __init__(
        self,
        connection: Mapping[str, Any],
        topic: str,
        share: tuple[int, int],
        written: Written,
        check: Check,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._share = share
        self._written = written
        self._check = check
        self._complaints = Complaints()
        self._producer: Producer | None = None
        self._brokers = ""
        self._partitions = 1
        self._next = 0
        # Messages and bytes that are not acknowledged, and the time of the last acknowledgement (monotonic).
        self._messages = 0
        self._bytes = 0
        self._heard = 0.0
        self._failed: KafkaError | None = None

    def resume(self) -> int | None:
        try:
            place = place_of(self._connection, self._topic, LOOK_SECONDS)
        except NoTopic as e:
            raise SinkError(
                f'there is no topic "{self._topic}"',
                detail="It was there when the sink was made.",
                hint="DROP the sink, and CREATE it anew; or make the topic, if nobody needs what it had.",
            ) from e
        self._partitions = place.partitions
        return last_upper(self._connection, self._topic, self._share, place, self._check)

    def send(self, message: bytes) -> None:
        partition = self._next % self._partitions
        self._next += 1
        self._produce(message, partition, None)
        self._written.messages += 1
        self._wait(MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT)

    def settle(self) -> None:
        self._wait(0, 0)

    def state(self, message: bytes, upper: int) -> None:
        self.settle()
        self._produce(message, STATEMENTS, statement_key(self._share, upper))
        self._wait(0, 0)
        self._written.messages += 1
        self._written.statements += 1

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # The rest is not needed any more: the queue is dropped.
            producer.purge(blocking=False)
            producer.poll(0)
        self._messages = self._bytes = self._written.in_flight = 0
        self._failed = None

    # -- the producer

    def _open(self) -> Producer:
        settings: dict[str, Any] = {**configuration(self._connection), **_SETTINGS}
        self._brokers = str(settings["bootstrap.servers"])
        try:
            self._producer = Producer({**settings, "error_cb": self._complaints})
        except KafkaException as e:
            raise UpstreamError("the connection to Kafka cannot be made", detail=str(e)) from e
        return self._producer

    def _produce(self, message: bytes, partition: int, key: bytes | None) -> None:
        producer = self._producer or self._open()
        if not self._messages:
            # Earlier errors are not about these messages.
            self._complaints.clear()
            self._heard = time.monotonic()
        size = len(message)

        def delivered(error: KafkaError | None, _: Delivered) -> None:
            if producer is not self._producer:
                return  # of an attempt that was given up
            self._messages -= 1
            self._bytes -= size
            self._written.in_flight = self._bytes
            if error is not None:
                self._failed = self._failed or error
                return
            self._heard = time.monotonic()
            self._complaints.clear()
            self._written.bytes += size

        producer.produce(self._topic, message, key, partition, delivered)
        self._messages += 1
        self._bytes += size
        self._written.in_flight = self._bytes

    def _wait(self, most_bytes: int, most_messages: int) -> None:
        """Waits until at most this many bytes and messages are in flight."""
        producer = self._producer
        if producer is None:
            return
        producer.poll(0)
        while self._failed is None and (self._bytes > most_bytes or self._messages > most_messages):
            producer.poll(_WAIT_SECONDS)
            self._check()
            complaints = self._complaints.latest()
            silent = time.monotonic() - self._heard > SILENCE_SECONDS
            if complaints and (silent or refused(complaints)):
                raise explain(complaints, self._brokers, "They acknowledge nothing.")
        if self._failed is not None:
            raise self._explained(self._failed)

    def _explained(self, error: KafkaError) -> UpstreamError | SinkError:
        code, said = error.code(), error.str()
        if code in _TOO_LARGE:
            return SinkError(
                f'a message is too large for topic "{self._topic}"',
                detail=said,
                hint="One row is larger than the topic takes: raise max.message.bytes of the topic.",
            )
        if code in _FORBIDDEN:
            return Unreachable(
                f'the Kafka broker does not let us write to topic "{self._topic}"',
                detail=said,
                hint="The user needs DESCRIBE, READ and WRITE on the topic.",
                sqlstate="42501",
            )
        if code in _NO_TOPIC:
            return SinkError(
                f'there is no topic "{self._topic}"', detail=said, hint="DROP the sink, and CREATE it anew."
            )
        if code in _POLICY:
            return SinkError(
                f'topic "{self._topic}" does not take the messages',
                detail=said,
                hint="A topic with cleanup.policy=compact takes no messages without keys, and would forget "
                "history: set cleanup.policy=delete.",
            )
        return explain(self._complaints.latest(), self._brokers, said)
