"""Several readers divide a durable subscription by key: together they have every change once, all changes of
a key come to one of them, and what is kept follows the one that is furthest behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from subscriptions_world import World

from tidemill.errors import TidemillError

SHARES = 3


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def fetch(share: int) -> str:
    return f"FETCH ALL FROM SUBSCRIPTION s WITH (TIMEOUT = 10, SHARE = {share})"


@pytest.mark.parametrize("envelope", ["", "ENVELOPE UPSERT (KEY (k, n))"])
def test_shares(world: World, envelope: str) -> None:
    async def play() -> None:
        writer = world.session()
        await writer.run("CREATE TABLE t (n int, k text) WITH (RETAIN HISTORY FOR '1 ms')")
        options = f"WITH (SHARES = {SHARES}, SHARE KEY = (k))"
        await writer.run(f"CREATE SUBSCRIPTION s FOR t {envelope} {options}")
        (row,) = await writer.run("SHOW CREATE SUBSCRIPTION s")
        assert str(row[1]).endswith(f"WITH (SHARES = {SHARES}, SHARE KEY = (k))")
        readers = {share: world.session() for share in range(1, SHARES + 1)}
        keys: dict[int, set[str]] = {share: set() for share in readers}
        came: list[int] = []
        written = 0

        async def write(count: int) -> None:
            nonlocal written
            rows = ", ".join(f"({written + n}, 'key {(written + n) % 20}')" for n in range(count))
            await writer.run(f"INSERT INTO t VALUES {rows}")
            written += count

        async def read(share: int) -> int:
            rows = await readers[share].run(fetch(share))
            assert rows[-1][1], "the last row is a position"
            number, key = (4, 3) if envelope else (3, 4)
            came.extend(row[number] for row in rows if not row[1])
            keys[share] |= {row[key] for row in rows if not row[1]}
            return rows[-1][0]

        await write(100)
        for share in readers:
            await read(share)
        assert sorted(came) == list(range(100))
        assert all(keys.values()) and sum(map(len, keys.values())) == 20, "a key has one reader"
        # One share falls behind; the others go on, and dying does not harm it.
        await readers[1].run("ACKNOWLEDGE SUBSCRIPTION s SHARE 1")
        for share in (1, 2):
            await write(20)
            await read(share)
            await readers[share].run(f"ACKNOWLEDGE SUBSCRIPTION s SHARE {share}")
        world.maintain()
        found = await writer.run(
            "SELECT share, reading FROM mz_subscriptions WHERE name = 's' ORDER BY share"
        )
        assert found == [(1, True), (2, True), (3, True)]
        for reader in readers.values():
            await reader.close()
        await writer.close()
        world.restart()
        world.maintain()
        readers.update({share: world.session() for share in readers})
        writer = world.session()
        await write(20)
        came.clear()
        await read(3)  # it has acknowledged nothing: all of its keys come
        assert sorted({f"key {n % 20}" for n in came}) == sorted(keys[3])
        assert sorted(came) == [n for n in range(written) if f"key {n % 20}" in keys[3]]
        with pytest.raises(TidemillError, match="has 3 shares"):
            await writer.run("FETCH FROM SUBSCRIPTION s")
        with pytest.raises(TidemillError, match="has no share 4"):
            await writer.run(fetch(4))
        other = world.session()
        await other.run(fetch(3))
        with pytest.raises(TidemillError, match=r'share 3 of subscription "s" is read by another session'):
            await readers[3].run(fetch(3))
        for session in (*readers.values(), writer, other):
            await session.close()

    world.loop.run(play())


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("WITH (SHARES = 2)", "SHARES needs a key"),
        ("WITH (SHARES = 0)", "SHARES must be between 1 and 256"),
        ("WITH (SHARE KEY = (n))", "SHARE KEY needs SHARES"),
        ("WITH (SHARES = 2, SHARE KEY = (x))", 'column "x" does not exist'),
        (
            "ENVELOPE UPSERT (KEY (n)) WITH (SHARES = 2, SHARE KEY = (k))",
            "must be a part of the key",
        ),
    ],
)
def test_what_is_refused(world: World, rest: str, error: str) -> None:
    async def play() -> None:
        client = world.session()
        await client.run("CREATE TABLE t (n int, k text)")
        with pytest.raises(TidemillError, match=error):
            await client.run(f"CREATE SUBSCRIPTION s FOR t {rest}")
        await client.close()

    world.loop.run(play())
