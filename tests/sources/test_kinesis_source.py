"""The records of a stream as rows, over kinesis-local: the contract, resharding, and what goes wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sources.conformance import CHECKS, Subject
from support.kinesis import Kinesis
from support.kinesis_proxy import KinesisProxy
from tidemill.sources.aws_role import frozen
from tidemill.sources.contract import (
    OFFSET_COLUMN,
    TOMBSTONE_COLUMN,
    Forgotten,
    ReadLimits,
    SourcePiece,
    UpstreamError,
    UpstreamLost,
    UpstreamSource,
)
from tidemill.sources.definition import open_source
from tidemill.sources.kinesis import receiver, spool
from tidemill.sources.kinesis.client import KinesisClient
from tidemill.sources.kinesis.places import START, Place
from tidemill.sources.kinesis.reader import KinesisPiece, Start, read_again
from tidemill.sources.offsets import Offsets, PartitionKey

TEXT: dict[str, Any] = {"format": "text"}
WAIT_SECONDS = 60.0


def definition(kinesis: Kinesis, stream: str, **more: Any) -> dict[str, Any]:
    output = {"name": "o", "key": more.pop("key", None), "value": more.pop("value", TEXT)}
    output["include"] = more.pop("include", [])
    output["envelope"] = more.pop("envelope", {"kind": "none"})
    found = {"kind": "kinesis", "connection": kinesis.options, "stream": stream, "start_ms": None}
    return {**found, "outputs": [output], "started": 0, **more}


class Opened:
    """A source that is closed at the end of a test, driven as a machine does."""

    def __init__(self, source: UpstreamSource) -> None:
        self.source = source
        self.at = source.start

    def until(self, done: Callable[[Offsets], bool]) -> Offsets:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = self.source.frontier(0)
            if done(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def lost(self) -> UpstreamLost:
        """The error of a stream that is not what it was, which is behind those that pass."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                self.source.frontier(0)
            except UpstreamLost as e:
                return e
            except UpstreamError as e:
                assert e.transient, e
            time.sleep(0.02)
        raise AssertionError("nothing is wrong")

    def received(self, records: int) -> Offsets:
        return self.until(lambda found: found.records_since(Offsets()) >= records)

    def rows(self, lower: Offsets, upper: Offsets, ways: int = 2) -> list[tuple[Any, ...]]:
        self.source.stamps(lower, upper)
        reader, pieces = self.source.plan(lower, upper, ways, frozenset({0}))
        found: list[tuple[Any, ...]] = []
        for piece in pieces:
            for batch in reader.read(piece):
                found += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        return found


@pytest.fixture(scope="module")
def subject(kinesis: Kinesis) -> Subject:
    stream = kinesis.stream(2)
    kinesis.put(stream, [(f"k{n}", b"value %d" % n) for n in range(12)])
    include = [{"what": what, "as": None} for what in ("key", "shard_id", "sequence_number", "timestamp")]
    made = definition(kinesis, stream, key=TEXT, include=include)
    return Subject("kinesis", lambda: open_source(made), (0, 1), remote=True, examples=4)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_stream_conforms(check: Callable[[Subject], None], subject: Subject) -> None:
    check(subject)


@pytest.fixture
def opened() -> Iterator[Callable[[dict[str, Any]], Opened]]:
    made: list[Opened] = []

    def make(of: dict[str, Any]) -> Opened:
        made.append(Opened(open_source(of)))
        return made[-1]

    yield make
    for each in made:
        each.source.close()


@pytest.fixture
def proxy(kinesis: Kinesis) -> Iterator[KinesisProxy]:
    with KinesisProxy(kinesis.options["endpoint"]).serving() as found:
        yield found


Open = Callable[[dict[str, Any]], Opened]
BY_KEY = [{"what": "key", "as": None}]


def numbered(first: int, count: int, keys: int = 5) -> list[tuple[str, bytes]]:
    return [(f"k{n % keys}", b"%d" % n) for n in range(first, first + count)]


def through(proxy: KinesisProxy, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "connection": {**made["connection"], "endpoint": proxy.endpoint}}


def walk(found: Opened, records: int) -> list[Offsets]:
    """Bind what there is, until so many records are bound. Returns the frontiers."""
    source, steps = found.source, [found.at]
    while steps[-1].records_since(Offsets()) < records:
        upper = source.cut(steps[-1], found.received(records), ReadLimits(1000))
        source.stamps(steps[-1], upper)
        steps.append(upper)
    return steps


def in_order(rows: list[tuple[Any, ...]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, text in rows:
        found.setdefault(key, []).append(int(text))
    return found


def test_the_order_of_a_key_is_kept_over_splits_and_merges(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(1)
    made = definition(kinesis, stream, key=TEXT, include=BY_KEY)
    # One that reads along, and one that comes when all is over.
    along = opened(made)
    kinesis.put(stream, numbered(0, 20))
    along.received(20)
    kinesis.split(stream, "shardId-000000000000")
    kinesis.put(stream, numbered(20, 20))
    along.received(40)
    kinesis.merge(stream, "shardId-000000000001", "shardId-000000000002")
    kinesis.put(stream, numbered(40, 20))
    wanted = {f"k{k}": list(range(k, 60, 5)) for k in range(5)}
    parents = {name: info.parents for name, info in kinesis.shards(stream).items()}
    for found in (along, opened(made)):
        steps = walk(found, 60)
        rows: list[tuple[Any, ...]] = []
        for lower, upper in itertools.pairwise(steps):
            moved = set(upper.increments(lower))
            for shard in moved:
                assert not moved & set(parents[str(shard)]), "a shard together with one that it comes from"
            rows += found.rows(lower, upper)
        assert in_order(rows) == wanted
        # As much of each shard as is there; its last number is the stamp.
        for shard in parents:
            there = kinesis.records(stream, shard)
            assert steps[-1][shard] == len(there)
    assert len(parents) == 4


def test_children_are_read_when_their_parents_are_at_their_ends(
    kinesis: Kinesis, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent takes several reads, its children one each."""
    monkeypatch.setattr(receiver, "MAX_RECORDS", 5)
    stream = kinesis.stream(1)
    kinesis.put(stream, numbered(0, 20))
    kinesis.split(stream, "shardId-000000000000")
    kinesis.put(stream, numbered(20, 5))
    found = opened(definition(kinesis, stream, key=TEXT, include=BY_KEY))
    steps = walk(found, 25)
    rows = [row for lower, upper in itertools.pairwise(steps) for row in found.rows(lower, upper)]
    assert in_order(rows) == {f"k{k}": list(range(k, 25, 5)) for k in range(5)}
    assert len(steps) > 2


def test_a_range_is_the_same_after_a_restart(kinesis: Kinesis, opened: Open) -> None:
    """Read from the stream, by another source, which knows the bindings alone."""
    stream = kinesis.stream(2)
    include = [{"what": what, "as": None} for what in ("shard_id", "sequence_number")]
    made = definition(kinesis, stream, include=include)
    first = opened(made)
    kinesis.put(stream, numbered(0, 30))
    middle = first.received(30)
    wanted = first.rows(Offsets(), middle)
    kinesis.put(stream, numbered(30, 30))
    upper = first.received(60)
    more = first.rows(middle, upper, 4)
    places: dict[PartitionKey, list[tuple[int, str]]] = {}
    for frontier in (middle, upper):
        for shard, count in frontier.items():
            number = kinesis.records(stream, str(shard))[count - 1]["SequenceNumber"]
            places.setdefault(shard, []).append((count, number))
    stamps = {str(shard): found[-1][1] for shard, found in places.items()}
    assert first.source.stamps(middle, upper) == stamps
    later = opened(made)
    later.source.recall_places(places)
    later.source.recall(upper, stamps)
    assert later.source.frontier(0) == upper
    for lower, end, rows in ((Offsets(), middle, wanted), (middle, upper, more)):
        reader, pieces = later.source.plan(lower, end, 2, frozenset({0}))
        again = [
            row
            for piece in pieces
            for batch in reader.read(piece)
            for row in zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        ]
        assert sorted(again) == sorted(rows)
    # It goes on behind them.
    kinesis.put(stream, numbered(60, 5))
    end = later.received(65)
    assert sorted(row[0] for row in later.rows(upper, end)) == ["60", "61", "62", "63", "64"]


def test_what_is_not_as_it_was_bound_is_an_error(kinesis: Kinesis, proxy: KinesisProxy) -> None:
    stream = kinesis.stream(1)
    numbers = kinesis.put(stream, numbered(0, 10))
    options = frozen({**kinesis.options, "endpoint": proxy.endpoint})
    client, shard = KinesisClient(options), "shardId-000000000000"

    def read(*piece: Any) -> list[Any]:
        of = KinesisPiece(shard, *piece)
        return [r for r in read_again(client, stream, shard, Start(), of) if r is not None]

    assert sum(r.num_rows for r in read(2, 7, Place(2, numbers[1]), numbers[6])) == 5
    assert sum(r.num_rows for r in read(4, 7, Place(2, numbers[1]), None)) == 3
    with pytest.raises(Forgotten, match="no longer has the records that were bound") as other:
        read(2, 7, Place(2, numbers[1]), numbers[7])
    assert f"had the sequence number {numbers[7]}; now it has {numbers[6]}" in str(other.value.detail)
    with pytest.raises(Forgotten) as fewer:
        read(2, 12, Place(2, numbers[1]), numbers[9])
    assert "There should be 10 records behind" in str(fewer.value.detail)
    with pytest.raises(Forgotten, match="no longer has") as refused:
        read(2, 7, Place(2, str(2**186 - 1)), numbers[6])
    assert "is refused" in str(refused.value.detail)
    # Those at the beginning have expired: the service goes on behind them and does not say so.
    proxy.trimmed[shard] = numbers[4]
    for lower, upper, place, last in ((0, 10, START, numbers[9]), (2, 7, Place(2, numbers[1]), numbers[6])):
        with pytest.raises(Forgotten):
            read(lower, upper, place, last)
    assert sum(r.num_rows for r in read(5, 10, Place(5, numbers[4]), numbers[9])) == 5


def test_refusals_and_expired_iterators_are_survived(
    kinesis: Kinesis, proxy: KinesisProxy, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = kinesis.stream(1)
    found = opened(through(proxy, definition(kinesis, stream)))
    kinesis.put(stream, numbered(0, 5))
    found.received(5)
    throttled = ("GetRecords", "ProvisionedThroughputExceededException", 400)
    expired = ("GetRecords", "ExpiredIteratorException", 400)
    placed = ("GetShardIterator", "ProvisionedThroughputExceededException", 400)
    proxy.refusals += [throttled, throttled, expired, placed, placed, throttled]
    kinesis.put(stream, numbered(5, 5))
    upper = found.received(10)
    assert [row[0] for row in found.rows(Offsets(), upper)] == [str(n) for n in range(10)]
    # For a long time: it is said. Others go on.
    monkeypatch.setattr(receiver, "REFUSED_SECONDS", 0.0)
    proxy.refusals += [throttled] * 3
    found.until(lambda _: found.source.waits is not None)
    assert found.source.waits == 'reads of shard "shardId-000000000000" are refused: it is read too often'
    found.until(lambda _: found.source.waits is None)


def test_reading_is_slower_than_the_limits_of_a_shard(
    kinesis: Kinesis, proxy: KinesisProxy, opened: Open
) -> None:
    stream = kinesis.stream(1)
    kinesis.put(stream, numbered(0, 5))
    found = opened(through(proxy, definition(kinesis, stream)))
    began = time.monotonic()
    found.received(5)
    while time.monotonic() - began < 2.0:
        found.source.frontier(0)
    # Five reads per second and shard.
    reads = proxy.asked.count("GetRecords")
    assert reads <= 5 * (time.monotonic() - began) + 1


def test_records_that_expired_before_they_were_read_are_an_error(
    kinesis: Kinesis, proxy: KinesisProxy, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, shard = kinesis.stream(1), "shardId-000000000000"
    numbers = kinesis.put(stream, numbered(0, 10))
    made = through(proxy, definition(kinesis, stream))
    bound, stamps = Offsets({shard: 3}), {shard: numbers[2]}
    hour = 3_600_000

    def restarted(read_until: int | None) -> Opened:
        found = opened({**made, "read_until": read_until})
        found.source.recall_places({shard: [(3, numbers[2])]})
        found.source.recall(bound, stamps)
        return found

    now = int(time.time() * 1000)
    # The last record is there: nothing can be missing, however long it was away.
    assert restarted(now - 100 * hour).received(10)[shard] == 10
    # It has expired. What was read up to an hour ago is within the retention period of a day.
    proxy.trimmed[shard] = numbers[2]
    assert restarted(now - hour).received(10)[shard] == 10
    for until in (now - 25 * hour, None):
        found = restarted(until)
        with pytest.raises(Forgotten, match="may have expired before they were read") as caught:
            found.until(lambda _: False)
        assert "The retention period is 24 hours." in str(caught.value.detail)
    # A longer period is asked for.
    monkeypatch.setattr(receiver, "retention_ms", lambda client, stream: 48 * hour)
    assert restarted(now - 25 * hour).received(10)[shard] == 10


def test_an_iterator_that_was_left_behind_is_noticed(
    kinesis: Kinesis, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads of a living source: the retention period is over."""
    stream = kinesis.stream(1)
    kinesis.put(stream, numbered(0, 3))
    found = opened(definition(kinesis, stream))
    found.received(3)
    # The last record is still there, so nothing is lost.
    monkeypatch.setattr(receiver, "LEAST_RETENTION_MS", -1)
    kinesis.put(stream, numbered(3, 3))
    upper = found.received(6)
    assert [row[0] for row in found.rows(Offsets(), upper)] == [str(n) for n in range(6)]


def test_a_stream_that_is_not_what_it_was_is_an_error(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(1)
    found = opened(definition(kinesis, stream))
    kinesis.put(stream, numbered(0, 3))
    upper = found.received(3)
    found.source.stamps(Offsets(), upper)
    kinesis.delete(stream)
    assert found.lost().primary == f'stream "{stream}" does not exist any more'
    kinesis.stream(1, stream)
    kinesis.put(stream, numbered(3, 3))
    deadline = time.monotonic() + WAIT_SECONDS
    while (again := found.lost()).primary != f'stream "{stream}" was deleted and created anew':
        assert time.monotonic() < deadline, again
    assert "was read up to sequence number 4" in str(again.detail)


def test_a_missing_stream_is_waited_for(kinesis: Kinesis, opened: Open) -> None:
    found = opened(definition(kinesis, "not-yet"))
    with pytest.raises(UpstreamError, match='stream "not-yet" does not exist') as caught:
        found.source.frontier(0)
    assert caught.value.sqlstate == "42704" and "Create it, and it is read" in str(caught.value.hint)
    kinesis.stream(1, "not-yet")
    kinesis.put("not-yet", numbered(0, 1))
    found.received(1)


@pytest.mark.parametrize(
    ("error", "status", "primary", "sqlstate"),
    [
        ("UnrecognizedClientException", 400, "the keys of the connection are refused", "28000"),
        ("InvalidSignatureException", 400, "the keys of the connection are refused", "28000"),
        ("ExpiredTokenException", 400, "the keys of the connection are refused", "28000"),
        ("AccessDeniedException", 400, 'access to stream "{}" is denied', "42501"),
        ("InternalFailure", 500, "Kinesis answered with an error", "58000"),
    ],
)
def test_what_the_service_says_is_told(
    kinesis: Kinesis, proxy: KinesisProxy, opened: Open, error: str, status: int, primary: str, sqlstate: str
) -> None:
    stream = kinesis.stream(1)
    found = opened(through(proxy, definition(kinesis, stream)))
    kinesis.put(stream, numbered(0, 2))
    proxy.refusals.append(("ListShards", error, status))
    with pytest.raises(UpstreamError) as caught:
        found.source.frontier(0)
    assert (caught.value.primary, caught.value.sqlstate) == (primary.format(stream), sqlstate)
    assert error in str(caught.value.detail)
    # While a shard cannot be read, it is said; then it goes on.
    proxy.refusals.append(("GetRecords", error, status))
    with pytest.raises(UpstreamError, match=primary.format(stream)):
        found.until(lambda _: False)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            assert found.source.frontier(0).records_since(Offsets()) in (0, 2)
            break
        except UpstreamError:
            time.sleep(0.05)
    found.received(2)


def test_a_server_that_is_away_is_waited_for(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(2)
    found = opened(definition(kinesis, stream))
    kinesis.put(stream, numbered(0, 10))
    lower = found.received(10)
    wanted = found.rows(Offsets(), lower)
    kinesis.persisted()
    kinesis.program.kill()
    with pytest.raises(UpstreamError, match="Kinesis cannot be reached") as caught:
        found.until(lambda _: False)
    assert caught.value.transient
    kinesis.start()
    kinesis.put(stream, numbered(10, 10))
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            upper = found.received(20)
            break
        except UpstreamError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    rows = wanted + found.rows(lower, upper)
    assert sorted(int(row[0]) for row in rows) == list(range(20))


def test_reading_begins_where_it_is_told_to(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(1)
    kinesis.put(stream, numbered(0, 3))
    time.sleep(0.05)
    # (By the clock of the server, which is this machine's.)
    at = int(time.time() * 1000)
    kinesis.put(stream, numbered(3, 3))
    found = opened(definition(kinesis, stream, start_ms=at))
    upper = found.received(3)
    assert [row[0] for row in found.rows(Offsets(), upper)] == ["3", "4", "5"]
    reader = found.source.reader()
    again = [b for b in reader.read(SourcePiece("shardId-000000000000", 0, 3)) if b.rows.num_rows]
    assert again[0].rows.column(0).to_pylist() == ["3", "4", "5"]


def test_a_record_without_data_deletes_its_key(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(1)
    kinesis.put(stream, [("a", b"1"), ("b", b"2"), ("a", b"")])
    keyed = opened(definition(kinesis, stream, key=TEXT, envelope={"kind": "upsert"}))
    upper = keyed.received(3)
    keyed.source.stamps(Offsets(), upper)
    reader, pieces = keyed.source.plan(Offsets(), upper, 1, frozenset({0}))
    (rows,) = [batch.rows for piece in pieces for batch in reader.read(piece)]
    assert rows.column(TOMBSTONE_COLUMN).to_pylist() == [False, False, True]
    assert rows.column(OFFSET_COLUMN).to_pylist() == [0, 1, 2]
    plain = opened(definition(kinesis, stream))
    assert [row[0] for row in plain.rows(Offsets(), plain.received(3))] == ["1", "2", ""]


def test_an_error_names_the_record(kinesis: Kinesis, opened: Open) -> None:
    stream = kinesis.stream(1)
    numbers = kinesis.put(stream, [("a", b"{")])
    found = opened(definition(kinesis, stream, value={"format": "json"}))
    ((_, error),) = found.rows(Offsets(), found.received(1))
    assert f'Stream "{stream}", shardId-000000000000, sequence number {numbers[0]}.' in error


def test_the_spool_is_bounded(kinesis: Kinesis, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = kinesis.stream(1)
    monkeypatch.setattr(spool, "MAX_BYTES", 1)
    kinesis.put(stream, numbered(0, 5))
    found = opened(definition(kinesis, stream))
    lower = found.received(5)
    kinesis.put(stream, numbered(5, 5))
    time.sleep(1.0)
    assert found.source.frontier(0) == lower
    found.source.stamps(Offsets(), lower)
    found.source.durable(lower)
    upper = found.received(10)
    assert [row[0] for row in found.rows(lower, upper)] == [str(n) for n in range(5, 10)]
    lag = found.source.lag(lower)
    assert lag is not None and lag.bytes and lag.seconds is not None
