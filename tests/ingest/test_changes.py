"""ENVELOPE DEBEZIUM in the tick: whatever Debezium repeats, each change is there once, at every time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.changing import Change, ChangeHouse, ChangingSource, Connector, Database, fold
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.envelope.changes import MAX_AT_POSITION
from tidemill.errors import TidemillError
from tidemill.ingest.fact_shard import read_facts
from tidemill.persist.settle import upper_of
from tidemill.sources.contract import ChangePhase
from tidemill.sources.offsets import Offsets

STEPS = [
    "tick.bound",
    "tick.task.read",
    "tick.task.written",
    "tick.before_commit",
    "tick.changes.marked",
    "tick.committed",
]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[ChangeHouse]:
    house = ChangeHouse(tmp_path / "data")
    yield house
    failpoints.arm("")
    house.close()


def show(house: ChangeHouse, *changes: Change, ways: int = 2) -> None:
    """More records in partition 0, and a tick that reads them."""
    house.source.topics[0] += changes
    house.source.stands = Offsets({0: len(house.source.topics[0])})
    assert house.tick(ways)


def streamed(lsn: int, op: str, before: str | None, after: str | None, key: int = 1, last: int = 0) -> Change:
    """A change of row `key`; the values of `v`."""
    old, new = None if before is None else (key, before), None if after is None else (key, after)
    return Change(ChangePhase.STREAMED, (last, lsn, 0), op, key, old, new, committed=lsn)


def snapshot(lsn: int, key: int, v: str) -> Change:
    return Change(ChangePhase.SNAPSHOT, (lsn, 0, 0), "r", key, None, (key, v))


def random_topic(seed: int) -> list[Change]:
    database = Database(seed)
    rng = database.rng
    connector = Connector(database)
    for _ in range(rng.choice([0, 3, 10])):
        database.commit()
    for _ in range(rng.choice([0, 0, 1, 2])):
        connector.snapshot(rng.randint(0, 10))
        database.commit()
    connector.snapshot()
    for _ in range(rng.choice([0, 5, 20, 40])):
        for _ in range(rng.randint(0, 3)):
            database.commit()
        step = rng.random()
        if step < 0.5:
            connector.stream(rng.choice([None, 1, 2]))
        elif step < 0.65:
            connector.flush()
        elif step < 0.92:
            connector.kill()
        elif step < 0.97:
            connector.incremental()
        else:
            # The offsets are lost, or the connector is told to; so its log may be an earlier one.
            database.lsn -= rng.choice([0, 0, 500])
            connector.snapshot(rng.choice([0, 2]))
            connector.snapshot()
    connector.stream()
    assert fold(connector.topic) == dict.fromkeys(database.rows.values(), 1)
    return connector.topic


def run(seed: int, *, crashes: bool) -> None:
    rng = random.Random(seed)
    topic = random_topic(seed)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        house = ChangeHouse(Path(folder) / "data", ChangingSource([topic]))
        end = 0
        while end < len(topic):
            end = min(len(topic), end + rng.choice([1, 2, 5, 20, 100]))
            house.source.stands = Offsets({0: end})
            house.source.batch = rng.choice([1, 2, 3, 50])
            if crashes and rng.random() < 0.5:
                failpoints.arm(f"{rng.choice(STEPS)}=error")
                try:
                    house.tick(rng.randint(1, 4))
                except failpoints.FailpointError:
                    house.again()
                except TidemillError:
                    # A task failed: the machine lives on.
                    pass
                finally:
                    failpoints.arm("")
            while house.tick(rng.randint(1, 4)):
                pass
            assert house.rows() == fold(topic[:end]), (seed, end)
        house.close()


def test_streamed_changes_need_no_state(house: ChangeHouse) -> None:
    states = house.folder.with_name("state")
    show(house, snapshot(10, 1, "a"), snapshot(10, 2, "b"))
    assert house.unit is not None and house.unit.upserts
    assert list(states.rglob("*.state"))
    show(house, streamed(20, "u", "a", "c"))
    # The unit behind a snapshot still is read as upserts; the next one is not.
    show(house, streamed(30, "u", "c", "d"))
    assert not house.unit.upserts
    assert house.rows() == {(1, "d"): 1, (2, "b"): 1}
    assert house.facts is not None and house.facts.state_bytes == 0
    assert not list(states.rglob("*.state"))
    # They come back when they are needed.
    show(house, Change(ChangePhase.INCREMENTAL, None, "r", 2, None, (2, "z")))
    assert house.rows() == {(1, "d"): 1, (2, "z"): 1}
    assert list(states.rglob("*.state"))


def test_a_repetition_is_dropped_within_a_piece_between_pieces_and_between_ticks(house: ChangeHouse) -> None:
    changes = [streamed(20, "c", None, "a"), streamed(30, "u", "a", "b"), streamed(40, "u", "b", "c")]
    show(house, streamed(10, "c", None, "x", key=9))
    show(house, *changes, *changes, ways=1)
    show(house, *changes, *changes, streamed(50, "u", "c", "d"), ways=7)
    assert house.rows() == {(9, "x"): 1, (1, "d"): 1}
    house.again()
    show(house, *changes, streamed(50, "u", "c", "d"), streamed(60, "d", "d", None))
    assert house.rows() == {(9, "x"): 1}


def test_several_changes_of_one_position(house: ChangeHouse) -> None:
    """As of COPY: rows of one page have one position; a key that changes gives a delete and a create."""
    page = [streamed(20, "c", None, "a", key) for key in range(5)]
    changed = [streamed(30, "d", "a", None, 3), streamed(30, "c", None, "a", 33)]
    show(house, *page[:3])
    show(house, *page, *page[2:], *changed, ways=3)
    show(house, *page, *changed, *changed, ways=4)
    assert house.rows() == {(key, "a"): 1 for key in (0, 1, 2, 4, 33)}


def test_a_unit_that_begins_elsewhere_than_it_assumed_applies_nothing(house: ChangeHouse) -> None:
    """Its state would be kept, and be wrong."""
    first = [snapshot(10, key, "a") for key in range(4)]
    second = [snapshot(20, key, "b") for key in range(4)]
    house.source.topics[0] += [*first, *second[:2]]
    house.source.stands = Offsets({0: 6})
    house.clock += 100
    assert house.machine.bind(house.clock)
    # The second piece does not know of the first.
    unit = house.machine.unit(2, 60.0)
    assert [piece.lower for piece in unit.pieces] == [0, 3]
    (facts,) = house.local.run([unit], lane="alone", seconds=60.0)
    assert house.machine.review(unit, facts)
    assert not facts.parts and not facts.state_bytes
    house.machine.abandon(unit)
    assert house.tick()
    assert house.rows() == {(0, "b"): 1, (1, "b"): 1}


def test_a_snapshot_that_is_interrupted_begins_again_without_what_is_gone(house: ChangeHouse) -> None:
    show(house, snapshot(10, 1, "a"), snapshot(10, 2, "a"))
    house.again()
    show(house, snapshot(20, 2, "b"), snapshot(20, 3, "b"))
    assert house.rows() == {(2, "b"): 1, (3, "b"): 1}


def test_incremental_rows_are_upserts_and_a_later_change_wins(house: ChangeHouse) -> None:
    show(house, snapshot(10, 1, "a"))
    show(house, streamed(20, "u", "a", "b"))
    show(house, streamed(30, "u", "b", "c"))
    read = Change(ChangePhase.INCREMENTAL, None, "r", 1, None, (1, "c"))
    new = Change(ChangePhase.INCREMENTAL, None, "r", 2, None, (2, "n"))
    show(house, read, new, streamed(40, "u", "c", "d"))
    assert house.rows() == {(1, "d"): 1, (2, "n"): 1}


def test_the_marks_do_not_grow(house: ChangeHouse) -> None:
    sizes: set[int] = set()
    for n in range(10, 50):
        show(house, *(streamed(n * 100 + key, "c", None, "a", n * 100 + key) for key in range(50)))
        facts = read_facts(house.changes.facts, upper_of(house.machine.feeds[0].shard))
        sizes.add(sum(len(item) + len(value) for item, value in facts.items()))
    assert len(sizes) <= 2  # (the fact that the unit before had upserts)


def refused(house: ChangeHouse, *changes: Change) -> TidemillError:
    with pytest.raises(TidemillError) as caught:
        show(house, *changes)
    before = house.rows()
    with pytest.raises(TidemillError):
        house.tick()
    assert house.rows() == before
    assert getattr(caught.value, "permanent", False)
    return caught.value


def test_another_timeline_stops_the_source(house: ChangeHouse) -> None:
    show(house, streamed(20, "c", None, "a"))
    show(house, streamed(30, "u", "a", "b"))
    error = refused(house, replace(streamed(40, "u", "b", "c"), timeline="B"))
    assert error.primary == "the changes come from another upstream than before"
    assert error.detail == (
        'Until now they came from A; in topic "t", partition 0 they come from B. '
        "Positions of different upstreams cannot be compared."
    )


def test_two_timelines_in_one_unit_stop_the_source(house: ChangeHouse) -> None:
    refused(house, streamed(20, "c", None, "a"), replace(streamed(30, "u", "a", "b"), timeline="B"))


def test_a_new_snapshot_may_come_from_another_timeline(house: ChangeHouse) -> None:
    show(house, replace(streamed(20, "c", None, "a"), timeline="A, server_id 1"))
    show(house, snapshot(5, 1, "z"), replace(streamed(7, "u", "z", "y"), timeline="A, server_id 2"))
    assert house.rows() == {(1, "y"): 1}
    refused(house, replace(streamed(9, "u", "y", "x"), timeline="A, server_id 1"))


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("first", ["snapshot", "stream"])
def test_two_connectors_on_one_topic_stop_the_source(
    house: ChangeHouse, first: str, at_once: bool, ways: int
) -> None:
    """Else the second snapshot would take the rows of the first away, and nothing would tell."""
    begin = [snapshot(5, 1, "z"), streamed(7, "u", "z", "y")][: 1 if first == "snapshot" else 2]
    other = replace(snapshot(6, 2, "b"), timeline="B")
    house.source.batch = 1
    if at_once:
        error = refused(house, *begin, other)
    else:
        show(house, *begin, ways=ways)
        error = refused(house, other)
    assert error.primary == "the changes come from another upstream than before"
    assert "Until now they came from A; in" in (error.detail or "")


@pytest.mark.parametrize("first", [1, 2, 3])
def test_rows_of_a_snapshot_that_come_again_behind_changes_are_dropped(
    house: ChangeHouse, first: int
) -> None:
    once = [snapshot(5, 1, "z"), snapshot(5, 2, "z"), streamed(7, "u", "z", "y"), streamed(9, "d", "y", None)]
    house.source.batch = 1
    show(house, *once[:first], ways=3)
    show(house, *once[first:], ways=3)
    assert house.rows() == {(2, "z"): 1}
    show(house, *once[:first], ways=3)
    show(house, *once, ways=3)
    assert house.rows() == {(2, "z"): 1}


def test_incremental_rows_behind_later_changes_are_dropped(house: ChangeHouse) -> None:
    row = Change(ChangePhase.INCREMENTAL, (0, 25, 0), "r", 1, None, (1, "b"))
    once = [streamed(20, "c", None, "b"), row, streamed(30, "u", "b", "c")]
    house.source.batch = 1
    show(house, *once, ways=3)
    show(house, *once, ways=3)
    show(house, *once[1:], ways=2)
    assert house.rows() == {(1, "c"): 1}
    # One that does not say where the log stood counts, as does a later one.
    show(house, replace(row, position=None, after=(1, "d")))
    assert house.rows() == {(1, "d"): 1}
    show(house, replace(row, position=(0, 30, 0), after=(1, "e")))
    assert house.rows() == {(1, "e"): 1}


def test_a_position_that_goes_back_with_new_changes_stops_the_source(house: ChangeHouse) -> None:
    """A database that was restored begins a part of its log again: its changes are no repetitions."""
    show(house, streamed(20, "c", None, "a"))
    show(house, streamed(30, "u", "a", "b"))
    error = refused(house, replace(streamed(25, "u", "a", "z"), committed=31))
    assert error.primary == "the positions of the changes went back"
    assert error.detail == (
        'The change at offset 2 in topic "t", partition 0 has a position before (0, 30, 0), like a '
        "repetition, but was committed later than all changes so far: it is new."
    )


def test_a_second_snapshot_of_several_partitions_stops_the_source(tmp_path: Path) -> None:
    house = ChangeHouse(tmp_path / "data", ChangingSource([[], []]))
    try:
        house.source.topics[0] += [snapshot(10, 1, "a"), streamed(20, "u", "a", "b")]
        house.source.topics[1].append(snapshot(10, 2, "a"))
        house.source.stands = Offsets({0: 2, 1: 1})
        assert house.tick()
        assert house.rows() == {(1, "b"): 1, (2, "a"): 1}
        house.source.topics[0].append(snapshot(30, 1, "c"))
        house.source.stands = Offsets({0: 3, 1: 1})
        with pytest.raises(TidemillError, match="a second snapshot began in a topic of several partitions"):
            house.tick()
    finally:
        house.close()


def test_too_many_changes_of_one_position_stop_the_source(house: ChangeHouse) -> None:
    house.source.batch = 1000
    many = [streamed(20, "c", None, "a", key) for key in range(MAX_AT_POSITION + 1)]
    assert refused(house, *many).primary == f"more than {MAX_AT_POSITION} changes have one position"


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_any_cut_of_any_topic_gives_its_fold(seed: int) -> None:
    run(seed, crashes=False)


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_crash_at_any_step_loses_and_repeats_nothing(seed: int) -> None:
    run(seed, crashes=True)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@settings(max_examples=2000)
@given(st.integers(0, 2**32), st.booleans())
def test_thousands_of_topics(seed: int, crashes: bool) -> None:
    run(seed, crashes=crashes)


@pytest.mark.parametrize("phase", [ChangePhase.SNAPSHOT, ChangePhase.INCREMENTAL])
def test_a_snapshot_behind_changes_of_missing_rows_stops_the_source(
    house: ChangeHouse, phase: ChangePhase
) -> None:
    """They are an error of reads until then (`Invalid data in source`), and further changes go on."""
    show(house, streamed(20, "u", "x", "y"), streamed(30, "d", "gone", None, 2))
    show(house, streamed(40, "u", "y", "z"))
    assert house.rows() == {(1, "x"): -1, (1, "z"): 1, (2, "gone"): -1}
    error = refused(house, replace(snapshot(50, 2, "z"), phase=phase))
    assert error.primary == "a snapshot came after changes whose old rows were never there"
    assert "add up to -1." in (error.detail or "") and 'topic "t"' in (error.detail or "")
    assert "START OFFSET" in (error.hint or "")
