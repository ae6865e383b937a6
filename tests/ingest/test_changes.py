"""ENVELOPE DEBEZIUM in the tick: whatever Debezium repeats, each change is there once, at every time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.changing import Change, ChangeHouse, ChangingSource, Connector, Database, fold
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.errors import TidemillError
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
    for _ in range(rng.randint(0, 12)):
        for _ in range(rng.randint(0, 3)):
            database.commit()
        step = rng.random()
        if step < 0.5:
            connector.stream(rng.choice([None, 1, 2]))
        elif step < 0.65:
            connector.flush()
        elif step < 0.85:
            connector.kill()
        elif step < 0.95:
            connector.incremental()
        else:
            # The offsets are lost, or the connector is told to.
            connector.snapshot(rng.choice([0, 2]))
            connector.snapshot()
    connector.stream()
    # The test's own fold agrees with the table, except for rows that nothing tells are gone: a snapshot of an
    # empty table has no records.
    if database.rows:
        assert set(fold(connector.topic)) >= set(database.rows.values())
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


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_any_cut_of_any_topic_gives_its_fold(seed: int) -> None:
    run(seed, crashes=False)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_crash_at_any_step_loses_and_repeats_nothing(seed: int) -> None:
    run(seed, crashes=True)


@pytest.mark.chaos
@settings(max_examples=5000)
@given(st.integers(0, 2**32), st.booleans())
def test_thousands_of_topics(seed: int, crashes: bool) -> None:
    run(seed, crashes=crashes)
