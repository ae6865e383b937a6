"""WebSockets and server-sent events of a real server: what is read adds up to what was written, whoever
leaves, stalls or comes back in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from httpstreams import (
    SECONDS,
    Held,
    Talk,
    listening,
    metric,
    nothing_is_read,
    path_of,
    request_of,
    rows,
    run,
    talking,
    until,
    writing,
)
from websockets.asyncio.client import connect

from support.server import ServerProcess
from support.sse import EventReader

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of this module's own, without Spark, which subscriptions to tables do not need."""
    process = ServerProcess(tmp_path_factory.mktemp("streams") / "data")
    process.spark = False
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def database(lean: ServerProcess) -> Iterator[str]:
    name = f"streams_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(lean.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE DATABASE {name}".encode())
        yield name
        c.execute(f"DROP DATABASE {name} CASCADE".encode())


def set_buffer(server: ServerProcess, what: str) -> None:
    dsn = server.sql_dsn.replace("user=materialize", "user=mz_system")
    with psycopg.connect(dsn, autocommit=True) as c:
        c.execute(f"ALTER SYSTEM {what}".encode())


# -- WebSockets


def test_a_conversation(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        async with talking(lean, database) as talk:
            assert (await talk.ask("CREATE TABLE t (a int, b text)"))[-1] == (
                "CommandComplete",
                "CREATE TABLE",
            )
            assert (await talk.ask("INSERT INTO t VALUES ($1, $2)", 1, "one"))[-1] == (
                "CommandComplete",
                "INSERT 0 1",
            )
            assert rows(await talk.ask("SELECT 1 AS a, 'x' AS b; SELECT 2")) == [[1, "x"], [2]]
            heard = await talk.ask("SELECT nothing")
            assert heard == [("Error", heard[0][1])] and heard[0][1]["code"] == "42703"
            # A transaction block goes over several messages, and a failure within ends with it.
            await talk.say({"query": "BEGIN; INSERT INTO t VALUES (2, 'two')"})
            assert (await talk.until("ReadyForQuery"))[-1][1] == "T"
            await talk.say({"query": "oops"})
            assert (await talk.until("ReadyForQuery"))[-1][1] == "E"
            await talk.ask("ROLLBACK")
            heard = await talk.ask("SET timezone = 'Europe/Berlin'")
            assert ("ParameterStatus", {"name": "TimeZone", "value": "Europe/Berlin"}) in heard
            heard = await talk.ask("SHOW database")
            assert rows(heard) == [[database]]
            heard = await talk.ask("SUBSCRIBE t UP TO LATEST")
            assert [row[1:] for row in rows(heard)] == [[1, 1, "one"]]
            assert heard[0] == ("CommandStarting", {"has_rows": True, "is_streaming": True})
            assert heard[-1] == ("CommandComplete", "SUBSCRIBE 1")
        async with connect(f"ws://127.0.0.1:{lean.http_port}/api/experimental/sql") as connection:
            talk = Talk(connection)
            await talk.say({"options": {"database": "not_there"}})
            assert (await talk.hear())[1]["code"] == "3D000"

    run(work())


def test_a_subscription_over_a_websocket_until_it_is_cancelled(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        async with talking(lean, database) as talk, talking(lean, database) as writer:
            await writer.ask("CREATE TABLE t (a int)")
            await talk.say({"query": "SUBSCRIBE t"})
            await talk.until("Rows")
            for n in range(5):
                await writer.ask("INSERT INTO t VALUES ($1)", n)
                kind, row = await talk.hear()
                assert (kind, row[1:]) == ("Row", [1, n])
            await talk.say({"cancel": True})
            heard = await talk.until("ReadyForQuery")
            assert heard[-2][1] == {"message": "canceling statement due to user request", "code": "57014"}
            await until(lambda: metric(lean, "tidemill_subscriptions_active") == 0)
            # The session goes on.
            assert rows(await talk.ask("SELECT 5")) == [[5]]

    run(work())


def test_a_durable_subscription_over_websockets_goes_on_where_it_was_acknowledged(
    lean: ServerProcess, database: str
) -> None:
    fetch = "FETCH ALL FROM SUBSCRIPTION s WITH (TIMEOUT = '60 s')"

    def changes(heard: list[tuple[str, Any]]) -> list[list[Any]]:
        found = rows(heard)
        assert found[-1][1] is True
        return [row[2:] for row in found if not row[1]]

    async def work() -> None:
        async with talking(lean, database) as writer:
            await writer.ask("CREATE TABLE t (a int)")
            await writer.ask("CREATE SUBSCRIPTION s FOR t WITH (SNAPSHOT = false)")
            async with talking(lean, database) as reader:
                await writer.ask("INSERT INTO t VALUES (1)")
                assert changes(await reader.ask(fetch)) == [[1, 1]]
                assert (await reader.ask("ACKNOWLEDGE SUBSCRIPTION s"))[-1][0] == "CommandComplete"
                await writer.ask("INSERT INTO t VALUES (2)")
                assert changes(await reader.ask(fetch)) == [[1, 2]]
                # It leaves without a word in the middle of the next one.
                await reader.say({"query": fetch})
                reader.socket.transport.abort()
            await writer.ask("INSERT INTO t VALUES (3)")
            async with talking(lean, database) as reader:
                found: list[list[Any]] = []
                while len(found) < 2:
                    found += changes(await reader.ask(fetch))
                assert found == [[1, 2], [1, 3]]

    run(work())


def test_a_dropped_relation_ends_both_streams(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        async with talking(lean, database) as talk, talking(lean, database) as writer:
            await writer.ask("CREATE TABLE t (a int)")
            await talk.say({"query": "SUBSCRIBE t WITH (PROGRESS)"})
            await talk.until("Row")
            async with listening(lean, database, "t") as listener:
                assert [await listener.kind(), await listener.kind()] == ["columns", "snapshot"]
                await writer.ask("DROP TABLE t")
                gone = f"relation '{database}.public.t' was dropped"
                event = await listener.hear()
                assert event.kind == "error"
                assert json.loads(event.data) == {"message": gone, "code": "42704"}
                assert await listener.ended()
            heard = await talk.until("ReadyForQuery")
            assert heard[-2][1] == {"message": gone, "code": "42704"}
            # Whoever comes back is told for good.
            async with listening(lean, database, "t", "1794763027320") as listener:
                assert listener.answer.status_code == 400
        await until(lambda: nothing_is_read(lean))

    run(work())


def test_renamed_and_altered_in_the_middle(lean: ServerProcess, database: str) -> None:
    """Both streams go on with the relation, whatever its name is, and with its columns of then; who comes
    back asks by a name that is no longer there."""

    async def work() -> None:
        async with talking(lean, database) as talk, talking(lean, database) as writer:
            await writer.ask("CREATE TABLE t (a int, b text)")
            await talk.say({"query": "SUBSCRIBE t"})
            await talk.until("Rows")
            async with listening(lean, database, "t", key="a") as listener:
                assert [await listener.kind(), await listener.kind()] == ["columns", "snapshot"]

                async def both(statement: str, row: list[Any]) -> None:
                    await writer.ask(statement)
                    assert (await talk.hear())[1][1:] == [1, *row]
                    event = await listener.hear()
                    assert (event.kind, json.loads(event.data)["rows"]) == ("changes", [["upsert", *row]])

                await both("INSERT INTO t VALUES (1, 'x')", [1, "x"])
                await writer.ask("ALTER TABLE t RENAME TO u")
                await both("INSERT INTO u VALUES (2, 'y')", [2, "y"])
                await writer.ask("ALTER TABLE u ADD COLUMN c int")
                await both("INSERT INTO u VALUES (3, 'z', 5)", [3, "z"])
                last = listener.reader.last_id
            async with listening(lean, database, "t", last, key="a") as listener:
                assert listener.answer.status_code == 400
            await writer.ask("DROP TABLE u")
            gone = f"relation '{database}.public.u' was dropped"
            assert (await talk.until("ReadyForQuery"))[-2][1] == {"message": gone, "code": "42704"}
        await until(lambda: nothing_is_read(lean))

    run(work())


def test_clients_that_vanish_leave_nothing_behind(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        async with talking(lean, database) as writer:
            await writer.ask("CREATE TABLE t (a int)")
        url = f"ws://127.0.0.1:{lean.http_port}/api/experimental/sql"
        for way in ("close", "abort", "abort"):
            connection = await connect(url)
            talk = Talk(connection)
            await talk.say({"options": {"database": database}})
            await talk.until("ReadyForQuery")
            await talk.say({"query": "SUBSCRIBE t"})
            await talk.until("Rows")
            await until(lambda: metric(lean, "tidemill_subscriptions_active") == 1)
            if way == "close":
                await connection.close()
            else:
                connection.transport.abort()
            await until(lambda: nothing_is_read(lean))
        for _ in range(3):
            reader, writer_ = await asyncio.open_connection("127.0.0.1", lean.http_port)
            writer_.write(request_of(database, "t"))
            await reader.readuntil(b"snapshot")
            assert metric(lean, "tidemill_subscriptions_active") == 1
            writer_.transport.abort()
            await until(lambda: nothing_is_read(lean))

    run(work())


# -- server-sent events


def test_each_envelope_as_events(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        with writing(lean, database) as c:
            c.execute("CREATE TABLE t (k int, v text)")
            c.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
            for options, names, told, change in (
                ({}, ["mz_diff", "k", "v"], [[1, 1, "a"], [1, 2, "b"]], [1, 7, "x"]),
                (
                    {"key": "k"},
                    ["mz_state", "k", "v"],
                    [["upsert", 1, "a"], ["upsert", 2, "b"]],
                    ["upsert", 7, "x"],
                ),
                (
                    {"key": "v", "envelope": "debezium", "progress": ""},
                    ["mz_state", "v", "before_k", "after_k"],
                    [["insert", "a", None, 1], ["insert", "b", None, 2]],
                    ["insert", "x", None, 7],
                ),
            ):
                name = f"t{len(options)}"
                c.execute(f"CREATE TABLE {name} (k int, v text)".encode())
                c.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')".encode())
                async with listening(lean, database, name, **options) as listener:
                    columns = json.loads((await listener.hear()).data)["columns"]
                    assert [column["name"] for column in columns] == names
                    event = await listener.hear()
                    assert event.kind == "snapshot"
                    assert sorted(json.loads(event.data)["rows"]) == told
                    c.execute(f"INSERT INTO {name} VALUES (7, 'x')".encode())
                    while (event := await listener.hear()).kind == "progress":
                        assert options
                    data = json.loads(event.data)
                    assert (event.kind, data["rows"]) == ("changes", [change])
                    assert event.id is not None and int(event.id) > data["time"]

    run(work())


def test_bounds_and_refusals(lean: ServerProcess, database: str) -> None:
    async def work() -> None:
        with writing(lean, database) as c:
            c.execute("CREATE TABLE t (a int)")
            c.execute("INSERT INTO t VALUES (1)")
        async with listening(lean, database, "t", up_to="latest") as listener:
            kinds = [await listener.kind() for _ in range(3)]
            assert kinds == ["columns", "snapshot", "end"]
            assert await listener.ended()
            last = listener.reader.last_id
        assert last is not None
        async with listening(lean, database, "t", last, up_to=last) as listener:
            assert listener.answer.status_code == 204
        for query, options, code in (
            ("nothing", {}, "42P01"),
            ("SELECT 1; SELECT 2", {}, "42601"),
            ("DELETE FROM t", {}, "42601"),
            ("t", {"key": "b"}, "42703"),
            ("t", {"envelope": "upsert"}, "22P02"),
            ("t", {"as_of": "soon"}, "22000"),
            ("t", {"as_of": "now(); DROP TABLE t"}, "22000"),
            ("t", {"database": "not_there"}, "3D000"),
            ("t", {"wish": "1"}, "08P01"),
        ):
            async with listening(lean, options.pop("database", database), query, **options) as listener:
                assert listener.answer.status_code == 400
                assert json.loads(await listener.answer.aread())["error"]["code"] == code, query
        # History from before the table was made.
        async with listening(lean, database, "t", as_of="5") as listener:
            assert listener.answer.status_code == 410
        async with listening(lean, database, "t", "5", snapshot="false") as listener:
            assert listener.answer.status_code == 410
        # Who comes back after so long begins anew.
        async with listening(lean, database, "t", "5") as listener:
            assert [await listener.kind(), await listener.kind()] == ["columns", "snapshot"]

    run(work())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_cuts_leave_no_gap_and_no_repeat(lean: ServerProcess, database: str, seed: int) -> None:
    """The connection is cut at random bytes while a writer writes; what the client holds in the end, having
    applied each complete time once, is what the writer's ledger says."""
    rng = random.Random(seed)
    ledger: Counter[tuple[Any, ...]] = Counter()
    stop = False

    def write() -> None:
        with writing(lean, database) as c:
            number = 10_000
            while not stop:
                values = [(number + i, f"{'w' * rng.randrange(300)}\n{number}") for i in range(3)]
                number += 3
                with c.cursor() as cursor:
                    sql = "INSERT INTO t VALUES (%s, %s), (%s, %s), (%s, %s)"
                    cursor.execute(sql, [x for value in values for x in value])
                ledger.update(values)

    async def work() -> None:
        nonlocal stop
        with writing(lean, database) as c:
            c.execute("CREATE TABLE t (a int, b text)")
            first = [(n, f"{n}" * 60) for n in range(3_000)]
            with c.cursor().copy("COPY t FROM STDIN") as copy:
                for row in first:
                    copy.write_row(row)
            ledger.update(first)
        writer = asyncio.create_task(asyncio.to_thread(write))
        held, last = Held(), None
        try:
            # Of the first ones nothing is left: the snapshot is larger. Then it is told whole, once.
            for _ in range(10):
                assert await _cut_after(lean, database, held, None, rng.randrange(1, 30_000), rng) is None
            last = await _cut_after(lean, database, held, None, None, rng)
            for _ in range(90):
                last = await _cut_after(lean, database, held, last, rng.randrange(1, 30_000), rng)
            stop = True
            await writer
            async with listening(lean, database, "t", last) as listener:
                held.connected()
                while held.rows != ledger:
                    held.apply(await listener.hear())
        finally:
            stop = True
            await writer
        assert held.snapshots == 1
        assert max(held.rows.values()) == 1
        await until(lambda: nothing_is_read(lean))

    run(work())


async def _cut_after(
    server: ServerProcess, database: str, held: Held, last: str | None, size: int | None, rng: random.Random
) -> str | None:
    """Listen from `last` on for `size` bytes or a moment (None: until there is an id), and vanish. Returns
    the id to come back with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    head = "" if last is None else f"Last-Event-ID: {last}\r\n"
    # Version 1.0, so that the body comes as it is.
    writer.write(f"GET {path_of(database, 't')} HTTP/1.0\r\nHost: localhost\r\n{head}\r\n".encode())
    async with asyncio.timeout(SECONDS):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    events = EventReader()
    events.last_id = last
    held.connected()
    left = size
    try:
        async with asyncio.timeout(0.1 * rng.random() if last is not None else SECONDS):
            while events.last_id is None if left is None else left > 0:
                data = await reader.read(min(left or 4_096, 4_096))
                assert data
                left = None if left is None else left - len(data)
                for event in events.feed(data):
                    held.apply(event)
    except TimeoutError:
        pass
    writer.transport.abort()
    return events.last_id


def test_twenty_of_a_hundred_readers_that_never_read_hurt_nobody(lean: ServerProcess, database: str) -> None:
    """They fall behind by their own buffers; all others are told everything, and those who wake up are told
    what happened to them."""
    statements, size = 60, 30
    expected = Counter(range(statements * size))
    # How many have been told all of a statement. The writer waits for all of them after each, so that they do
    # not fall behind on a busy machine either.
    told: Counter[int] = Counter()
    news = asyncio.Event()

    def tell(count: int) -> None:
        if count and count % size == 0:
            told[count // size] += 1
            news.set()

    async def events_reader() -> None:
        got: Counter[int] = Counter()
        async with listening(lean, database, "t") as listener:
            while len(got) < len(expected):
                event = await listener.hear()
                if event.kind == "changes":
                    data = json.loads(event.data)
                    assert "more" not in data
                    got.update(row[1] for row in data["rows"])
                    tell(len(got))
        assert got == expected

    async def socket_reader() -> None:
        got: Counter[int] = Counter()
        async with talking(lean, database) as talk:
            await talk.say({"query": "SUBSCRIBE t"})
            await talk.until("Rows")
            while len(got) < len(expected):
                kind, row = await talk.hear()
                assert kind == "Row"
                got[row[2]] += 1
                tell(len(got))
        assert got == expected

    async def asleep() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", lean.http_port))
        await loop.sock_sendall(sock, request_of(database, "t"))
        return sock

    def write(number: int) -> None:
        with writing(lean, database) as c, c.cursor().copy("COPY t FROM STDIN") as copy:
            for i in range(size):
                copy.write_row((number * size + i, "x" * 1_500))

    async def until_told(statement: int) -> None:
        while told[statement] < 80:
            news.clear()
            await asyncio.wait_for(news.wait(), SECONDS)

    async def work() -> None:
        with writing(lean, database) as c:
            c.execute("CREATE TABLE t (a int, b text)")
        behind = metric(lean, "tidemill_subscriptions_fell_behind_total")
        sleepers = [await asleep() for _ in range(20)]
        readers = [asyncio.create_task(events_reader()) for _ in range(40)]
        readers += [asyncio.create_task(socket_reader()) for _ in range(40)]
        await until(lambda: metric(lean, "tidemill_subscriptions_active") == 100)
        for number in range(statements):
            await asyncio.to_thread(write, number)
            await until_told(number + 1)
        await asyncio.gather(*readers)

        # All that are still there; one that slept for a minute, on a busy machine, may have been cut off.
        def all_behind() -> bool:
            fell = metric(lean, "tidemill_subscriptions_fell_behind_total") - behind
            return fell >= metric(lean, "tidemill_subscriptions_active")

        await until(all_behind)
        said = await asyncio.to_thread(_awake, sleepers[0])
        if said is not None:
            assert b"SUBSCRIBE fell behind" in said and b"53000" in said
        for sleeper in sleepers:
            sleeper.close()
        await until(lambda: nothing_is_read(lean))

    set_buffer(lean, "SET max_subscribe_buffer_size = 300000")
    try:
        run(work())
    finally:
        set_buffer(lean, "RESET max_subscribe_buffer_size")


def _awake(sleeper: socket.socket) -> bytes | None:
    """All that was said, to the last chunk; None where the connection was cut off."""
    sleeper.settimeout(SECONDS)
    said = b""
    try:
        while not said.endswith(b"\r\n0\r\n\r\n"):
            data = sleeper.recv(1 << 16)
            assert data
            said += data
    except ConnectionError:
        return None
    return said
