"""Topic metadata from the brokers: identity, partitions, start and end offsets.

`Admin` is one client, which `source` keeps across ticks. The functions below it create their own client, for
the engine when a source is created, and for the command line. Every call ends by its deadline, with an answer
or an error that gives the reason. The end of a partition is its last stable offset: records beyond it may
belong to open transactions, which can still abort.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from confluent_kafka import (
    OFFSET_END,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)

from tidemill.errors import UndefinedObject
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.client import Complaint, Complaints, Unreachable, configuration, explain, refused

# Deadline of a call that a user waits for; long enough for distant or busy brokers.
CREATE_SECONDS = 10.0
# Topics that are searched for similar names, and the number of names in the hint.
MAX_TOPICS = 10_000
NEAR_TOPICS = 3

_T = TypeVar("_T")

# Instances of the library, which it declares as optional.
_EARLIEST, _LATEST = cast("OffsetSpec", OffsetSpec.earliest()), cast("OffsetSpec", OffsetSpec.latest())


_PAUSE_SECONDS = 0.05
# Interval at which the client's reports are polled while waiting for an answer.
_LISTEN_SECONDS = 0.1

_NO_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID))
_NOT_ALLOWED = frozenset((KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED))
_NO_LEADER = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,
        KafkaError._UNKNOWN_PARTITION,
    )
)


_BY_ITSELF = "Brokers were restarted, or one is missing. It is tried again by itself."


class NoTopic(UpstreamError):
    """The topic does not exist."""


class NoLeader(Unreachable):
    """A partition has no leader at the moment."""

    sqlstate = "08001"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` distinguishes a topic from a later one with the same name; None if the brokers are too old.
    `partitions`: the first offset of each, and its end."""

    topic_id: str | None
    partitions: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic without its offsets."""

    topic_id: str | None
    partitions: tuple[int, ...]


class Admin:
    """One client. Thread-safe. `seconds` is the deadline of a call."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._complaints = Complaints()
        settings: dict[str, Any] = {**configuration(connection), "error_cb": self._complaints}
        self._brokers = str(settings["bootstrap.servers"])
        try:
            self._client = AdminClient(settings)
        except KafkaException as e:
            raise UpstreamError("the connection to Kafka cannot be made", detail=_told(e)) from e

    def identity(self, topic: str, seconds: float) -> TopicIdentity:
        """Raises NoTopic, Unreachable."""
        return self._answers(self.ask_identity(topic, seconds), topic, seconds)

    def ends(self, topic: str, partitions: Collection[int], seconds: float) -> dict[int, int]:
        """The last stable offset of each partition. Raises NoTopic, Unreachable."""
        return self._offsets(topic, partitions, _LATEST, seconds)

    def written(self, topic: str, partitions: Collection[int], seconds: float) -> dict[int, int]:
        """The end of each partition, with the records of open transactions. Raises NoTopic, Unreachable."""
        return self._offsets(topic, partitions, _LATEST, seconds, IsolationLevel.READ_UNCOMMITTED)

    def starts(self, topic: str, partitions: Collection[int], seconds: float) -> dict[int, int]:
        """The first available offset of each partition. Raises NoTopic, Unreachable."""
        return self._offsets(topic, partitions, _EARLIEST, seconds)

    def at_time(self, topic: str, partitions: Collection[int], ms: int, seconds: float) -> dict[int, int]:
        """The first offset of each partition whose timestamp is `ms` or later; -1 if there is none. Raises
        NoTopic, Unreachable."""
        return self._offsets(topic, partitions, OffsetSpec.for_timestamp(ms), seconds)

    def settings(self, topic: str, seconds: float) -> dict[str, str] | None:
        """The topic's settings, those that go without saying included. None if the client may not ask. Raises
        NoTopic, Unreachable."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        self._complaints.clear()
        future = self._client.describe_configs([resource], request_timeout=seconds)[resource]
        try:
            found = self._result(future, topic, seconds)
        except UpstreamError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and _error(cause).code() in _NOT_ALLOWED:
                return None
            raise
        return {name: str(entry.value) for name, entry in found.items()}

    def compacted(self, topic: str, seconds: float) -> bool:
        """Whether the brokers remove records whose key has later ones. False if the client may not ask."""
        found = self.settings(topic, seconds)
        return found is not None and "compact" in found["cleanup.policy"].split(",")

    def topics(self, seconds: float) -> list[str]:
        """The names of all topics, up to a limit. Raises Unreachable."""
        self._complaints.clear()
        deadline = time.monotonic() + seconds
        while True:
            try:
                return sorted(self._client.list_topics(timeout=_LISTEN_SECONDS).topics)[:MAX_TOPICS]
            except KafkaException as e:
                if self._refused() or time.monotonic() > deadline:
                    raise self._failed(e) from e

    def stand(
        self, topic: str, partitions: Collection[int], seconds: float
    ) -> tuple[TopicIdentity, dict[int, int]]:
        """The identity of the topic and the ends of its partitions (empty if a partition is missing). Called
        in every tick; the requests run in parallel. The identity is requested last: if the topic is recreated
        meanwhile, this call or the next one detects it."""
        ends = self._ask_offsets(topic, partitions, _LATEST, seconds)
        identity = self.ask_identity(topic, seconds)
        deadline = time.monotonic() + seconds
        # The identity is evaluated first, because requests for offsets of a missing partition wait.
        who = self._answers(identity, topic, seconds)
        if not set(partitions) <= set(who.partitions):
            return who, {}
        try:
            return who, self._all_offsets(ends, topic, deadline - time.monotonic())
        except NoLeader:
            return who, self.ends(topic, partitions, deadline - time.monotonic())

    def ask_identity(self, topic: str, seconds: float) -> Future[Any]:
        self._complaints.clear()
        return self._client.describe_topics(TopicCollection([topic]), request_timeout=seconds)[topic]

    def _ask_offsets(
        self,
        topic: str,
        partitions: Collection[int],
        spec: OffsetSpec,
        seconds: float,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, Future[Any]]:
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        if not wanted:
            return {}
        return self._client.list_offsets(wanted, isolation_level=level, request_timeout=seconds)

    def _offsets(
        self,
        topic: str,
        partitions: Collection[int],
        spec: OffsetSpec,
        seconds: float,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        """Retries while leaders change, which takes some milliseconds after the creation of a topic."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), _PAUSE_SECONDS)
            try:
                asked = self._ask_offsets(topic, partitions, spec, left, level)
                return self._all_offsets(asked, topic, left)
            except NoLeader:
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _all_offsets(
        self, futures: Mapping[TopicPartition, Future[Any]], topic: str, seconds: float
    ) -> dict[int, int]:
        deadline = time.monotonic() + seconds
        found: dict[int, int] = {}
        for partition, future in futures.items():
            offset = int(self._result(future, topic, deadline - time.monotonic()).offset)
            if offset < 0 and offset != OFFSET_END:
                # Seen of a broker that had just been started: no error, and no offset.
                raise NoLeader(f'a partition of topic "{topic}" is not yet served', hint=_BY_ITSELF)
            found[partition.partition] = offset
        return found

    def _answers(self, future: Future[Any], topic: str, seconds: float) -> TopicIdentity:
        found = self._result(future, topic, seconds)
        told = None if found.topic_id is None else str(found.topic_id)
        return TopicIdentity(told, tuple(sorted(partition.id for partition in found.partitions)))

    def _result(self, future: Future[_T], topic: str, seconds: float) -> _T:
        # The client's deadline is earlier. This one is for a client that misses it.
        deadline = time.monotonic() + max(seconds, 0) + _LISTEN_SECONDS
        while not future.done():
            wait([future], _LISTEN_SECONDS)
            if not future.done() and (self._refused() or time.monotonic() > deadline):
                raise self._failed(None)
        try:
            return future.result()
        except KafkaException as e:
            code = _error(e).code()
            if code in _NO_TOPIC:
                raise NoTopic(f'there is no topic "{topic}"') from e
            if code in _NO_LEADER:
                text = f'a partition of topic "{topic}" has no leader'
                raise NoLeader(text, detail=_told(e), hint=_BY_ITSELF) from e
            raise self._failed(e) from e

    def _refused(self) -> bool:
        """Whether there is no use in waiting."""
        self._client.poll(0)  # delivers pending reports
        return refused(self._complaints.latest())

    def _failed(self, error: KafkaException | None) -> UpstreamError:
        self._client.poll(0)
        told = self._complaints.latest()
        if error is None:
            return explain(told, self._brokers, "They did not answer in time.")
        # First, because the client's own reports explain more than the failed call.
        own = Complaint(_error(error).code(), _told(error))
        return explain([own, *told], self._brokers, own.text)


def describe_topic(connection: Mapping[str, Any], topic: str) -> TopicInfo:
    """The identity and the offsets of a topic. Raises UndefinedObject, with similar names, if the topic does
    not exist, and UpstreamError."""
    admin = Admin(connection)
    try:
        identity = admin.identity(topic, CREATE_SECONDS)
    except NoTopic:
        raise _undefined(admin, topic) from None
    starts = admin.starts(topic, identity.partitions, CREATE_SECONDS)
    ends = admin.ends(topic, identity.partitions, CREATE_SECONDS)
    return TopicInfo(identity.topic_id, {p: (starts[p], ends[p]) for p in identity.partitions})


def is_compacted(connection: Mapping[str, Any], topic: str) -> bool:
    """As `Admin.compacted`."""
    return Admin(connection).compacted(topic, CREATE_SECONDS)


def offsets_for_time(connection: Mapping[str, Any], topic: str, ms: int) -> dict[int, int]:
    """For each partition, the first offset whose timestamp is `ms` or later, or the end if there is none.
    Raises the errors of `describe_topic`."""
    admin = Admin(connection)
    try:
        partitions = admin.identity(topic, CREATE_SECONDS).partitions
    except NoTopic:
        raise _undefined(admin, topic) from None
    found = admin.at_time(topic, partitions, ms, CREATE_SECONDS)
    ends = admin.ends(topic, partitions, CREATE_SECONDS)
    return {p: ends[p] if found[p] < 0 else found[p] for p in partitions}


def _undefined(admin: Admin, topic: str) -> UndefinedObject:
    names = admin.topics(CREATE_SECONDS)
    near = difflib.get_close_matches(topic, names, n=NEAR_TOPICS, cutoff=0.6)
    return UndefinedObject(
        f'topic "{topic}" does not exist',
        hint=f"Perhaps you meant {' or '.join(near)}."
        if near
        else "Topics are not created by reading them: create it, or see the name and the connection.",
    )


def _error(error: KafkaException) -> KafkaError:
    return cast("KafkaError", error.args[0])


def _told(error: KafkaException) -> str:
    return _error(error).str()
