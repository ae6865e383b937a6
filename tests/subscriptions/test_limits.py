"""What is kept for a reader that does not acknowledge: within its limits everything, beyond them a definite
error that tells how to begin anew, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from subscriptions_world import Client, World

from tidemill.errors import TidemillError

FETCH = "FETCH ALL FROM SUBSCRIPTION s WITH (TIMEOUT = 10)"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


async def begin(world: World, options: str) -> Client:
    client = world.session()
    await client.run("CREATE TABLE t (id int) WITH (RETAIN HISTORY FOR '1 ms')")
    await client.run("INSERT INTO t VALUES (1)")
    await client.run(f"CREATE SUBSCRIPTION s FOR t WITH ({options})")
    return client


async def lost(client: Client) -> str:
    """Until the position is lost: why."""
    state = "SELECT lost FROM mz_subscriptions WHERE name = 's'"
    found: list[str | None] = [None]
    while found[0] is None:
        found = [row[0] for row in await client.run(state)]
    return str(found[0])


@pytest.mark.parametrize(
    ("options", "why"),
    [("RETAIN '20 ms'", "kept for 20 milliseconds (RETAIN)"), ("RETAIN SIZE '1 B'", "at most 1 are kept")],
)
def test_beyond_the_limits(world: World, options: str, why: str) -> None:
    async def play() -> None:
        client = await begin(world, options)
        world.maintain()
        rows = await client.run(FETCH)
        assert [row[3] for row in rows if not row[1]] == [1], "nothing has changed: nothing is too old"
        await client.run("INSERT INTO t VALUES (2)")
        assert why in await lost(client)
        for statement in (FETCH, FETCH, "ACKNOWLEDGE SUBSCRIPTION s TO 5"):
            with pytest.raises(TidemillError, match="has lost its position") as error:
                await client.run(statement)
            assert error.value.sqlstate == "55000"
            assert error.value.detail is not None and why in error.value.detail
            assert error.value.hint is not None and "ALTER SUBSCRIPTION s RESET" in error.value.hint
        await client.close()
        world.restart()
        client = world.session()
        with pytest.raises(TidemillError, match="has lost its position"):
            await client.run(FETCH)
        await client.run("ALTER SUBSCRIPTION s RESET")
        rows = await client.run(FETCH)
        assert sorted(row[3] for row in rows if not row[1]) == [1, 2]
        await client.close()

    world.loop.run(play())


def test_what_is_acknowledged_has_no_age(world: World) -> None:
    """A reader that acknowledges keeps its place however long ago the changes were."""

    async def play() -> None:
        client = await begin(world, "RETAIN '1 s'")
        for n in range(2, 5):
            await client.run(f"INSERT INTO t VALUES ({n})")
            await client.run(FETCH)
            await client.run("ACKNOWLEDGE SUBSCRIPTION s")
        state = "SELECT lag > 1500, unacknowledged_bytes, lost FROM mz_subscriptions WHERE name = 's'"
        while not (found := await client.run(state))[0][0]:
            world.maintain()
        assert found == [(True, 0, None)]
        await client.run("INSERT INTO t VALUES (5)")
        assert [row[3] for row in await client.run(FETCH) if not row[1]] == [5]
        await client.close()

    world.loop.run(play())


def test_privileges_and_names(world: World) -> None:
    async def play() -> None:
        client = await begin(world, "RETAIN = '1 day'")
        await client.run("CREATE ROLE r LOGIN")
        await client.run("GRANT r TO materialize; GRANT CREATE ON SCHEMA public TO r")
        other = world.session("r")
        for statement in (FETCH, "ACKNOWLEDGE SUBSCRIPTION s TO 5"):
            with pytest.raises(TidemillError, match="permission denied for subscription s"):
                await other.run(statement)
        with pytest.raises(TidemillError, match="must be owner of subscription s"):
            await other.run("ALTER SUBSCRIPTION s RESET")
        await client.run("GRANT USAGE ON SUBSCRIPTION s TO r")
        assert [row[3] for row in await other.run(FETCH) if not row[1]] == [1]
        await client.run("ALTER SUBSCRIPTION s OWNER TO r")
        await other.close()
        other = world.session("r")
        with pytest.raises(TidemillError, match="permission denied for table t"):
            await other.run(FETCH)  # it reads with the rights of its owner
        with pytest.raises(TidemillError, match="nothing was fetched from subscription"):
            await client.run("ACKNOWLEDGE SUBSCRIPTION s")
        with pytest.raises(TidemillError, match='"t" is not a subscription'):
            await client.run("FETCH FROM SUBSCRIPTION t")
        await client.run("CREATE VIEW v AS SELECT id FROM t")
        await client.run("CREATE SUBSCRIPTION over_view FOR v")
        with pytest.raises(TidemillError, match="cannot replace view v: subscription over_view"):
            await client.run("CREATE OR REPLACE VIEW v AS SELECT id + 1 AS id FROM t")
        await client.close()
        await other.close()

    world.loop.run(play())


def test_a_cursor_may_be_called_subscription(world: World) -> None:
    async def play() -> None:
        client = world.session()
        await client.run("BEGIN")
        await client.run("DECLARE subscription CURSOR FOR VALUES (1)")
        assert await client.run("FETCH FROM subscription") == [(1,)]
        await client.run("COMMIT")
        await client.close()

    world.loop.run(play())
