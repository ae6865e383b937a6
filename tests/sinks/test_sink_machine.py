"""A sink's stream is the collection's history, once, whatever dies, however many write it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from sinks_world import Died, Mortal, World, messages, recovered

from support.shards import memory_folder
from tidemill.catalog.retention import follow
from tidemill.cdcv2 import Progress
from tidemill.errors import QueryCanceled
from tidemill.sinks import encoding, machine
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.target import SinkError
from tidemill.types.arrow import shard_schema
from tidemill.types.model import INT8, TEXT, Column, RelationDesc


@pytest.fixture
def world() -> Iterator[World]:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield World(Path(folder))


def some_rows(rng: Random) -> list[tuple[tuple[int, str], int]]:
    rows = {(rng.randrange(6), rng.choice("abc")): rng.choice([-1, 1, 1, 2]) for _ in range(rng.randrange(4))}
    return list(rows.items())


@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("writers", ["one", "beside", "shares"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_the_history_comes_whole(world: World, writers: str, form: str, seed: int) -> None:
    rng = Random(f"{writers} {form} {seed}")
    as_of, snapshot = 5, rng.random() < 0.7
    world.append([((n, "first"), 1) for n in range(8)], as_of)
    shares = {"one": [(0, 1)], "beside": [(0, 1), (0, 1)], "shares": [(0, 2), (1, 2)]}[writers]

    def born(n: int) -> SinkMachine:
        target = Mortal(world.files(form, shares[n], f"w{n}"), rng, 0.08)
        return world.machine(as_of, target, form, share=shares[n], snapshot=snapshot)

    alive = {n: born(n) for n in range(len(shares))}
    for _ in range(60):
        world.append(some_rows(rng), (world.shard.upper or 0) + rng.randrange(1, 4))
        for n in list(alive):
            if rng.random() < 0.3:
                continue  # it is late
            try:
                while alive[n].step():
                    pass
            except Died:
                if rng.random() < 0.5:
                    # The process is gone, and what it held with it: nothing is let go before the next holds.
                    alive[n].close()
                    alive[n] = born(n)
        if all(m.holding for m in alive.values()):
            follow(world.shard, world.shard.upper or 0, 0)
    for n, one in alive.items():
        one.close()
        target = world.files(form, shares[n], f"w{n}")
        last = world.machine(as_of, target, form, share=shares[n], snapshot=snapshot)
        run(world, last)
        last.close()

    said = messages(world.folder)
    rng.shuffle(said)
    found, upper = recovered(said, 0 if snapshot else as_of + 1)
    assert upper == world.shard.upper
    assert found == world.expected(as_of, upper, snapshot=snapshot)


def run(world: World, one: SinkMachine) -> None:
    while one.frontier != world.shard.upper:
        one.step()


def at_once(world: World) -> SinkMachine:
    return world.machine(4, world.files("json"))


def test_history_is_held_until_it_is_written(world: World) -> None:
    world.append([((1, "a"), 1)], 5)
    one = at_once(world)
    assert not one.holding and not one.begun
    run(world, one)
    world.append([((1, "a"), -1)], 10)
    world.append([((2, "a"), 1)], 20)
    assert world.shard.downgrade_since(19) == 4  # what was stated is up to 5
    run(world, one)
    assert world.shard.downgrade_since(19) == 19
    one.close()
    assert recovered(messages(world.folder)) == (world.expected(4, 20), 20)


def test_what_is_forgotten_is_an_error_that_says_so(world: World) -> None:
    world.append([((1, "a"), 1)], 5)
    one = at_once(world)
    run(world, one)
    one.close()
    world.append([((1, "a"), -1)], 30)
    world.shard.downgrade_since(20)
    again = at_once(world)
    with pytest.raises(SinkError, match="what changed after 4 is forgotten") as found:
        again.step()
    assert found.value.hint is not None and "CREATE it anew" in found.value.hint
    again.close()
    assert recovered(messages(world.folder)) == (world.expected(4, 5), 5)


def test_many_times_are_counted_by_several_statements(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_COUNTS", 3)
    world.append([], 5)
    one = at_once(world)
    run(world, one)
    for upper in range(6, 16):
        world.append([((upper, "x"), 1)], upper)
    one.step()
    one.close()
    said = messages(world.folder)
    counted = [len(m.counts) for m in said if isinstance(m, Progress)]
    assert counted == [0, 3, 3, 3, 1]
    assert recovered(said) == (world.expected(4, 15), 15)


def test_messages_are_cut_by_their_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MESSAGE_BYTES", 600)
    monkeypatch.setattr(encoding, "LARGE_BYTES", 300)
    world.append([((n, "x" * (5 if n else 320)), 1) for n in range(100)], 5)
    one = at_once(world)
    run(world, one)
    one.close()
    lines = [line for path in sorted(world.folder.glob("0*")) for line in path.read_bytes().splitlines()]
    assert [len(line) for line in lines if len(line) > 300] == [len(lines[0])]
    assert recovered(messages(world.folder)) == (world.expected(4, 5), 5)


def test_a_null_that_the_schema_rules_out_stops_the_sink() -> None:
    desc = RelationDesc((Column("k", INT8), Column("v", TEXT, nullable=False)))
    with TemporaryDirectory(dir=memory_folder()) as folder:
        world = World(Path(folder), desc)
        world.append([((1, "a"), 1)], 5)
        one = at_once(world)
        run(world, one)
        world.append([((1, None), 1)], 6)
        with pytest.raises(SinkError, match='column "v" has null values'):
            one.step()
        one.close()
        assert recovered(messages(world.folder))[1] == 5


def test_a_relation_with_an_error_is_written_up_to_it(world: World) -> None:
    world.append([((1, "a"), 1)], 5)
    one = at_once(world)
    run(world, one)
    world.append([((2, "b"), 1)], 7)
    error = {"mz_timestamp": 8, "mz_diff": 1, "mz_error": "division by zero\nrow 3"}
    rows = pa.Table.from_pylist([{"k": None, "v": None, **error}], schema=shard_schema(world.desc))
    world.shard.compare_and_append([world.shard.write_part(rows, job="test")], 7, 12)
    with pytest.raises(SinkError, match="the relation has an error from 8 on: division by zero"):
        one.step()
    one.close()
    found, upper = recovered(messages(world.folder))
    assert upper == 8 and found == world.expected(4, 8)


def test_a_sink_that_is_cancelled_ends(world: World) -> None:
    world.append([((1, "a"), 1)], 5)
    one = at_once(world)
    one.cancel()
    with pytest.raises(QueryCanceled):
        one.step()
    one.close()
    assert not list(world.folder.glob("0*"))
