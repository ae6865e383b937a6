"""The time of a read is the oracle's, to the millisecond: with a clock that stands still, which times of a
real run never show, the last write is at that very time."""

from __future__ import annotations

import asyncio

import pytest

from support.clock import ManualClock
from support.reader import reader_of
from tidemill.engine.read.reading import AsOfTime, choose_time
from tidemill.errors import TidemillError
from tidemill.time.oracle import Oracle


class Lease:
    leased = 0

    def extend(self, until: int) -> None:
        self.leased = until


class Reader:
    """A session that reads."""

    def __init__(self, oracle: Oracle, *, explicit: bool = False) -> None:
        self.reader = reader_of(oracle, explicit=explicit)

    def time(self, as_of: AsOfTime | None = None) -> int:
        return asyncio.run(choose_time(self.reader, as_of))


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(Lease(), ManualClock(1_000))


def write(oracle: Oracle) -> int:
    ts = oracle.write_ts()
    oracle.complete(ts)
    return ts


def test_a_read_sees_the_write_before_it_while_the_clock_stands_still(oracle: Oracle) -> None:
    for _ in range(5):
        wrote = write(oracle)
        assert Reader(oracle).time() == wrote


def test_a_block_keeps_its_time_and_the_next_does_not(oracle: Oracle) -> None:
    first = write(oracle)
    reader = Reader(oracle, explicit=True)
    assert reader.time() == first
    second = write(oracle)
    assert reader.time() == first
    assert reader.time(AsOfTime(first, at_least=True)) == first
    with pytest.raises(TidemillError, match="does not match"):
        reader.time(AsOfTime(second, at_least=False))
    assert Reader(oracle, explicit=True).time() == second


def test_as_of_is_the_time_that_was_asked_for(oracle: Oracle) -> None:
    first = write(oracle)
    second = write(oracle)
    assert Reader(oracle).time(AsOfTime(first, at_least=False)) == first
    assert Reader(oracle).time(AsOfTime(first, at_least=True)) == second
