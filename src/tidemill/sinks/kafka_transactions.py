"""Kafka topic written in transactions: messages become visible together with the progress that counts them.

The producer is librdkafka's, with a transactional id of the sink. Its initialization ends an open transaction
of an earlier process and fences that process, which can commit nothing any more. Only then the progress is
read. A process that was fenced asks whether a later one is at work before it goes on (`kafka_progress`).

Messages are handed over by `map`, in C; there is no callback per message, because a transaction in which a
message failed cannot be committed. After any error the producer is discarded, and the next attempt starts
from the last progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from tidemill import failpoints
from tidemill.sinks.kafka_progress import PARTITION, Progress, last_progress, wait_until_decided
from tidemill.sinks.kafka_topic import LOOK_SECONDS, TopicPlace, place_of
from tidemill.sinks.target import Check, SinkError, SinkPace, Written
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.client import Complaints, Unreachable, configuration, explain, refused
from tidemill.sources.kafka.metadata import NoTopic

FP_SENT = failpoints.register(
    "sink.transaction_sent", "a part of a transaction is sent, nothing is committed"
)
FP_READY = failpoints.register("sink.transaction_ready", "all of a transaction is sent, nothing is committed")

# Messages and bytes that are handed over together, and those that may be in flight. The limits are per sink.
BATCH_MESSAGES = 16_384
MAX_IN_FLIGHT_BYTES = 64 << 20
MAX_IN_FLIGHT = 200_000
# A message for one row may be large; the broker decides whether it is too large.
MAX_MESSAGE_BYTES = 64 << 20
# The longest transaction, and the most that brokers allow if they are not told otherwise. A snapshot is one.
TRANSACTION_SECONDS = 900
# After this time without an answer, and with reported errors, an attempt fails; without errors, after the
# second time.
SILENCE_SECONDS = 5.0
ANSWER_SECONDS = 120.0
# The time for ending a transaction that is given up, so that readers need not wait for the next attempt.
ABORT_SECONDS = 1.0
_WAIT_SECONDS = 0.2

# The time of a change, in milliseconds since 1970, as decimal text.
TIME_HEADER = "tidemill-timestamp"

_SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "enable.idempotence": "true",
    "compression.type": "lz4",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
    # A message that cannot be sent must not outlive its transaction.
    "message.timeout.ms": TRANSACTION_SECONDS * 1000,
    # What Java's clients do: equal keys are in one partition, whoever writes them.
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    # Twice the limits here, so that these take effect first.
    "queue.buffering.max.kbytes": 4 * MAX_IN_FLIGHT_BYTES // 1024,
    "queue.buffering.max.messages": 2 * MAX_IN_FLIGHT,
}

_FENCED = frozenset(
    (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._STATE)
)
_FORBIDDEN = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
_NO_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))
_TOO_LONG = frozenset((KafkaError.INVALID_TRANSACTION_TIMEOUT,))


class TransactionalTopic:
    """One thread uses it. `sink` is the name of the sink among all of all servers, `life` greater than in any
    earlier process that wrote for it."""

    # There is no use in statements without changes but to let go of history.
    pace = SinkPace(round_seconds=0.0, idle_seconds=60.0)

    def __init__(
        self,
        connection: Mapping[str, Any],
        topic: str,
        progress: str,
        sink: str,
        life: int,
        written: Written,
        check: Check,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._progress = progress
        self._sink = sink.encode()
        self._id = f"tidemill-{sink}"
        self._life = life
        self._written = written
        self._check = check
        self._complaints = Complaints()
        self._producer: Producer | None = None
        self._brokers = ""
        self._open = False
        self._topic_id: str | None = None
        # Messages and bytes of the batches that may be in flight, in their order.
        self._batches: deque[tuple[int, int]] = deque()
        self._failed: KafkaError | None = None

    def resume(self) -> int | None:
        """The upper of the last committed progress; None if there is none. Called before anything is sent.
        Earlier processes can commit nothing any more."""
        self.close()
        try:
            place = place_of(self._connection, self._topic, LOOK_SECONDS)
        except NoTopic as e:
            raise self._no_topic("It was there when the sink was made.") from e
        self._last()  # a later process must not be fenced
        producer = self._start()
        self._wait(producer.init_transactions)
        wait_until_decided(self._connection, self._progress, self._sink, self._check)
        last = self._last()
        self._check_same(last, place)
        self._topic_id = place.topic_id
        if last is None or last.life != self._life:
            self._commit(Progress(None if last is None else last.upper, self._life, place.topic_id))
        return None if last is None else last.upper

    def send(self, keys: Sequence[bytes], values: Sequence[bytes | None], times: Sequence[int]) -> None:
        """Waits while too much is in flight."""
        producer = self._begun()
        headers = {t: [(TIME_HEADER, str(t).encode())] for t in set(times)}
        for at in range(0, len(keys), BATCH_MESSAGES):
            some = slice(at, at + BATCH_MESSAGES)
            size = sum(map(len, keys[some])) + sum(map(len, filter(None, values[some])))
            self._wait_for_room(size)
            # The time of a change is the time of its message, also for what brokers do by time.
            made = map(
                producer.produce, repeat(self._topic), values[some], keys[some], repeat(-1), repeat(None),
                repeat(None), times[some], map(headers.__getitem__, times[some]),
            )  # fmt: skip
            try:
                deque(made, maxlen=0)
            except (KafkaException, BufferError) as e:
                raise self._explained(_error(e), str(e)) from e
            self._batches.append((len(keys[some]), size))
            self._written.messages += len(keys[some])
        failpoints.hit(FP_SENT)

    def state(self, upper: int) -> None:
        """Commits what was sent, with the progress. Everything before `upper` is in the topic."""
        self._commit(Progress(upper, self._life, self._topic_id))
        self._written.statements += 1

    def close(self) -> None:
        """Idempotent. A transaction that is open is given up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)
            if self._open:
                try:
                    producer.abort_transaction(ABORT_SECONDS)
                except KafkaException:
                    pass  # the next attempt ends it, or the brokers do after its time
            producer.poll(0)
        self._open = False
        self._batches.clear()
        self._written.in_flight = 0
        self._failed = None

    # -- transactions

    def _last(self) -> Progress | None:
        last = last_progress(self._connection, self._progress, self._sink, self._check)
        if last is not None and last.life > self._life:
            raise SinkError(
                "another server has gone on with the sink",
                detail=f"It is server {last.life} of this data directory, this one is {self._life}.",
                hint="Stop this server if it lost its data directory. If that was restored from a backup, "
                "the topic holds another history: DROP the sink, and CREATE it anew with another topic.",
            )
        return last

    def _check_same(self, last: Progress | None, place: TopicPlace) -> None:
        """Raises SinkError if the progress is not that of this topic."""
        hint = "DROP the sink, and CREATE it anew with another topic."
        if last is None and not place.empty:
            raise SinkError(
                f'topic "{self._progress}" has lost the progress of the sink',
                detail=f'Topic "{self._topic}" has messages, and it is not known how far they go.',
                hint=hint,
            )
        if (
            last is not None
            and last.topic_id != place.topic_id
            and None not in (last.topic_id, place.topic_id)
        ):
            raise SinkError(
                f'topic "{self._topic}" was created anew',
                detail="It has not the rows that the sink has written.",
                hint=hint,
            )

    def _start(self) -> Producer:
        settings: dict[str, Any] = {**configuration(self._connection), **_SETTINGS}
        self._brokers = str(settings["bootstrap.servers"])
        settings |= {
            "transactional.id": self._id,
            "error_cb": self._complaints,
            "on_delivery": self._undelivered,
        }
        try:
            self._producer = Producer(settings)
        except KafkaException as e:
            raise UpstreamError("the connection to Kafka cannot be made", detail=str(e)) from e
        return self._producer

    def _undelivered(self, error: KafkaError | None, _: Delivered) -> None:
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._failed = self._failed or error

    def _begun(self) -> Producer:
        producer = self._producer
        assert producer is not None
        if not self._open:
            try:
                producer.begin_transaction()
            except KafkaException as e:
                raise self._explained(_error(e), str(e)) from e
            self._open = True
            self._complaints.clear()
        return producer

    def _commit(self, progress: Progress) -> None:
        producer = self._begun()
        try:
            producer.produce(self._progress, progress.to_bytes(), self._sink, PARTITION)
        except (KafkaException, BufferError) as e:
            raise self._explained(_error(e), str(e)) from e
        failpoints.hit(FP_READY)
        self._wait(producer.commit_transaction)
        self._open = False
        self._acknowledged(0)

    def _wait(self, call: Callable[[float], object]) -> None:
        """The call, until it has its answer."""
        began = time.monotonic()
        while True:
            try:
                call(_WAIT_SECONDS)
                return
            except KafkaException as e:
                error = _error(e)
                if error is None or not error.retriable():
                    raise self._explained(error, str(e)) from e
                self._look(began)

    def _wait_for_room(self, more: int) -> None:
        producer, began, before = self._producer, time.monotonic(), -1
        assert producer is not None
        while True:
            producer.poll(0)
            if self._failed is not None:
                raise self._explained(self._failed, self._failed.str())
            left = len(producer)
            self._acknowledged(left)
            if not left or (left < MAX_IN_FLIGHT and self._written.in_flight + more <= MAX_IN_FLIGHT_BYTES):
                return
            if left != before:
                began, before = time.monotonic(), left
                self._complaints.clear()
            self._look(began)
            producer.poll(0.01)

    def _look(self, began: float) -> None:
        """Raises if there is no use in waiting any longer."""
        self._check()
        if self._producer is not None:
            self._producer.poll(0)
        waited = time.monotonic() - began
        complaints = self._complaints.latest()
        silent = waited > SILENCE_SECONDS
        if waited > ANSWER_SECONDS or (complaints and (silent or refused(complaints))):
            raise explain(complaints, self._brokers, "They acknowledge nothing.")

    def _acknowledged(self, left: int) -> None:
        """`left` messages are in flight, nearly the last ones that were sent."""
        waiting = sum(count for count, _ in self._batches)
        while self._batches and waiting - self._batches[0][0] >= left:
            count, size = self._batches.popleft()
            waiting -= count
            self._written.bytes += size
        self._written.in_flight = sum(size for _, size in self._batches)

    # -- errors

    def _explained(self, error: KafkaError | None, said: str) -> UpstreamError | SinkError:
        producer = self._producer
        if producer is not None:
            producer.poll(0)
        # The message that failed explains more than the transaction that cannot be committed for it.
        error = self._failed or error
        code = None if error is None else error.code()
        detail = said if error is None else error.str()
        if code in _TOO_LARGE:
            return SinkError(
                f'a message is too large for topic "{self._topic}"',
                detail=detail,
                hint="One row is larger than the topic takes: raise max.message.bytes of the topic.",
            )
        if code in _FORBIDDEN:
            return Unreachable(
                f'the Kafka broker does not let us write to topic "{self._topic}"',
                detail=detail,
                hint=f'The user needs DESCRIBE, READ and WRITE on it and on topic "{self._progress}", and '
                f'WRITE and DESCRIBE on the transactional id "{self._id}".',
                sqlstate="42501",
            )
        if code in _NO_TOPIC:
            return self._no_topic(detail)
        if code in _TOO_LONG:
            return SinkError(
                f"the Kafka brokers do not allow transactions of {TRANSACTION_SECONDS} seconds",
                detail=detail,
                hint="Raise transaction.max.timeout.ms of the brokers to its default, 900000.",
            )
        if code in _FENCED:
            return SinkError(
                "another process has gone on with the sink",
                detail=detail,
                hint="It is tried again by itself, unless another server has the data directory.",
            )
        return explain(self._complaints.latest(), self._brokers, detail)

    def _no_topic(self, detail: str) -> SinkError:
        return SinkError(
            f'there is no topic "{self._topic}"',
            detail=detail,
            hint="DROP the sink, and CREATE it anew with another topic.",
        )


def _error(e: BaseException) -> KafkaError | None:
    return e.args[0] if e.args and isinstance(e.args[0], KafkaError) else None
