"""`consume()` of the Python client, and psycopg, which knows nothing of subscriptions, against the wire
protocol of an engine in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest
from subscriptions_world import World

import tidemill
from tidemill.client import Client, Consumer, ServerError
from tidemill.errors import InvalidValue
from tidemill.server.pgwire.auth import trust
from tidemill.server.pgwire.listener import Listener


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    world = World(tmp_path_factory.mktemp("world"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> Listener:
        return Listener(world.engine, max_connections=lambda: 100, authentication=trust)

    listener = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    port = asyncio.run_coroutine_threadsafe(listener.start("127.0.0.1", 0), loop).result()
    yield f"postgresql://materialize@127.0.0.1:{port}/materialize"
    asyncio.run_coroutine_threadsafe(listener.stop(grace=30), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    world.close()


@pytest.fixture
def db(url: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    """With a table `t` and its subscription `s` of the test's own."""
    name = request.node.name
    with tidemill.connect(url) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    with tidemill.connect(url, dbname=name) as db:
        db.execute("CREATE TABLE t (id int, item text)")
        db.execute("INSERT INTO t VALUES (1, 'apple'), (2, NULL)")
        db.execute("CREATE SUBSCRIPTION s FOR t")
        yield db


def read(consumer: Consumer, count: int) -> list[int]:
    """The ids of the rows of the next batches, up to so many."""
    found: list[int] = []
    while len(found) < count:
        found += [row["id"] for row in next(consumer).rows()]
    return found


def test_consume(db: Client) -> None:
    with db.consume("s") as consumer:
        assert consumer.position is None
        batch = next(consumer)
        assert batch.rows() == [
            {"mz_diff": 1, "id": 1, "item": "apple"},
            {"mz_diff": 1, "id": 2, "item": None},
        ]
        assert consumer.position is not None and consumer.position > batch.time
        consumer.acknowledge()
        db.execute("INSERT INTO t VALUES (3, 'plum')")
        assert read(consumer, 1) == [3]
        stored = consumer.position
    with db.consume("public.s") as again:  # it was not acknowledged
        assert read(again, 1) == [3]
    with db.consume("s", position=stored) as exactly:
        db.execute("INSERT INTO t VALUES (4, 'pear')")
        assert read(exactly, 1) == [4]
        exactly.acknowledge()
    with db.consume("s", position=stored) as late, pytest.raises(ServerError, match="was passed"):
        next(late)
    with pytest.raises(InvalidValue, match="is no name"):
        db.consume("s; DROP TABLE t")


def test_lost_connections(db: Client, url: str) -> None:
    """Rows come once although the connection ends between them and in a wait; the latest reader wins."""
    (mine,) = db.query("SELECT pg_backend_pid() AS pid").rows()
    others = f"pid NOT IN (pg_backend_pid(), {mine['pid']})"
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    with db.consume("s", progress=True) as consumer:
        assert read(consumer, 2) == [1, 2]
        for n in range(3, 8):
            with psycopg.connect(url) as admin:
                admin.execute(end.encode())
            db.execute(f"INSERT INTO t VALUES ({n}, NULL)")
            assert read(consumer, 1) == [n]
        assert consumer.reconnects >= 1
        with db.consume("s") as other:
            assert len(read(other, 7)) == 7
        with pytest.raises(ServerError, match="is read by another session"):
            while True:
                next(consumer)


def test_async(db: Client, url: str) -> None:
    async def consume() -> list[int]:
        found: list[int] = []
        async with (
            await tidemill.connect_async(url, dbname="test_async") as client,
            await client.consume("s") as consumer,
        ):
            async for batch in consumer:
                found += [row["id"] for row in batch.rows()]
                await consumer.acknowledge()
                if len(found) == 2:
                    await client.execute("INSERT INTO t VALUES (3, 'plum')")
                if len(found) == 3:
                    break
        return found

    assert asyncio.run(consume()) == [1, 2, 3]


def test_psycopg(db: Client, url: str) -> None:
    """Its positions are numerics; its transactions begin by themselves."""
    with psycopg.connect(url, dbname="test_psycopg") as c:
        rows = c.execute("FETCH 10 FROM SUBSCRIPTION s").fetchall()
        assert [row[3] for row in rows if not row[1]] == [1, 2]
        assert rows[-1][1], "the last row is a position"
        c.execute("ACKNOWLEDGE SUBSCRIPTION s TO %s", (rows[-1][0],))
        c.rollback()
        assert c.execute("FETCH FROM SUBSCRIPTION s WITH (TIMEOUT = 0)").fetchall() == []
        c.execute("ACKNOWLEDGE SUBSCRIPTION s")
        c.commit()
    db.execute("ALTER SUBSCRIPTION s RENAME TO renamed")
    with psycopg.connect(url, dbname="test_psycopg") as c:
        found = c.execute("SELECT position, reading, lost FROM mz_subscriptions WHERE name = 'renamed'")
        assert found.fetchall() == [(rows[-1][0], False, None)]
        again = c.execute("FETCH ALL FROM SUBSCRIPTION renamed WITH (TIMEOUT = 0)").fetchall()
        assert all(row[1] for row in again)
