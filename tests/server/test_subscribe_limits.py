"""SUBSCRIBE and what goes wrong around it: slow readers, switches, relations that change or go, a server that
stops. The server is one of this file's own, without Spark: nothing here needs it."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

pytestmark = pytest.mark.server

Connection = psycopg.Connection[tuple[Any, ...]]
SECONDS = 120.0
# A row of a tick: one mark, and enough to fill buffers with.
MARK = b"~"
PADDING = "x" * 1000


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("own") / "data")
    process.spark = False
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def c(own: ServerProcess) -> Iterator[Connection]:
    with psycopg.connect(own.sql_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def system(own: ServerProcess) -> Iterator[Connection]:
    """May change the system's parameters; they are as before afterwards."""
    with psycopg.connect(own.sql_dsn.replace("user=materialize", "user=mz_system"), autocommit=True) as s:
        yield s
        s.execute("ALTER SYSTEM RESET ALL")


@pytest.fixture
def table(c: Connection) -> Iterator[str]:
    name = f"t{time.monotonic_ns()}"
    c.execute(f"CREATE TABLE {name} (a int, b text)".encode())
    yield name
    c.execute(f"DROP TABLE IF EXISTS {name}".encode())


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metric(own: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{own.http_url}/metrics", timeout=SECONDS) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def refused(c: Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as e:
        c.execute(statement.encode())
    return e.value


# -- switches


@pytest.mark.parametrize(
    ("switch", "output"),
    [
        ("enable_envelope_upsert_in_subscribe", "ENVELOPE UPSERT (KEY (a))"),
        ("enable_envelope_debezium_in_subscribe", "ENVELOPE DEBEZIUM (KEY (a))"),
        ("enable_within_timestamp_order_by_in_subscribe", "WITHIN TIMESTAMP ORDER BY a"),
    ],
)
def test_switches(c: Connection, system: Connection, table: str, switch: str, output: str) -> None:
    c.execute(f"INSERT INTO {table} VALUES (1, 'x')".encode())
    allowed = f"SUBSCRIBE {table} UP TO LATEST {output}"
    assert c.execute(allowed.encode()).fetchall()
    system.execute(f"ALTER SYSTEM SET {switch} = off".encode())
    error = refused(c, allowed)
    assert (error.sqlstate, error.diag.message_hint) == (
        "0A000",
        f"ALTER SYSTEM SET {switch} = on allows it.",
    )
    # The others are not concerned.
    assert c.execute(f"SUBSCRIBE {table} UP TO LATEST".encode()).fetchall()
    system.execute(f"ALTER SYSTEM SET {switch} = on".encode())
    assert c.execute(allowed.encode()).fetchall()


# -- every error that has a text of its own


@pytest.mark.parametrize(
    ("statement", "state", "text"),
    [
        (
            "SUBSCRIBE t ENVELOPE UPSERT (KEY (a)) WITHIN TIMESTAMP ORDER BY a",
            "42601",
            "Expected end of statement, found WITHIN",
        ),
        (
            "SUBSCRIBE t WITHIN TIMESTAMP ORDER BY a ENVELOPE UPSERT (KEY (a))",
            "42601",
            "Expected end of statement, found ENVELOPE",
        ),
        ("SUBSCRIBE t WITH (NONE)", "42601", "Expected one of PROGRESS or SNAPSHOT, found NONE"),
        ("SUBSCRIBE t ENVELOPE UPSERT (KEY (x))", "42703", 'column "x" does not exist'),
        ("SUBSCRIBE t WITHIN TIMESTAMP ORDER BY x", "42703", 'column "x" does not exist'),
        (
            "SUBSCRIBE t ENVELOPE DEBEZIUM (KEY (a, a))",
            "42701",
            'column "a" appears more than once in SUBSCRIBE ENVELOPE KEY clause',
        ),
        (
            "SUBSCRIBE t WITHIN TIMESTAMP ORDER BY a + 1",
            "42P10",
            "invalid ORDER BY in SUBSCRIBE WITHIN TIMESTAMP ORDER BY",
        ),
        (
            "SUBSCRIBE t AS OF 9000000000000 UP TO 5",
            "22000",
            "subscription lower bound (`AS OF`) is greater than its upper bound (`UP TO`): 9000000000000 > 5",
        ),
        ("SUBSCRIBE t AS OF 1", "22000", "could not find a valid timestamp for the query"),
        (
            "SUBSCRIBE t AS OF NULL",
            "22000",
            "AS OF or UP TO should be castable to a (non-null) mz_timestamp value",
        ),
        (
            "SUBSCRIBE t UP TO 'soon'",
            "22000",
            "AS OF or UP TO should be castable to a (non-null) mz_timestamp value",
        ),
        ("TAIL t", "42601", "TAIL has been renamed to SUBSCRIBE"),
    ],
)
def test_errors(c: Connection, table: str, statement: str, state: str, text: str) -> None:
    error = refused(c, re.sub(r"\bt\b", table, statement, count=1))
    assert (error.sqlstate, error.diag.message_primary) == (state, text)
    if state == "42P10":
        assert error.diag.message_hint == "All order bys must be output columns."
    if "valid timestamp" in text:
        moment = r"\d{13} \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00\)"
        assert re.search(rf"is readable from {moment} on; 1 was", error.diag.message_detail or "")
    if "lower bound" in text:
        assert error.diag.message_detail == (
            "It would begin at 9000000000000 (2255-03-14 16:00:00+00) and end before 5."
        )


def test_what_is_no_relation(c: Connection) -> None:
    c.execute("CREATE SECRET hidden AS 'x'")
    error = refused(c, "SUBSCRIBE hidden")
    assert (error.sqlstate, error.diag.message_primary) == (
        "42809",
        "'materialize.public.hidden' cannot be subscribed to because it is a secret",
    )
    c.execute("DROP SECRET hidden")


def test_the_only_read_of_its_transaction(c: Connection, table: str) -> None:
    with pytest.raises(psycopg.Error) as e, c.transaction():
        c.execute(f"DECLARE one CURSOR FOR SUBSCRIBE {table}".encode())
        c.execute(f"DECLARE two CURSOR FOR SUBSCRIBE {table}".encode())
    assert e.value.sqlstate == "25000"
    assert e.value.diag.message_primary == "SUBSCRIBE in transactions must be the only read statement"


def test_cancel(c: Connection, table: str) -> None:
    over = threading.Event()

    def later() -> None:
        # One that comes before the statement has begun does nothing.
        while not over.wait(0.1):
            c.cancel_safe()

    thread = threading.Thread(target=later)
    thread.start()
    error = refused(c, f"SUBSCRIBE {table}")
    over.set()
    thread.join()
    assert (error.sqlstate, error.diag.message_primary) == (
        "57014",
        "canceling statement due to user request",
    )


def test_strange_counts_of_fetch(c: Connection, table: str) -> None:
    c.execute(f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y')".encode())
    with c.transaction():
        c.execute(f"DECLARE k CURSOR FOR SUBSCRIBE {table}".encode())
        assert c.execute("FETCH 0 k").fetchall() == []
        assert len(c.execute(f"FETCH {2**40} k".encode()).fetchall()) == 2
        assert c.execute("FETCH ALL k WITH (TIMEOUT = '0s')").fetchall() == []
    with pytest.raises(psycopg.Error) as e, c.transaction():
        c.execute(f"DECLARE k CURSOR FOR SUBSCRIBE {table}".encode())
        c.execute("FETCH -1 k")
    assert (e.value.sqlstate, "negative count" in str(e.value)) == ("0A000", True)
    with pytest.raises(psycopg.Error), c.transaction():
        c.execute(f"DECLARE k CURSOR FOR SUBSCRIBE {table}".encode())
        c.execute(f"FETCH {2**70} k".encode())
    assert c.execute("SELECT 1").fetchall() == [(1,)]


# -- relations that change


def test_renamed_altered_and_dropped_in_the_middle(own: ServerProcess, c: Connection, table: str) -> None:
    """A reader keeps what it subscribed to: the relation, whatever its name is, and its columns of then."""
    found: list[tuple[Any, ...]] = []
    ended: list[psycopg.Error] = []

    def read() -> None:
        with psycopg.connect(own.sql_dsn, autocommit=True) as mine:
            try:
                for row in mine.cursor().stream(f"SUBSCRIBE {table}".encode()):
                    found.append(row[1:])
            except psycopg.Error as e:
                ended.append(e)

    c.execute(f"INSERT INTO {table} VALUES (1, 'x')".encode())
    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: len(found) == 1)
    c.execute(f"ALTER TABLE {table} RENAME TO {table}_new".encode())
    c.execute(f"INSERT INTO {table}_new VALUES (2, 'y')".encode())
    until(lambda: len(found) == 2)
    c.execute(f"ALTER TABLE {table}_new ADD COLUMN more int".encode())
    c.execute(f"INSERT INTO {table}_new VALUES (3, 'z', 4)".encode())
    until(lambda: len(found) == 3)
    assert found == [(1, 1, "x"), (1, 2, "y"), (1, 3, "z")]
    c.execute(f"DROP TABLE {table}_new".encode())
    thread.join(SECONDS)
    assert [(e.sqlstate, e.diag.message_primary) for e in ended] == [
        ("42704", f"relation 'materialize.public.{table}_new' was dropped")
    ]


def test_altered_in_the_middle_of_copy_and_of_a_cursor(own: ServerProcess, c: Connection, table: str) -> None:
    copied: list[str] = []
    ended: list[psycopg.Error] = []

    def copy() -> None:
        with psycopg.connect(own.sql_dsn, autocommit=True) as mine:
            try:
                with mine.cursor().copy(f"COPY (SUBSCRIBE {table}) TO STDOUT".encode()) as lines:
                    for line in lines:
                        copied.extend(bytes(line).decode().splitlines())
            except psycopg.Error as e:
                ended.append(e)

    thread = threading.Thread(target=copy)
    thread.start()
    gone = ("42704", f"relation 'materialize.public.{table}_new' was dropped")
    with psycopg.connect(own.sql_dsn) as mine:
        mine.execute(f"DECLARE k CURSOR FOR SUBSCRIBE {table}".encode())
        statements = [
            f"INSERT INTO {table} VALUES (1, 'x')",
            f"ALTER TABLE {table} RENAME TO {table}_new; INSERT INTO {table}_new VALUES (2, 'y')",
            f"ALTER TABLE {table}_new ADD COLUMN more int; INSERT INTO {table}_new VALUES (3, 'z', 4)",
        ]
        for number, statement in enumerate(statements, start=1):
            c.execute(statement.encode())
            (row,) = mine.execute("FETCH 1 k").fetchall()
            assert row[1:] == (1, number, "xyz"[number - 1])
            until(lambda number=number: len(copied) == number)
        assert [line.split("\t")[1:] for line in copied] == [
            ["1", "1", "x"],
            ["1", "2", "y"],
            ["1", "3", "z"],
        ]
        c.execute(f"DROP TABLE {table}_new".encode())
        with pytest.raises(psycopg.Error) as e:
            mine.execute("FETCH 1 k")
        # Nobody has looked since: by the name that it was asked for.
        assert (e.value.sqlstate, str(e.value.diag.message_primary).replace("_new", "")) == (
            gone[0],
            gone[1].replace("_new", ""),
        )
    thread.join(SECONDS)
    assert [(e.sqlstate, e.diag.message_primary) for e in ended] == [gone]


def test_a_fetch_that_waits_is_cancelled_and_loses_nothing(
    own: ServerProcess, c: Connection, table: str
) -> None:
    """A cancel ends the transaction and the cursor with it; a time-out does not."""
    with psycopg.connect(own.sql_dsn) as mine:
        mine.execute(f"DECLARE k CURSOR FOR SUBSCRIBE {table}".encode())
        assert mine.execute("FETCH 5 k WITH (TIMEOUT = '0.05s')").fetchall() == []
        c.execute(f"INSERT INTO {table} VALUES (1, 'x')".encode())
        assert mine.execute("FETCH 1 k WITH (TIMEOUT = '100s')").fetchall()[0][1:] == (1, 1, "x")
        over = threading.Event()

        def cancel() -> None:
            while not over.wait(0.1):
                mine.cancel_safe()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            mine.execute("FETCH 5 k WITH (TIMEOUT = '1h')")
        over.set()
        thread.join()
    until(lambda: metric(own, 'tidemill_subscriptions_active{output="plain"}') == 0)


# -- slow readers


class Raw:
    """A reader without a client library, that reads when it is told to."""

    def __init__(self, own: ServerProcess, statement: str) -> None:
        self._sock = socket.socket()
        # The kernel takes little for it.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sock.settimeout(SECONDS)
        self._sock.connect(("127.0.0.1", own.sql_port))
        hello = b"user\0materialize\0database\0materialize\0\0"
        self._sock.sendall(struct.pack("!ii", 8 + len(hello), 196608) + hello)
        self.read_until(b"Z\0\0\0\5I")
        text = statement.encode() + b"\0"
        self._sock.sendall(b"Q" + struct.pack("!i", 4 + len(text)) + text)

    def hurry(self) -> None:
        """Read with all that the kernel has."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def read_until(self, mark: bytes) -> bytes:
        """What came up to the mark; of long data only the end."""
        seen = b""
        while mark not in seen:
            data = self._sock.recv(1 << 16)
            assert data, seen[-1000:]
            seen = seen[-(1 << 16) :] + data
        return seen

    def close(self) -> None:
        self._sock.close()


def fill(c: Connection, table: str, first: int, rows: int = 200) -> None:
    with c.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        copy.write("".join(f"{n}\t~{PADDING}\n" for n in range(first, first + rows)))


def test_readers_that_never_read_hurt_nobody(
    own: ServerProcess, c: Connection, system: Connection, table: str
) -> None:
    """20 of 100 never read: they are told so when they do, and the other 80 get every row."""
    deaf_readers, readers = 20, 80
    system.execute("ALTER SYSTEM SET max_subscribe_buffer_size = 100000")
    before = metric(own, "tidemill_subscriptions_fell_behind_total")
    deaf = [Raw(own, f"SUBSCRIBE {table} WITH (PROGRESS)") for _ in range(deaf_readers)]
    for reader in deaf:
        reader.read_until(b"\0\0\0\1t")
    told = [0] * readers
    begun = threading.Semaphore(0)

    async def read(n: int) -> None:
        reading, writing = await asyncio.open_connection("127.0.0.1", own.sql_port)
        hello = b"user\0materialize\0database\0materialize\0\0"
        writing.write(struct.pack("!ii", 8 + len(hello), 196608) + hello)
        await reading.readuntil(b"Z\0\0\0\5I")
        text = f"SUBSCRIBE {table} WITH (PROGRESS)\0".encode()
        writing.write(b"Q" + struct.pack("!i", 4 + len(text)) + text)
        await reading.readuntil(b"\0\0\0\1t")
        begun.release()
        while not over.is_set():
            data = await reading.read(1 << 16)
            assert data
            told[n] += data.count(MARK)
        writing.close()

    async def read_all() -> None:
        await asyncio.gather(*map(read, range(readers)))

    over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(read_all())
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(readers):
        assert begun.acquire(timeout=SECONDS)
    sent = 0

    def more() -> bool:
        """Until the kernel's buffers and ours are full for each of them."""
        nonlocal sent
        fill(c, table, sent)
        sent += 200
        until(lambda: min(told) >= sent or bool(failed))
        return metric(own, "tidemill_subscriptions_fell_behind_total") == before + deaf_readers

    until(more)
    over.set()
    # Every second a progress row comes: each notices that it is over.
    thread.join(SECONDS)
    assert not failed and not thread.is_alive()
    assert told == [sent] * readers
    for reader in deaf:
        reader.hurry()
        end = reader.read_until(b"SUBSCRIBE fell behind")
        assert b"53000" in end
        reader.close()


def test_one_large_change_is_not_falling_behind(
    own: ServerProcess, c: Connection, system: Connection, table: str
) -> None:
    system.execute("ALTER SYSTEM SET max_subscribe_buffer_size = 1000")
    with psycopg.connect(own.sql_dsn, autocommit=True) as mine:
        rows, filled = 0, False
        with pytest.raises(psycopg.errors.QueryCanceled):
            for row in mine.cursor().stream(f"SUBSCRIBE {table} WITH (PROGRESS)".encode()):
                if not filled:
                    fill(c, table, rows, 2000)
                    filled = True
                rows += not row[1]
                if rows == 2000:
                    mine.cancel_safe()


# -- ends


def test_a_vanished_reader_leaves_nothing(own: ServerProcess, c: Connection, table: str) -> None:
    def active() -> float:
        return metric(own, 'tidemill_subscriptions_active{output="plain"}')

    until(lambda: active() == 0)
    readers = [Raw(own, f"SUBSCRIBE {table} WITH (PROGRESS)") for _ in range(5)]
    for reader in readers:
        reader.read_until(b"\0\0\0\1t")
    assert active() == 5
    for reader in readers:
        reader.close()
    until(lambda: active() == 0)


def test_counters_by_output(own: ServerProcess, c: Connection, table: str) -> None:
    c.execute(f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y')".encode())
    outputs = {
        "plain": "",
        "within_timestamp_order_by": "WITHIN TIMESTAMP ORDER BY a",
        "envelope_upsert": "ENVELOPE UPSERT (KEY (a))",
        "envelope_debezium": "ENVELOPE DEBEZIUM (KEY (a))",
    }

    def opened(name: str) -> float:
        return metric(own, f'tidemill_subscriptions_total{{output="{name}"}}')

    for name, output in outputs.items():
        before, rows = opened(name), metric(own, "tidemill_subscription_rows_total")
        size = metric(own, "tidemill_subscription_bytes_total")
        assert len(c.execute(f"SUBSCRIBE {table} UP TO LATEST {output}".encode()).fetchall()) == 2
        assert opened(name) == before + 1
        assert metric(own, "tidemill_subscription_rows_total") == rows + 2
        assert metric(own, "tidemill_subscription_bytes_total") > size


def test_a_server_that_stops_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    process = ServerProcess(tmp_path_factory.mktemp("stopping") / "data")
    process.spark = False
    try:
        process.start()
        with psycopg.connect(process.sql_dsn, autocommit=True) as mine:
            mine.execute("CREATE TABLE t (a int)")
            status: list[int] = []
            thread = threading.Thread(target=lambda: status.append(process.terminate()))
            with pytest.raises(psycopg.errors.AdminShutdown):
                for _ in mine.cursor().stream(b"SUBSCRIBE t WITH (PROGRESS)"):
                    if thread.ident is None:
                        thread.start()
            thread.join(SECONDS)
            assert status == [0]
    finally:
        process.close()
