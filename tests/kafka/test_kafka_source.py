"""A topic as a source: the contract that all sources keep, and what becomes of topics over time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from kafka.kafka_decoders import spec
from kafka.kafka_world import NOW, connection, definition, opened
from sources.conformance import CHECKS, Subject
from support.kafka import REQUEST_SECONDS, Kafka, Record, send
from tidemill.errors import UndefinedObject
from tidemill.sources.contract import SourceBatch, SourcePiece, UpstreamError, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.kafka import source as source_module
from tidemill.sources.kafka.client import Unreachable
from tidemill.sources.kafka.metadata import Admin, TopicIdentity, describe_topic, offsets_for_time
from tidemill.sources.kafka.reader import KafkaReader
from tidemill.sources.offsets import Offsets

METADATA: list[dict[str, Any]] = [
    {"what": what, "as": None} for what in ("partition", "offset", "timestamp", "headers")
]
OUTPUTS = [
    spec(name="plain", include=[{"what": "key", "as": None}, *METADATA]),
    spec("upsert", name="keyed", include=METADATA, order_by=["timestamp", "offset"]),
]


@pytest.fixture(scope="module")
def subject(kafka: Kafka) -> Subject:
    """A topic with transactions, tombstones, missing keys and uneven partitions, read as two relations."""
    topic = kafka.create_topic(partitions=3)
    for partition, count in ((0, 700), (1, 40), (2, 300)):
        kafka.produce(
            topic,
            [
                Record(
                    None if n % 11 == 3 else b"k%d" % (n % 17),
                    None if n % 13 == 5 else b"value %d" % n,
                    [("h", b"%d" % n)] if n % 3 else None,
                    NOW - n,
                    partition,
                )
                for n in range(count)
            ],
        )
    kafka.transaction(topic, [Record(b"k", b"aborted", None, None, 1)] * 20, commit=False)
    kafka.transaction(topic, [Record(b"k", b"committed", None, None, 1)] * 20)
    of = definition(kafka, topic, OUTPUTS)
    return Subject("kafka", lambda: open_source(of), (NOW, NOW + 1, NOW + 5000), remote=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_kafka_conforms(subject: Subject, check: Any) -> None:
    check(subject)


def frontier(source: Any, now: int = NOW) -> dict[int, int]:
    return source.frontier(now).as_dict()


def reaches(source: Any, wanted: dict[int, int]) -> None:
    """What a broker acknowledged is stable a moment later."""
    deadline = time.monotonic() + REQUEST_SECONDS
    while (found := frontier(source)) != wanted:
        assert time.monotonic() < deadline, f"{found} is not {wanted}"
        time.sleep(0.02)


def told(source: UpstreamSource) -> UpstreamError:
    """What is wrong for good with the topic: brokers let go of one a moment after they told so."""
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            source.frontier(NOW)
        except UpstreamError as e:
            if not e.transient:
                return e
        assert time.monotonic() < deadline, "nothing is wrong"


def batches(source: UpstreamSource, piece: SourcePiece) -> list[SourceBatch]:
    """Without those that only say that the broker is still waited for."""
    return [batch for batch in source.reader().read(piece) if batch.rows.num_rows]


def test_the_frontier_is_the_last_stable_offset(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    source = opened(kafka, topic)
    assert source.frontier(NOW) == Offsets()
    kafka.produce(topic, [Record(b"k", b"v", None, None, 0)] * 3)
    reaches(source, {0: 3})
    producer = kafka.open_transaction()
    send(producer, topic, [Record(b"k", b"v", None, None, 0)] * 4)
    kafka.produce(topic, [Record(b"k", b"v", None, None, 0)] * 2)
    time.sleep(0.1)
    assert frontier(source) == {0: 3}
    producer.commit_transaction(REQUEST_SECONDS)
    reaches(source, {0: 10})  # three, four, two, and the mark of the transaction
    source.close()


def test_reading_begins_where_the_definition_says(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(b"k", b"%d" % n, None, None, n % 2) for n in range(10)])
    source = opened(kafka, topic, starts={0: 3, 1: 50})
    assert source.start == Offsets({0: 3, 1: 50})
    # It waits until the second partition has come to where it is to begin.
    reaches(source, {0: 5, 1: 50})
    pieces = source.split(source.start, source.frontier(NOW), 1)
    assert pieces == [SourcePiece(0, 3, 5)]
    (batch,) = batches(source, pieces[0])
    assert batch.rows.to_pylist() == [{"text": "6"}, {"text": "8"}]
    assert batch.records == 2 and batch.bytes == 4


def test_partitions_added_later_are_taken_in(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    source = opened(kafka, topic, refresh_ms=1000)
    kafka.produce(topic, [(b"k", b"v")])
    reaches(source, {0: 1})
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [Record(b"k", b"v", None, None, 2)])
    assert frontier(source, NOW + 999) == {0: 1}
    frontier(source, NOW + 1000)
    reaches(source, {0: 1, 2: 1})
    # And by a source that is opened later from the same definition.
    reaches(opened(kafka, topic), {0: 1, 2: 1})


def test_partitions_whose_beginning_was_never_asked_for_are_read_from_what_they_have(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(b"k", b"%d" % n, None, None, n % 2) for n in range(40)])
    kafka.delete_records(topic, {0: 5, 1: 5})
    of = {**definition(kafka, topic), "partitions": {"1": 0}, "topic_id": None}
    source = open_source(of)
    reaches(source, {0: 20, 1: 20})
    pieces = source.split(source.start, Offsets({0: 20, 1: 20}), 4)
    assert [p for p in pieces if p.partition == 0] == [SourcePiece(0, 0, 20)] and len(pieces) == 4
    (batch,) = batches(source, pieces[0])
    assert batch.rows.column("text").to_pylist() == [str(n) for n in range(10, 40, 2)]
    # Of the other one it was said.
    with pytest.raises(UpstreamError, match="does not have the records"):
        list(source.reader().read(pieces[1]))


def test_a_topic_that_is_deleted_is_told(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")] * 3)
    source = opened(kafka, topic)
    reaches(source, {0: 3})
    kafka.delete_topic(topic)
    error = told(source)
    assert error.primary == f'topic "{topic}" does not exist any more'
    assert error.detail == "The source has read it up to 0: 3."


def test_a_topic_that_is_made_anew_is_another(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")] * 3)
    of = definition(kafka, topic)
    source = open_source(of)
    reaches(source, {0: 3})
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [(b"k", b"other")] * 5)
    for later in (source, open_source(of)):
        error = told(later)
        assert error.primary == f'topic "{topic}" was deleted and created anew'
        assert of["topic_id"] in str(error.detail)
    # Nobody asked how many partitions there are, and there are fewer.
    source = open_source({**of, "topic_id": None, "partitions": {"0": 0, "1": 0}})
    error = told(source)
    assert error.primary == f'topic "{topic}" has no partition 1'
    assert error.detail == "START OFFSET has 2 entries; the topic has 1 partitions."


def test_a_topic_that_was_never_asked_for_is_known_by_its_first_look(kafka: Kafka) -> None:
    """VALIDATE = false: made before its topic, it must not go on with another topic of that name."""
    topic = kafka.create_topic()
    of = definition(kafka, topic, topic_id=None, partitions={})
    kafka.delete_topic(topic)
    source = open_source(of)
    assert told(source).primary == f'topic "{topic}" does not exist'
    kafka.create_topic(topic)
    kafka.produce(topic, [(b"k", b"old")])
    reaches(source, {0: 1})
    kafka.delete_topic(topic)
    assert told(source).primary == f'topic "{topic}" does not exist any more'
    kafka.create_topic(topic)
    kafka.produce(topic, [(b"k", b"new")] * 2)
    deadline = time.monotonic() + REQUEST_SECONDS
    while (error := told(source)).primary != f'topic "{topic}" was deleted and created anew':
        assert time.monotonic() < deadline, error


def test_a_partition_that_shrinks_is_told(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")] * 5)
    # A topic that was made anew is told by its id, where it has one.
    stand = Admin.stand

    def without_id(*asked: Any) -> tuple[TopicIdentity, dict[int, int]]:
        found, ends = stand(*asked)
        return replace(found, topic_id=None), ends

    monkeypatch.setattr(Admin, "stand", without_id)
    source = opened(kafka, topic, topic_id=None)
    reaches(source, {0: 5})
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [(b"k", b"v")] * 2)
    error = told(source)
    assert error.primary == f'partition 0 of topic "{topic}" was truncated'
    assert error.detail == "It had records up to 5; now it ends at 2."
    # It goes on when that was a mistake.
    kafka.produce(topic, [(b"k", b"v")] * 4)
    reaches(source, {0: 6})


def test_brokers_that_are_away_are_told_in_time_and_found_again(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")])
    source = opened(kafka, topic)
    reaches(source, {0: 1})
    kafka.kill()
    monkeypatch.setattr(source_module, "LOOK_SECONDS", 0.8)
    began = time.monotonic()
    with pytest.raises(Unreachable) as e:
        source.frontier(NOW)
    assert time.monotonic() - began < REQUEST_SECONDS
    assert e.value.primary == f"the Kafka brokers cannot be reached: {kafka.bootstrap}" and e.value.transient
    kafka.start()
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            assert frontier(source) == {0: 1}
            return
        except Unreachable:
            assert time.monotonic() < deadline


def test_several_relations_come_from_one_reading(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v"), (b"k", None), (None, None)])
    source = opened(kafka, topic, spec(name="a"), spec("upsert", name="b"))
    assert [o.name for o in source.outputs] == ["a", "b"]
    found = batches(source, SourcePiece(0, 0, 3))
    assert [(b.output, b.rows.num_rows, b.records, b.bytes) for b in found] == [(0, 2, 3, 3), (1, 3, 0, 0)]
    none = open_source({**definition(kafka, topic), "outputs": []})
    assert none.outputs == () and list(none.reader().read(SourcePiece(0, 0, 3))) == []


def test_pieces_divide_evenly(kafka: Kafka) -> None:
    source = opened(kafka, kafka.create_topic(partitions=3))
    upper = Offsets({0: 600, 1: 600, 2: 600})
    assert [p.records for p in source.split(Offsets(), upper, 2)] == [300, 300, 600, 600]
    assert [p.records for p in source.split(Offsets(), upper, 1)] == [600, 600, 600]
    assert [p.records for p in source.split(Offsets(), Offsets({0: 1000, 1: 10}), 4)] == [333, 333, 334, 10]
    assert source.split(Offsets(), Offsets({0: 2}), 8) == [SourcePiece(0, 0, 1), SourcePiece(0, 1, 2)]


# -- what CREATE asks


def test_topics_are_described(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(b"k", b"v", None, 1000 + n, 1) for n in range(5)])
    kafka.delete_records(topic, {1: 2})
    info = describe_topic(connection(kafka), topic)
    assert info.partitions == {0: (0, 0), 1: (2, 5)}
    assert info.topic_id
    assert offsets_for_time(connection(kafka), topic, 1003) == {0: 0, 1: 3}
    assert offsets_for_time(connection(kafka), topic, 9999) == {0: 0, 1: 5}


def test_topics_that_are_not_there_are_told_with_those_that_are(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    with pytest.raises(UndefinedObject) as e:
        describe_topic(connection(kafka), topic + "s")
    assert e.value.primary == f'topic "{topic}s" does not exist'
    assert e.value.hint is not None and topic in e.value.hint
    with pytest.raises(UndefinedObject):
        offsets_for_time(connection(kafka), "nothing-like-it", 0)


def test_groups_are_named_as_the_definition_says_and_keep_nothing() -> None:
    of: dict[str, Any] = {
        "kind": "kafka",
        "connection": {"brokers": ["127.0.0.1:1"]},
        "topic": "t",
        "partitions": {},
        "refresh_ms": 1000,
        "outputs": [],
    }
    for prefix, group in (("team-a.", "team-a.tidemill"), (None, "tidemill")):
        reader = open_source({**of, "group_id_prefix": prefix}).reader()
        assert isinstance(reader, KafkaReader)
        assert (reader.settings["group.id"], reader.settings["enable.auto.commit"]) == (group, "false")


@pytest.mark.parametrize(
    "change",
    [
        {"topic": None, "outputs": [{"name": "x"}]},
        {"partitions": {"x": 1}},
        {"partitions": None},
        {"connection": {"brokers": ["h:1"], "plugin.library.paths": "x"}},
        {"outputs": [spec("upsert", key=None)]},
        {"outputs": [spec("classic")]},
    ],
)
def test_definitions_that_cannot_be_read_stall_the_source(change: dict[str, Any]) -> None:
    of: dict[str, Any] = {
        "kind": "kafka",
        "connection": {"brokers": ["127.0.0.1:1"]},
        "topic": "t",
        "partitions": {"0": 0},
        "refresh_ms": 1000,
        "outputs": [],
    }
    open_source(of)
    with pytest.raises(UpstreamError, match="definition cannot be read"):
        open_source({**of, **change})
