"""CDCv2 in the tick, without Spark: what the library gives, whatever the cut into ticks, and once, whatever
fails in between."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcv2.cdcv2_oracle import Oracle, stream
from ingest.streamed import StreamHouse, StreamSource
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.cdcv2 import Message, Progress, Updates, sealed
from tidemill.cdcv2.column_recovery import column_hash
from tidemill.cdcv2.digest import content_of
from tidemill.errors import LimitExceeded
from tidemill.ingest.fact_shard import read_facts
from tidemill.ingest.recovery import verdict as settle_module
from tidemill.ingest.recovery.stream import from_rows, to_rows
from tidemill.persist.settle import upper_of
from tidemill.time.bounds import MAX_UPPER
from tidemill.types.arrow import storage_schema

STEPS = [
    "tick.before_bind",
    "tick.bound",
    "tick.task.read",
    "tick.task.written",
    "tick.before_commit",
    "tick.recovery.stashed",
    "tick.recovery.tallied",
    "tick.recovery.lined",
    "tick.committed",
]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[StreamHouse]:
    house = StreamHouse(tmp_path / "data")
    yield house
    failpoints.arm("")
    house.close()


def rows(house: StreamHouse) -> list[tuple[str | None, int]]:
    return sorted((name or "", diff) for name, _, diff in house.updates())


def test_a_time_is_released_when_it_is_complete(house: StreamHouse) -> None:
    house.source.produce([Updates([("a", 3, 1), ("b", 4, 1)])])
    house.settle()
    assert house.updates() == [] and house.frontier == [0]
    assert len(house.stashed()) == 2
    house.source.produce([Progress([0], [4], [(3, 1)])])
    house.settle()
    assert rows(house) == [("a", 1)] and house.frontier == [4]
    assert [row["d0"] for row in house.stashed()] == ["b"]
    house.source.produce([Progress([4], [], [(4, 1)])])
    house.settle()
    assert rows(house) == [("a", 1), ("b", 1)] and house.frontier == []
    assert house.stashed() == []


def test_what_is_released_has_the_time_of_its_last_binding(house: StreamHouse) -> None:
    house.source.produce([Updates([("a", 3, 2)])])
    assert house.tick()
    house.source.produce([Progress([0], [4], [(3, 1)])])
    assert house.tick()
    (told,) = house.updates()
    assert told == ("a", house.machine.remap.bindings(0)[-1].time, 2)


def test_an_update_that_is_complete_at_once_never_waits(house: StreamHouse) -> None:
    house.source.produce([Updates([("a", 3, 1), ("a", 3, 1)]), Progress([0], [4], [(3, 1)])])
    house.settle()
    assert rows(house) == [("a", 1)]
    assert house.stream.stash.parts == ()


def test_the_same_again_changes_nothing(house: StreamHouse) -> None:
    said: list[Message] = [
        Updates([("a", 1, 1), ("b", 2, 1)]),
        Progress([0], [2], [(1, 1)]),
        Updates([("c", 5, -1)]),
        Progress([5], [6], [(5, 2)]),
    ]
    house.source.produce(said)
    house.settle()
    before = (house.updates(), house.frontier, house.stashed(), house.stream.tally.parts)
    for _ in range(3):
        house.again()
        house.source.produce(said)
        house.settle()
    assert (house.updates(), house.frontier, house.stashed(), house.stream.tally.parts) == before


def test_stalls_are_told(house: StreamHouse) -> None:
    house.source.produce([Updates([("a", 1, 1)]), Progress([0], [2], [(1, 2)])])
    house.settle()
    (told,) = house.machine.stalls()
    assert told.startswith("time 1 waits for") and told.endswith("MISSING 1 of 2 updates")
    house.again()
    assert len(house.machine.stalls()) == 1
    house.source.produce([Updates([("b", 1, 1)]), Progress([7], [8])])
    house.settle()
    (told,) = house.machine.stalls()
    assert "GAP between it and [7]" in told


@pytest.mark.parametrize("apart", [False, True])
def test_a_contradiction_is_an_error_and_stops_its_time(house: StreamHouse, apart: bool) -> None:
    house.source.produce([Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)])])
    if apart:
        house.settle()
    house.source.produce([Updates([("b", 2, 2)]), Progress([0], [4], [(1, 1), (2, 1), (3, 1)])])
    house.settle()
    assert rows(house) == [("", 1), ("a", 1)] and house.frontier == [2]
    (error,) = house.errors()
    assert error.splitlines() == [
        "Envelope error: Materialize: contradiction at time 2: the same data changes by two different diffs",
        "Said: (('b',), 2, +1) in partition 0, offset 0; (('b',), 2, +2) in partition 0, offset 1.",
    ]
    # It stays so, and is told once.
    house.again()
    house.source.produce([Updates([("b", 2, 2), ("b", 2, 1)]), Updates([("c", 3, 1)])])
    house.settle()
    assert len(house.errors()) == 1 and house.frontier == [2]
    assert "withheld" in house.machine.stalls()[0]


def test_every_kind_of_contradiction_is_an_error(house: StreamHouse) -> None:
    wrong: list[Message] = [
        Updates([("z", 9, 0)]),
        Progress([10], [12], [(10, 1), (10, 1)]),
        Progress([20], [22], [(25, 1)]),
        Progress([32], [30]),
        Progress([40, 41], [45]),
        Progress([50], [52], [(50, 1)]),
        Progress([50], [51], [(50, 2)]),
        Updates([("x", 60, 1), ("y", 60, 1)]),
        Progress([60], [61], [(60, 1)]),
    ]
    for message in wrong:
        house.source.produce([message])
        house.settle()
    told = [error.splitlines()[0].rpartition(": ")[2] for error in house.errors()]
    assert sorted(told) == sorted(
        [
            "an update changes nothing",
            "a statement counts a time twice",
            "a statement counts a time outside its bounds",
            "a statement's lower bound is not before its upper bound",
            "a statement's bound has a time beyond another",
            "two statements count differently",
            "more updates than were counted",
        ]
    )
    assert house.frontier == [0] and rows(house) == [("", 1)] * 7


def test_a_record_that_cannot_be_read_is_an_error_and_stops_nothing(house: StreamHouse) -> None:
    said: list[Message | str] = ["Decode error: no\nIn partition 0, offset 0.", Updates([("a", 1, 1)])]
    house.source.produce([*said, Progress([0], [2], [(1, 1)]), Progress([5], [-6])])
    house.settle()
    assert rows(house) == [("", 1), ("", 1), ("a", 1)]
    assert house.errors() == [
        "Decode error: no\nIn partition 0, offset 0.",
        "Decode error: time out of range: -6\nIn partition 0, offset 3.",
    ]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[StreamHouse]:
    """The rows keep the stream's times."""
    house = StreamHouse(tmp_path / "data", own_times=True)
    yield house
    failpoints.arm("")
    house.close()


def complete(house: StreamHouse) -> int:
    return house.machine.complete("line")


def test_rows_may_keep_their_times(line: StreamHouse) -> None:
    line.source.produce([Updates([("a", 3, 1), ("b", 4, 2)]), Progress([0], [4], [(3, 1)])])
    line.settle()
    assert line.updates() == [("a", 3, 1)] and complete(line) == 4
    line.again()
    line.source.produce([Progress([4], [10], [(4, 1)])])
    line.settle()
    assert line.updates() == [("a", 3, 1), ("b", 4, 2)] and complete(line) == 10
    # Time goes on without rows, and is over when the stream says so.
    line.source.produce([Progress([10], [20])])
    line.settle()
    assert complete(line) == 20 and not line.machine.ceased
    line.source.produce([Progress([20], [])])
    line.settle()
    assert complete(line) == MAX_UPPER and line.machine.ceased


def test_what_is_wrong_with_a_stream_is_told_where_rows_keep_their_times(line: StreamHouse) -> None:
    said: list[Message | str] = ["Decode error: no\nIn partition 0, offset 0.", Updates([("a", 1, 1)])]
    line.source.produce([*said, Updates([("b", 2, 1), ("b", 2, 2)]), Progress([0], [3], [(1, 1), (2, 1)])])
    line.settle()
    assert line.updates() == [("a", 1, 1)] and complete(line) == 2
    told = line.machine.stalls()
    assert "withheld" in told[0] and "two different diffs" in told[0] and told[1].startswith("Decode error")


def test_history_of_rows_that_keep_their_times_goes_by_those(line: StreamHouse) -> None:
    line.source.produce([Updates([("a", 3, 1), ("b", 400, 1)]), Progress([0], [500], [(3, 1), (400, 1)])])
    line.settle()
    line.machine.retain(line.clock, 100, 10)
    assert line.machine.feeds[0].rows.since == 399
    line.machine.retain(line.clock, 90, 100)
    assert line.machine.feeds[0].rows.since == 399


def test_a_stream_that_has_ended_is_not_read_on(house: StreamHouse) -> None:
    house.source.produce([Updates([("a", 3, 1)]), Progress([0], [], [(3, 2)])])
    house.settle()
    assert not house.machine.ceased
    house.source.produce([Updates([("b", 3, 1)])])
    house.settle()
    assert house.machine.ceased and rows(house) == [("a", 1), ("b", 1)]
    bound, readable = house.machine.remap.frontier, house.machine.readable
    house.source.produce([Updates([("c", 9, 1)]), "Decode error: no\nIn partition 0, offset 4."])
    house.settle()
    assert house.machine.remap.frontier == bound and house.machine.readable > readable
    assert house.errors() == []


def test_digests_are_compared(tmp_path: Path) -> None:
    source = StreamSource(digests=True)
    house = StreamHouse(tmp_path / "data", source)
    hashed = column_hash(storage_schema(source.outputs[0].desc))
    good = sealed(Progress([0], [2], [(1, 2)]), [content_of([(("a",), 1, 1), (("b",), 1, 1)], hashed)])
    source.produce([Updates([("a", 1, 1)])])
    house.settle()
    house.again()
    source.produce([Updates([("b", 1, 1)]), good])
    house.settle()
    assert rows(house) == [("a", 1), ("b", 1)] and house.frontier == [2]
    bad = sealed(Progress([2], [3], [(2, 1)]), [content_of([(("c",), 2, 1)], hashed)])
    source.produce([Updates([("d", 2, 1)]), bad])
    house.settle()
    assert house.frontier == [2] and "do not match their digest" in house.errors()[0]
    house.close()


def test_too_many_stashed_updates_are_a_named_error(
    house: StreamHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_module.settle, "__defaults__", (2,))
    house.source.produce([Updates([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)])])
    with pytest.raises(Exception, match="more than 2 stashed updates") as caught:
        house.settle()
    assert caught.value.sqlstate == LimitExceeded.sqlstate  # pyright: ignore
    assert house.updates() == []


def check(house: StreamHouse, oracle: Oracle) -> None:
    assert tuple(house.frontier) == oracle.frontier()
    told = [(str(name), t if house.own_times else 0, diff) for name, t, diff in house.updates()]
    released = oracle.released(house.frontier)
    assert sorted(told) == sorted((data, t if house.own_times else 0, diff) for data, t, diff in released)
    # What is kept is what must be: each update beyond the frontier, once.
    beyond = oracle.must_keep(house.frontier)[0]
    assert len(house.stashed()) == beyond
    facts = read_facts(house.stream.tally, upper_of(house.machine.feeds[0].shard))
    assert to_rows(from_rows(facts)) == facts


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([0, 0, 2, 3]))
def test_any_cut_into_ticks_any_restart_and_any_crash_give_the_history(seed: int, kind: int) -> None:
    run_round(seed, kind)


@pytest.mark.chaos
@settings(max_examples=1000)
@given(st.integers(0, 2**32), st.sampled_from([0, 0, 2, 3]))
def test_many_cuts_restarts_and_crashes_give_the_history(seed: int, kind: int) -> None:
    run_round(seed, kind)


def run_round(seed: int, kind: int) -> None:
    rng = Random(seed)
    side = 4 if kind < 3 else 2
    messages = stream(rng, kind, side, size=rng.randint(1, 10))
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        house = StreamHouse(
            Path(folder) / "data", StreamSource(kind), own_times=kind == 0 and rng.random() < 0.5
        )
        oracle = Oracle(kind, side)
        try:
            while messages:
                size = rng.randint(1, 6)
                chunk, messages = messages[:size], messages[size:]
                for message in chunk:
                    house.source.produce([message], rng.randint(0, 2))
                    oracle.take(message)
                if rng.random() < 0.5:
                    failpoints.arm(f"{rng.choice(STEPS)}=error@{rng.randint(1, 3)}")
                    try:
                        house.settle()
                    except failpoints.FailpointError:
                        pass
                    except Exception as e:
                        assert "FailpointError" in str(e)
                    failpoints.arm("")
                    house.again()
                house.settle()
                check(house, oracle)
            assert house.frontier == [] and house.stashed() == []
        finally:
            failpoints.arm("")
            house.close()
