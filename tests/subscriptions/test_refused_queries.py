"""Queries that a durable subscription refuses, by name, however they would be followed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from subscriptions_world import World

from tidemill.errors import TidemillError


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))

    async def tables() -> None:
        client = world.session()
        await client.run("CREATE TABLE t (a int, b int, f float8); CREATE SCHEMA other")
        await client.close()

    world.loop.run(tables())
    yield world
    world.close()


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("(SELECT a FROM t LIMIT 3)", "with LIMIT is not supported"),
        # Followed key by key, and still not the same when it begins anew.
        ("(SELECT a, row_number() OVER (PARTITION BY a ORDER BY b) FROM t)", "with a window function"),
        ("(SELECT a, sum(f) FROM t GROUP BY a)", "with sum of floats"),
        ("(SELECT a, array_agg(b) FROM t GROUP BY a)", "with array_agg"),
        ("(SELECT a, now() FROM t)", "that uses now"),
        ("(SELECT a, current_user FROM t)", "that uses current_user"),
        ("(SELECT 1 AS one)", "needs a relation to follow"),
        ("(SELECT name FROM mz_tables)", "cannot follow system relations"),
        ("mz_tables", "is a system relation"),
        ("(SELECT a FROM t) WITHIN TIMESTAMP ORDER BY a", "WITHIN TIMESTAMP ORDER BY of a subscription"),
        ("t ENVELOPE UPSERT (KEY (x))", 'column "x" does not exist'),
        ("missing", 'relation "missing" does not exist'),
        ("other", 'relation "other" does not exist'),
        ("t WITH (RETAIN '-1 s')", "RETAIN cannot be"),
        ("t WITH (RETAIN SIZE 'much')", "invalid value"),
        ("t AS OF 5", "syntax error"),
    ],
)
def test_refused(world: World, query: str, error: str) -> None:
    async def play() -> None:
        client = world.session()
        with pytest.raises(TidemillError, match=error):
            await client.run(f"CREATE SUBSCRIPTION s FOR {query}")
        await client.close()

    world.loop.run(play())
