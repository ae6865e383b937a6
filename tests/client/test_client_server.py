"""The client against a real server: statements, every output, live tables, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from client_world import name, url, wait_for

import tidemill
from support.server import ServerProcess
from tidemill.client import (
    Changes,
    Client,
    Closed,
    ConnectionFailed,
    HistoryGone,
    LiveTable,
    NoRows,
    ServerError,
    TooLarge,
)
from tidemill.errors import UndefinedObject

pytestmark = pytest.mark.server


@pytest.fixture
def db(plain_server: ServerProcess) -> Iterator[Client]:
    with tidemill.connect(url(plain_server)) as client:
        yield client


@pytest.fixture
def table(db: Client) -> str:
    made = name()
    db.execute(f"CREATE TABLE {made} (id int, name text)")
    return made


def test_statements(db: Client, table: str) -> None:
    assert db.execute(f"INSERT INTO {table} VALUES (%s, %s), (2, NULL)", [1, "it's"]) == "INSERT 0 2"
    assert {"name": table} in db.query("SHOW TABLES").rows()
    assert db.query("SELECT 1 AS a, 'x' AS b, 2.5 AS c").rows() == [{"a": 1, "b": "x", "c": Decimal("2.5")}]
    (row,) = db.query("SELECT 1::numeric AS n").rows()
    assert str(row["n"]) == "1"
    with pytest.raises(NoRows, match=r"was carried out \(INSERT 0 1\), and returns no rows"):
        db.query(f"INSERT INTO {table} VALUES (3, 'x')")
    with pytest.raises(NoRows, match="no statement"):
        db.query("")
    with pytest.raises(ServerError) as e:
        db.execute("SELEC 1")
    assert e.value.sqlstate == "42601" and not e.value.transient
    assert db.execute("SELECT 1") == "SELECT 1", "an error leaves the connection usable"


def test_a_subscription(db: Client, table: str) -> None:
    db.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    with db.subscribe(table) as changes:
        first = next(changes)
        assert first.snapshot and first.rows() == [{"mz_diff": 1, "id": 1, "name": "a"}]
        db.execute(f"INSERT INTO {table} VALUES (2, NULL), (2, NULL)")
        second = next(changes)
        assert not second.snapshot and second.time > first.time
        assert second.rows() == [{"mz_diff": 2, "id": 2, "name": None}]
        assert changes.time is not None and changes.time >= second.time
        assert changes.reconnects == 0 and changes.trouble is None
    assert list(changes) == [], "closed"


def test_where_it_begins_and_ends(db: Client, table: str) -> None:
    with db.subscribe(table) as watch:
        start = next(watch).time
        times: list[int] = []
        for n in range(4):
            db.execute(f"INSERT INTO {table} VALUES ({n}, 'x')")
            times.append(next(watch).time)
    later = list(db.subscribe(table, snapshot=False, as_of=times[0], up_to=times[3]))
    assert [b.time for b in later] == times[1:3]
    both = list(db.subscribe(table, as_of=times[1], up_to=times[2] + 1))
    assert [(b.time, b.snapshot, len(b)) for b in both] == [(times[1], True, 2), (times[2], False, 1)]
    assert list(db.subscribe(table, as_of=start, up_to=start)) == []
    earliest = next(iter(db.subscribe(table, as_of="earliest")))
    assert earliest.time <= start and len(earliest) == 0
    assert sum(len(b) for b in db.subscribe(table, up_to="latest")) == 4


def test_progress_without_changes(db: Client, table: str) -> None:
    with db.subscribe(table, progress=True) as ticks:
        times = [next(ticks).time for _ in range(4)]
    assert times == sorted(set(times))


def test_envelopes_and_order(db: Client, table: str) -> None:
    with db.subscribe(table) as watch:
        start = next(watch).time
        db.execute(f"INSERT INTO {table} VALUES (2, 'b'), (1, 'a'), (3, 'c'), (3, 'd')")
        end = next(watch).time + 1
    at: dict[str, Any] = {"snapshot": False, "as_of": start, "up_to": end}
    (upsert,) = db.subscribe(table, key=["id"], **at)
    assert upsert.rows() == [
        {"mz_state": "upsert", "id": 1, "name": "a"},
        {"mz_state": "upsert", "id": 2, "name": "b"},
        {"mz_state": "key violation", "id": 3, "name": None},
    ]
    (debezium,) = db.subscribe(table, key=["id"], envelope="debezium", **at)
    assert debezium.rows()[0] == {"mz_state": "insert", "id": 1, "before_name": None, "after_name": "a"}
    (ordered,) = db.subscribe(table, order_by=["name DESC"], **at)
    assert [row["name"] for row in ordered.rows()] == ["d", "c", "b", "a"]
    assert list(ordered.to_polars().columns) == ["mz_diff", "id", "name"]


def test_a_live_table(db: Client, table: str) -> None:
    db.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    said: list[tuple[str, int]] = []

    def on_update(live: LiveTable, changes: Changes) -> None:
        said.append(("update", len(live)))
        assert changes.inserted.rows() == [{"id": 2, "name": "b"}]
        live.close()

    live = db.live_table(
        table, key=["id"], on_snapshot=lambda t: said.append(("snapshot", len(t))), on_update=on_update
    )
    with live:
        live.start()
        assert live.wait(60) and live.get(1) == {"id": 1, "name": "a"}
        db.execute(f"INSERT INTO {table} VALUES (2, 'b')")
        live.join(60)
    assert said == [("snapshot", 1), ("update", 2)]
    assert sorted(row["id"] for row in live.rows()) == [1, 2]
    assert live.to_polars().height == 2 and live.get(2) == {"id": 2, "name": "b"}


def test_time_goes_on_while_nothing_changes(db: Client, table: str) -> None:
    with db.live_table(table).start() as live:
        assert live.wait(60)
        first = live.time
        wait_for(lambda: live.time != first)
        assert len(live) == 0 and live.lag is not None


def test_what_a_callback_raises_ends_the_table(db: Client, table: str) -> None:
    def fail(_: LiveTable) -> None:
        raise RuntimeError("no room")

    with db.live_table(table, on_snapshot=fail) as live, pytest.raises(RuntimeError, match="no room"):
        live.run()
    with db.live_table(table, on_snapshot=fail).start() as live, pytest.raises(RuntimeError, match="no room"):
        live.join(60)


def test_close_from_another_thread(db: Client, table: str) -> None:
    subscription = db.subscribe(table)
    next(subscription)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(len(list(subscription))))
    thread.start()
    subscription.close()
    thread.join(60)
    assert seen == [0] and subscription.closed
    client = tidemill.connect(db._target)  # pyright: ignore[reportPrivateUsage]
    live = client.live_table(table).start()
    assert live.wait(60)
    client.close()
    live.join(60)
    with pytest.raises(Closed):
        client.subscribe(table)
    with pytest.raises(Closed):
        client.query("SELECT 1")


def test_errors(db: Client, table: str) -> None:
    cases: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("nothing", {}, ServerError, "nothing"),
        (table, {"key": ["nr"]}, ServerError, 'column "nr" does not exist'),
        (table, {"as_of": 1}, HistoryGone, "could not find a valid timestamp"),
        (f"SELECT now(), id FROM {table}", {}, ServerError, "now()"),
    ]
    for query, options, kind, text in cases:
        with pytest.raises(kind) as e:
            list(db.subscribe(query, **options))
        assert text in str(e.value)
    with db.live_table(table, key=["nr"]) as live, pytest.raises(UndefinedObject, match='"nr"'):
        live.run()
    with pytest.raises(ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1"):
        tidemill.connect("postgresql://127.0.0.1:1/x")


def test_a_dropped_table_ends_it(db: Client, table: str) -> None:
    with db.subscribe(table) as changes:
        next(changes)
        db.execute(f"DROP TABLE {table}")
        with pytest.raises(ServerError, match="was dropped") as e:
            next(changes)
        assert e.value.sqlstate == "42704"
        with pytest.raises(StopIteration):
            next(changes)


def test_one_time_that_is_too_large(db: Client, table: str) -> None:
    db.execute(f"INSERT INTO {table} VALUES " + ", ".join(f"({n}, 'text')" for n in range(1000)))
    with pytest.raises(TooLarge, match="larger than max_bytes"):
        next(db.subscribe(table, max_bytes=1000))


def test_asyncio(plain_server: ServerProcess) -> None:
    async def main() -> None:
        table = name()
        async with await tidemill.connect_async(url(plain_server)) as db:
            await db.execute(f"CREATE TABLE {table} (id int, name text)")
            await db.execute(f"INSERT INTO {table} VALUES (%s, 'a')", [1])
            assert (await db.query("SELECT 5 AS n")).rows() == [{"n": 5}]
            async with await db.subscribe(table) as changes:
                first = await anext(changes)
                assert first.snapshot and len(first) == 1
                await db.execute(f"INSERT INTO {table} VALUES (2, 'b')")
                assert (await anext(changes)).rows() == [{"mz_diff": 1, "id": 2, "name": "b"}]
                waiting = asyncio.create_task(anext(changes, None))
                await asyncio.sleep(0)
                await changes.close()
                assert await asyncio.wait_for(waiting, 60) is None
            told: list[str] = []

            async def on_update(live: tidemill.client.AsyncLiveTable, changes: Changes) -> None:
                told.append(f"{len(live)} {changes.inserted.rows()}")
                asyncio.get_running_loop().create_task(live.close())

            live = await db.live_table(
                table, key=["id"], on_snapshot=lambda t: told.append(f"{len(t)}"), on_update=on_update
            )
            task = asyncio.create_task(live.run())
            while live.time is None:
                await asyncio.sleep(0.01)
            await db.execute(f"INSERT INTO {table} VALUES (3, 'c')")
            await asyncio.wait_for(task, 60)
            assert told == ["2", "3 [{'id': 3, 'name': 'c'}]"]
            assert live.get(3) == {"id": 3, "name": "c"}
            # A task that is cancelled leaves a subscription that is closed, and a client that is not.
            idle = await db.subscribe(table)
            await anext(idle)
            task = asyncio.create_task(idle.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert idle.closed
            with pytest.raises(HistoryGone):
                await anext(await db.subscribe(table, as_of=1))
        with pytest.raises(ConnectionFailed):
            await tidemill.connect_async("postgresql://127.0.0.1:1/x")

    asyncio.run(main())


def test_queries_and_everything_that_spark_answers(server: ServerProcess) -> None:
    table = name()
    with tidemill.connect(url(server)) as db:
        db.execute(f"CREATE TABLE {table} (id int, k text, n bigint)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'a', 5), (2, 'a', 6), (3, 'b', 7)")
        totals = f"SELECT k, sum(n) AS total FROM {table} WHERE id < %s GROUP BY k"
        assert len(db.query(totals, [100])) == 2
        (constant,) = db.subscribe("VALUES (1, 'a'), (2, NULL)")
        assert constant.snapshot and len(constant) == 2
        with db.live_table(totals, key=["k"], params=[100]) as live:
            seen: list[list[dict[str, Any]]] = []
            for changes in live:
                seen.append(sorted(live.rows(), key=lambda row: row["k"]))
                if changes.snapshot:
                    db.execute(f"UPDATE {table} SET n = 9 WHERE id = 1")
                elif len(seen) == 2:
                    assert changes.updated.rows() == [{"k": "a", "total": 15}]
                    db.execute(f"DELETE FROM {table} WHERE k = 'b'")
                else:
                    assert changes.deleted.rows() == [{"k": "b", "total": 7}]
                    live.close()
        assert [[row["total"] for row in rows] for rows in seen] == [[11, 7], [15, 7], [15]]
        db.execute(f"DROP TABLE {table}")
