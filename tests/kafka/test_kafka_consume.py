"""Exact ranges of real partitions: what is in them, in order, once; and how reading ends and fails."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from support.kafka import REQUEST_SECONDS, Kafka, Record, send
from tidemill.sources.contract import MAX_BATCH_ROWS, UpstreamError
from tidemill.sources.kafka import consume
from tidemill.sources.kafka.client import Unreachable
from tidemill.sources.kafka.consume import (
    _AHEAD_KBYTES,  # pyright: ignore[reportPrivateUsage]
    MAX_BATCH_BYTES,
    Range,
    RecordBatchBuffer,
    Wanted,
    read_range,
    settings_of,
)
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.sources.kafka.native import NativeError

PLAIN = Wanted()


@pytest.fixture
def settings(kafka: Kafka) -> dict[str, str | int]:
    return settings_of({"brokers": [kafka.bootstrap], "security_protocol": "PLAINTEXT"}, None)


def lots(
    settings: dict[str, str | int],
    topic: str,
    lower: int,
    upper: int,
    partition: int = 0,
    wanted: Wanted = PLAIN,
) -> Generator[RecordBatchBuffer]:
    """Without those that only say that the broker is still waited for."""
    of = Range(topic, partition, lower, upper)
    with closing(cast("Generator[RecordBatchBuffer]", read_range(settings, of, wanted))) as reading:
        yield from (lot for lot in reading if lot.messages is not None)


def read(
    settings: dict[str, str | int], topic: str, lower: int, upper: int, partition: int = 0
) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for lot in lots(settings, topic, lower, upper, partition):
        m = messages(lot)
        assert len(m) and m.partition == partition
        m.keys.validate(full=True)
        m.values.validate(full=True)
        found += zip(m.offsets.tolist(), m.keys.to_pylist(), m.values.to_pylist(), strict=True)
    return found


def numbered(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (n % 7), b"value %d" % n) for n in range(count)]


def test_any_range_has_exactly_its_records(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topics = [kafka.create_topic(partitions=2) for _ in range(2)]
    said = numbered(300)
    for topic in topics:
        for partition in range(2):
            kafka.produce(topic, [Record(k, topic.encode() + v, None, None, partition) for k, v in said])
    draw = random.Random(4711)
    for _ in range(60):
        topic, partition = draw.choice(topics), draw.randrange(2)
        lower = draw.randrange(300)
        upper = draw.randint(lower, 300)
        wanted = [(n, said[n][0], topic.encode() + said[n][1]) for n in range(lower, upper)]
        assert read(settings, topic, lower, upper, partition) == wanted


def test_values_of_every_size_and_none(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    sizes = [*range(20), 100, 4096, 70_000]
    said: list[tuple[bytes | None, bytes | None]] = [(bytes([n % 251]) * n, b"v" * n) for n in sizes]
    said += [(None, b"v"), (b"k", None), (None, None), (b"", b"")]
    kafka.produce(topic, said)
    assert [(k, v) for _, k, v in read(settings, topic, 0, len(said))] == said


def test_timestamps_and_headers_where_asked(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    headers = [("a", b"1"), ("a", None), ("ä", b""), ("b", b"\xff")]
    kafka.produce(topic, [Record(b"k", b"v", headers, 1234567890123), Record(b"k", b"w", None, 5)])
    (lot,) = lots(settings, topic, 0, 2, wanted=Wanted(timestamps=True, headers=True))
    m = messages(lot)
    assert m.timestamps is not None and m.timestamps.tolist() == [1234567890123, 5]
    assert m.headers is not None
    assert m.headers.to_pylist() == [[{"key": k, "value": v} for k, v in headers], []]
    (lot,) = lots(settings, topic, 0, 2)
    assert messages(lot).timestamps is None and messages(lot).headers is None
    assert lot.bytes == 4


def test_who_wrote_a_record(kafka: Kafka, settings: dict[str, str | int]) -> None:
    """Neighbours mostly have the same writer; every change of it is found."""
    topic = kafka.create_topic()
    runs = [b"a"] * 40 + [b"b"] * 3 + [None] * 5 + [b"c"] * 20
    named = [
        [("x", b"%d" % n), *([] if run is None else [("run", b"old"), ("run", run)])]
        for n, run in enumerate(runs)
    ]
    kafka.produce(topic, [Record(b"k", b"v", headers) for headers in named])
    for lower, upper in [(0, 68), (0, 40), (5, 45), (41, 46), (43, 48)]:
        of = Range(topic, 0, lower, upper)
        found = [
            m for lot in read_range(settings, of, Wanted(keys=False, writer="run")) if (m := lot.messages)
        ]
        said = [run for m in found for run in cast("pa.Array", m.writers).to_pylist()]
        assert said == runs[lower:upper]
        assert all(m.keys.null_count == len(m) for m in found)


def messages(lot: RecordBatchBuffer) -> TopicMessages:
    assert lot.messages is not None
    return lot.messages


def test_transactions_take_numbers_and_give_what_was_committed(
    kafka: Kafka, settings: dict[str, str | int]
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(3))  # 0-2
    kafka.transaction(topic, [(b"a", b"aborted")] * 4, commit=False)  # 3-6, mark 7
    until_stable(kafka, topic, 8)
    kafka.transaction(topic, [(b"c", b"committed")] * 2)  # 8-9, mark 10
    until_stable(kafka, topic, 11)
    kafka.transaction(topic, [(b"a", b"aborted")] * 2, commit=False)  # 11-12, mark 13
    end = 14
    until_stable(kafka, topic, end)
    whole = [(n, k, v) for n, (k, v) in enumerate(numbered(3))] + [
        (8, b"c", b"committed"),
        (9, b"c", b"committed"),
    ]
    for lower in range(end):
        for upper in range(lower, end + 1):
            wanted = [r for r in whole if lower <= r[0] < upper]
            assert read(settings, topic, lower, upper) == wanted, (lower, upper)


def until_stable(kafka: Kafka, topic: str, end: int) -> None:
    """Marks of transactions are written a moment after the producer is told."""
    from tidemill.sources.kafka.metadata import Admin

    admin = Admin({"brokers": [kafka.bootstrap]})
    deadline = time.monotonic() + REQUEST_SECONDS
    while admin.ends(topic, [0], REQUEST_SECONDS)[0] < end:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_compacted_topics_have_gaps(kafka: Kafka, settings: dict[str, str | int]) -> None:
    compact = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        "delete.retention.ms": "100",
        "max.compaction.lag.ms": "100",
    }
    topic = kafka.create_topic(config=compact)
    count = 0
    deadline = time.monotonic() + 2 * REQUEST_SECONDS
    found: list[tuple[int, bytes | None, bytes | None]] = []
    # A new segment begins when something is written to a partition whose last one is old enough.
    while time.monotonic() < deadline:
        count += len(kafka.produce(topic, [(b"k%d" % (n % 5), b"%d" % (count + n)) for n in range(20)]))
        time.sleep(0.5)
        found = read(settings, topic, 0, count)
        if len(found) < count:
            break
    assert 5 <= len(found) < count, "the broker did not compact"
    assert all(value == b"%d" % offset for offset, _, value in found)
    last = {key: offset for offset, key, _ in found}
    assert all(count - 20 <= offset < count for offset in last.values())
    gone = next(n for n in range(count) if n not in {offset for offset, _, _ in found})
    assert read(settings, topic, gone, gone + 1) == []


def test_large_messages_come_in_small_batches(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic(config={"max.message.bytes": str(12 << 20)})
    producer = _producer(kafka, **{"message.max.bytes": 12 << 20})
    size = 10 << 20
    large = random.Random(1).randbytes(size)
    sent = [large, b"small", large[:-1], large[:-2], large[:-3], large[:-4]]
    send(producer, topic, [(b"k", value) for value in sent])
    found = list(lots(settings, topic, 0, len(sent)))
    assert [value for lot in found for value in messages(lot).values.to_pylist()] == sent
    # A batch is full, then comes what the client has ahead, which may exceed its limit by a message.
    most = MAX_BATCH_BYTES + (_AHEAD_KBYTES << 10) + size
    assert len(found) >= 2 and max(lot.bytes for lot in found) <= most < sum(map(len, sent))


def _producer(kafka: Kafka, **settings: Any) -> Any:
    from confluent_kafka import Producer

    return Producer(kafka.client(**settings))


def test_many_records_come_in_bounded_batches(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    count = 150_000
    kafka.produce(topic, ((None, b"%d" % n) for n in range(count)))
    before = pa.total_allocated_bytes()
    at, sizes = 0, list[int]()
    for lot in lots(settings, topic, 0, count):
        m = messages(lot)
        assert m.offsets.tolist() == list(range(at, at + len(m)))
        assert m.values[0].as_py() == b"%d" % at
        at += len(m)
        sizes.append(len(m))
        assert pa.total_allocated_bytes() - before < 64 << 20
    assert at == count and max(sizes) <= MAX_BATCH_ROWS
    assert len(sizes) == 3, "lots are filled"


def test_an_abandoned_range_leaves_the_client_usable(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(100_000))
    for _ in range(3):
        reading = lots(settings, topic, 0, 100_000)
        next(reading)
        reading.close()
        assert [r[0] for r in read(settings, topic, 99_990, 100_000)] == list(range(99_990, 100_000))


def test_clients_are_kept_and_bounded(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(10))
    read(settings, topic, 0, 10)
    before = set(map(id, idle()))
    read(settings, topic, 3, 10)
    assert set(map(id, idle())) == before
    # Two at a time need two.
    one, other = lots(settings, topic, 0, 10), lots(settings, topic, 5, 10)
    assert messages(next(one)).offsets[0] == 0 and messages(next(other)).offsets[0] == 5
    assert list(one) == [] and list(other) == []
    for n in range(consume.MAX_KEPT + 2):
        read({**settings, "client.id": f"other {n}"}, topic, 0, 1)
    assert len(idle()) == consume.MAX_KEPT


def idle() -> list[Any]:
    return [c for clients in consume._idle.values() for c in clients]  # pyright: ignore[reportPrivateUsage]


def test_what_retention_removed_is_an_error_that_says_so(
    kafka: Kafka, settings: dict[str, str | int]
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(20))
    kafka.delete_records(topic, {0: 5})
    with pytest.raises(UpstreamError) as e:
        read(settings, topic, 3, 20)
    assert e.value.detail == (
        "Those from 3 up to 20 were there when they were bound. It has those from 5 up to 20."
    )
    assert not e.value.transient
    assert len(read(settings, topic, 5, 20)) == 15
    # Who has never read anything of it begins with what there is.
    (lot,) = whole(read_range(settings, Range(topic, 0, 0, 20, from_start=True), Wanted()))
    assert messages(lot).offsets.tolist() == list(range(5, 20))
    assert whole(read_range(settings, Range(topic, 0, 0, 4, from_start=True), Wanted())) == []


def test_a_broker_that_denies_what_it_has_is_asked_again(
    kafka: Kafka, settings: dict[str, str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen of a busy broker, once; here it is said in its place.
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(10))

    def denied(*_: object) -> Iterator[RecordBatchBuffer]:
        raise NativeError(KafkaError.OFFSET_OUT_OF_RANGE)

    with monkeypatch.context() as patch:
        patch.setattr(consume, "_range", denied)
        with pytest.raises(Unreachable) as e:
            read(settings, topic, 5, 10)
    assert e.value.transient
    assert e.value.detail == (
        "Those from 5 up to 10 were asked for, and called out of range. It has those from 0 up to 10."
    )
    assert len(read(settings, topic, 5, 10)) == 5


def whole(reading: Iterator[RecordBatchBuffer]) -> list[RecordBatchBuffer]:
    return [lot for lot in reading if lot.messages is not None]


def test_a_partition_that_ends_early_is_given_up(
    kafka: Kafka, settings: dict[str, str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within which a busy broker must have told what it has.
    monkeypatch.setattr(consume, "STALL_SECONDS", 5.0)
    monkeypatch.setattr(consume, "BEAT_SECONDS", 0.2)
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(10))
    beats = 0
    with pytest.raises(Unreachable) as e:
        for lot in read_range(settings, Range(topic, 0, 5, 12), Wanted()):
            assert lot.messages is None, "half of a range is not told before its end"
            beats += 1
    assert beats >= 2
    assert (
        e.value.detail is not None and "was read up to 10, and should have records up to 12" in e.value.detail
    )


def test_a_topic_that_is_gone_is_told(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(10))
    assert len(read(settings, topic, 0, 10)) == 10
    kafka.delete_topic(topic)
    with pytest.raises(UpstreamError) as e:
        read(settings, topic, 0, 10)
    assert e.value.primary == f'partition 0 of topic "{topic}" is not there'


def test_partitions_added_later_are_found_at_once(kafka: Kafka, settings: dict[str, str | int]) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(1))
    read(settings, topic, 0, 1)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [Record(b"k", b"v", None, None, 2)])
    assert read(settings, topic, 0, 1, partition=2) == [(0, b"k", b"v")]


def test_a_broker_that_dies_and_comes_back(
    kafka: Kafka, settings: dict[str, str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbered(200_000))
    reading = lots(settings, topic, 0, 200_000)
    got = list(messages(next(reading)).offsets)
    monkeypatch.setattr(consume, "STALL_SECONDS", 2.0)
    kafka.kill()
    with pytest.raises(Unreachable) as e:
        for lot in reading:
            got += messages(lot).offsets.tolist()
    assert "cannot be reached" in e.value.primary
    assert got == list(range(len(got)))
    kafka.start()
    monkeypatch.undo()
    assert [r[0] for r in read(settings, topic, 0, 200_000)] == list(range(200_000))
