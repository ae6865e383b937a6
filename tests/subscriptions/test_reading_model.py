"""A durable subscription beside a model: whatever a reader, its client and the server do, a reader that
stores its position with its effects has every change once, and one that only acknowledges gets the rest.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from subscriptions_world import World

from tidemill.errors import QueryCanceled

# One letter a step; see `Play`.
STEPS = "iiiffFzcaACRpmtrB"


class Play:
    """One table, its subscription, and a reader: `effects` and `position` are stored together."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.writer, self.reader = world.session(), world.session()
        self.written: list[int] = []
        self.effects: dict[int, int] = {}  # by row: the time at which it came
        self.position: int | None = None
        self.acknowledged = 0

    async def begin(self) -> None:
        # Without the subscription, the maintenance forgets at once.
        await self.writer.run(f"CREATE TABLE {self.name} (id int) WITH (RETAIN HISTORY FOR '1 ms')")
        await self.insert()
        await self.writer.run(f"CREATE SUBSCRIPTION s_{self.name} FOR {self.name}")

    async def insert(self) -> None:
        """In one commit and in two."""
        for count in (3, 1):
            ids = [len(self.written) + n for n in range(count)]
            self.written += ids
            await self.writer.run(f"INSERT INTO {self.name} VALUES {', '.join(f'({n})' for n in ids)}")

    def fetch(self, count: object, timeout: float = 0) -> str:
        at = "" if self.position is None else f", POSITION = {self.position}"
        return f"FETCH {count} FROM SUBSCRIPTION s_{self.name} WITH (TIMEOUT = {timeout}{at})"

    def store(self, rows: list[tuple[object, ...]]) -> None:
        """Raises if a row comes twice, or after its time was complete."""
        for time, progressed, diff, row in rows:
            assert isinstance(time, int)
            if progressed:
                assert self.position is None or time >= self.position
                self.position = time
            else:
                assert diff == 1 and isinstance(row, int)
                assert row not in self.effects, f"{row} came twice"
                assert self.position is None or time >= self.position
                self.effects[row] = time
        assert not rows or rows[-1][1], "the last row tells that its times are complete"

    async def step(self, step: str) -> None:
        match step:
            case "i":
                await self.insert()
            case "f":
                self.store(await self.reader.run(self.fetch(1)))
            case "F":
                self.store(await self.reader.run(self.fetch("ALL", 0.02)))
            case "z":  # another count
                self.store(await self.reader.run(self.fetch(5)))
            case "c":  # cancelled before, while or after it returns rows
                running = asyncio.ensure_future(self.reader.run(self.fetch("ALL", 60)))
                for _ in range(len(self.written) % 7):
                    await asyncio.sleep(0.001)
                while not running.done():
                    self.reader.session.cancel()
                    await asyncio.sleep(0.001)
                try:
                    self.store(running.result())
                except QueryCanceled:
                    pass
            case "a" if self.position is not None:
                await self.reader.run(f"ACKNOWLEDGE SUBSCRIPTION s_{self.name} TO $1", self.position)
                self.acknowledged = self.position
            case "A" if self.position is not None:  # with the effects of a transaction
                await self.reader.run("BEGIN")
                await self.reader.run(f"ACKNOWLEDGE SUBSCRIPTION s_{self.name} TO {self.position}")
                await self.reader.run("COMMIT")
                self.acknowledged = self.position
            case "R" if self.position is not None:
                await self.reader.run("BEGIN")
                await self.reader.run(f"ACKNOWLEDGE SUBSCRIPTION s_{self.name} TO {self.position}")
                await self.reader.run("ROLLBACK")
            case "p":  # another reader, which has no position of its own
                other = self.world.session()
                rows = await other.run(f"FETCH ALL FROM SUBSCRIPTION s_{self.name} WITH (TIMEOUT = 0)")
                came = [row[3] for row in rows if not row[1]]
                done = {n for n, time in self.effects.items() if time < self.acknowledged}
                assert sorted(came) == sorted(set(self.written) - done)
                await other.close()
                await self.again()
            case "B":  # the client stops in the middle
                await self.reader.abandon(self.fetch("ALL"))
            case "m":
                self.world.maintain()
            case "t":  # the reader dies
                await self.again()
            case "r":
                await self.reader.close()
                await self.writer.close()
                self.world.restart()
                self.writer, self.reader = self.world.session(), self.world.session()
            case _:
                pass

    async def again(self) -> None:
        await self.reader.close()
        self.reader = self.world.session()

    async def end(self) -> None:
        while len(self.effects) < len(self.written):
            rows = await self.reader.run(self.fetch("ALL", 10))
            assert any(not row[1] for row in rows), "rows are missing"
            self.store(rows)
        self.store(await self.reader.run(self.fetch("ALL", 0.02)))
        assert sorted(self.effects) == self.written
        await self.reader.close()
        await self.writer.run(f"DROP TABLE {self.name} CASCADE")
        await self.writer.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


NAMES = itertools.count(1)


@example(steps="FiRp")  # a transaction that is rolled back acknowledges nothing
@example(steps="FiFRp")
@example(steps="FiFAip")
@example(steps="iBF")  # rows that a client did not read
@example(steps="iBrF")
@example(steps="FaimmtFam")  # what is kept between two connections
@example(steps="Farimp")
@example(steps="iccccF")
@settings(max_examples=20)
@given(steps=st.text(STEPS, min_size=5, max_size=25))
def test_every_change_once(world: World, steps: str) -> None:
    async def play() -> None:
        played = Play(world, f"t{next(NAMES)}")
        await played.begin()
        for step in steps:
            await played.step(step)
        await played.end()

    world.loop.run(play())


def test_what_was_acknowledged_is_let_go(world: World) -> None:
    """The hold follows the acknowledged position, and nothing before it can be asked for."""

    async def play() -> None:
        played = Play(world, f"t{next(NAMES)}")
        await played.begin()
        for step in "iFaiFm":
            await played.step(step)
        table = next(t for t in world.engine.catalog.state.tables() if t.name == played.name)
        shard = world.engine.environment.open_shard(table.shard)
        await world.until(lambda: (world.maintain(), shard.since)[1] == played.acknowledged - 1)
        await played.end()

    world.loop.run(play())
