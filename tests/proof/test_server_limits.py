"""Bad input and bad luck over the real server: each is a clear error in its scope, everybody else goes on,
and nothing stays held."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from proof_store import Store
from psycopg import sql

from support.server import ServerError, ServerProcess

Connection = psycopg.Connection[Any]
StartServer = Callable[..., ServerProcess]

# Minutes of work for Spark, and no table needed.
SLOW: LiteralString = (
    "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b WHERE (a * b) % 7 = 3"
)
# What should take a moment may take this long on a busy machine.
PATIENCE = 180.0


def query(table: str, text: LiteralString) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier(table))


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=30) as answer:
        found = re.search(rf"^{name} ([0-9.e+]+)$", answer.read().decode(), re.M)
    assert found is not None, name
    return float(found[1])


def until(what: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def idle(server: ServerProcess) -> None:
    """Nothing runs on Spark any more."""
    until(lambda: metric(server, "tidemill_queries_active") == 0, "a query still runs")


# -- time-outs, cancels, clients that vanish -----------------------------------------------------------


def test_statement_timeout(server: ServerProcess, connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (n int8)"))
    connection.execute("SET statement_timeout = '500ms'")
    for text in (
        sql.SQL(SLOW),
        query(table, "INSERT INTO {} " + SLOW),
        query(table, "SELECT * FROM {} AS OF 9000000000000000"),
    ):
        with pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout") as e:
            connection.execute(text)
        assert e.value.sqlstate == "57014"
    copying = sql.SQL("COPY (" + SLOW + ") TO STDOUT")
    with (
        pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout"),
        connection.cursor().copy(copying) as copy,
    ):
        copy.read()
    connection.execute("SET statement_timeout = 0")
    assert connection.execute(query(table, "SELECT count(*) FROM {}")).fetchone() == (0,)
    idle(server)


def test_cancelled_queries_free_spark(server: ServerProcess, dsn: str) -> None:
    """More slow queries than Spark has cores, all cancelled: the next one is answered at once."""
    canceled: list[str | None] = []
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(4)]

    def run(connection: Connection) -> None:
        try:
            connection.execute(SLOW)
        except psycopg.Error as e:
            canceled.append(e.sqlstate)

    threads = [threading.Thread(target=run, args=(c,), daemon=True) for c in connections]
    for thread in threads:
        thread.start()
    until(lambda: metric(server, "tidemill_queries_active") >= 4, "the queries did not start")
    for connection in connections:
        connection.cancel_safe()
    for thread in threads:
        thread.join(PATIENCE)
    assert canceled == ["57014"] * 4
    assert connections[0].execute("SELECT sum(g) FROM generate_series(1, 10) g").fetchone() == (55,)
    idle(server)
    for connection in connections:
        connection.close()


def vanish(connection: Connection) -> None:
    """As a machine that loses its power: a reset instead of a goodbye."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.pgconn.finish()


def test_clients_vanish(server: ServerProcess, dsn: str, connection: Connection, table: str) -> None:
    """In the middle of a query, of a COPY in either direction, of a transaction, of a cursor: what they began
    is gone, and so is what it held."""
    connection.execute(query(table, "CREATE TABLE {} (n int8) WITH (RETAIN HISTORY FOR '1s')"))
    with connection.cursor().copy(query(table, "COPY {} FROM STDIN")) as copy:
        copy.write("".join(f"{n}\n" for n in range(50_000)))
    before = metric(server, "tidemill_sessions")
    opened = [psycopg.connect(dsn, autocommit=True) for _ in range(6)]
    asking, sending, receiving, writing, holding, streaming = opened
    asking.pgconn.send_query(SLOW.encode())
    sending.execute("BEGIN")
    sending.pgconn.exec_(query(table, "COPY {} FROM STDIN").as_bytes(sending))
    sending.pgconn.put_copy_data(b"-1\n-2\n")
    receiving.pgconn.exec_(query(table, "COPY {} TO STDOUT").as_bytes(receiving))
    writing.execute("BEGIN")
    writing.execute(query(table, "INSERT INTO {} VALUES (-3)"))
    holding.execute("BEGIN")
    holding.execute(query(table, "DECLARE c CURSOR FOR SELECT n FROM {}"))
    stream = streaming.cursor().stream(query(table, "SELECT n FROM {}"))
    next(stream)
    until(lambda: metric(server, "tidemill_queries_active") >= 1, "the query did not start")
    for victim in opened:
        vanish(victim)
    # Those of earlier tests may have been on their way out.
    until(lambda: metric(server, "tidemill_sessions") <= before, "a session is still there")
    idle(server)
    row = connection.execute(query(table, "SELECT count(*), min(n) FROM {}")).fetchone()
    assert row == (50_000, 0)
    # Of all readers only one that lives holds the table's history back.
    frontier = sql.SQL(
        "SELECT read_frontier FROM mz_internal.mz_frontiers f "
        "JOIN mz_objects o ON o.id = f.object_id WHERE o.name = {}"
    ).format(sql.Literal(table))

    def since() -> int:
        connection.execute(query(table, "INSERT INTO {} VALUES (1)"))
        found = connection.execute(frontier).fetchone()
        assert found is not None
        return int(found[0])

    with psycopg.connect(dsn) as reader:
        held = reader.execute("SELECT mz_now()").fetchone()
        assert held is not None
        reader.execute(query(table, "DECLARE c CURSOR FOR SELECT count(*) FROM {}"))
        until(lambda: since() >= held[0], "somebody who is gone holds history back")
        time.sleep(2.5)
        assert since() == held[0]
        assert reader.execute("FETCH ALL FROM c").fetchone() == (50_000,)
    until(lambda: since() > held[0], "a reader that has ended holds history back")


def test_garbage_on_the_port(server: ServerProcess, connection: Connection) -> None:
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 1000,
        b"\x00\x00\x00\x08\x04\xd2\x16\x2e",
    ):
        with socket.create_connection(("127.0.0.1", server.sql_port), timeout=PATIENCE) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert connection.execute("SELECT 1").fetchone() == (1,)


# -- statements that are wrong or too large ------------------------------------------------------------


def test_not_null(connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (a int4 NOT NULL, b text)"))
    connection.execute(query(table, "INSERT INTO {} VALUES (1, 'x')"))
    texts: list[LiteralString] = [
        "INSERT INTO {} VALUES (2, 'y'), (NULL, 'z')",
        "INSERT INTO {} (b) VALUES ('no a')",
        "UPDATE {} SET a = NULL",
        "INSERT INTO {} SELECT NULL, 'selected'",
    ]
    for text in texts:
        with pytest.raises(psycopg.errors.NotNullViolation) as e:
            connection.execute(query(table, text))
        assert e.value.diag.message_primary == (
            f'null value in column "a" of relation "{table}" violates not-null constraint'
        )
    with (
        pytest.raises(psycopg.errors.NotNullViolation),
        connection.cursor().copy(query(table, "COPY {} FROM STDIN")) as copy,
    ):
        copy.write("3\tok\n\\N\tbad\n")
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute(query(table, "INSERT INTO {} VALUES (%s, %s)"), (None, "parameter"))
    assert connection.execute(query(table, "SELECT * FROM {}")).fetchall() == [(1, "x")]


def test_a_table_that_is_dropped_while_its_time_is_waited_for(
    dsn: str, connection: Connection, table: str
) -> None:
    """There is nothing of it at that time: told as a SUBSCRIBE is, and no answer of an earlier one."""
    connection.execute(query(table, "CREATE TABLE {} (n int8)"))
    connection.execute(query(table, "INSERT INTO {} VALUES (1)"))
    told: list[psycopg.Error | object] = []

    def wait() -> None:
        with psycopg.connect(dsn, autocommit=True) as waiting:
            try:
                later = sql.SQL("SELECT n FROM {} AS OF now() + INTERVAL '4 seconds'")
                told.append(waiting.execute(later.format(sql.Identifier(table))).fetchall())
            except psycopg.Error as e:
                told.append(e)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(1.5)
    connection.execute(query(table, "DROP TABLE {}"))
    thread.join(PATIENCE)
    (error,) = told
    assert isinstance(error, psycopg.Error) and error.sqlstate == "42704", error
    assert f"{table}' was dropped" in str(error)


BAD_VALUES: list[tuple[LiteralString, str, str]] = [
    ("int4", "one", "22P02"),
    ("int2", "40000", "22003"),
    ("uint8", "-1", "22003"),
    ("numeric(4,2)", "123.4", "22003"),
    ("varchar(3)", "abcd", "22001"),
    ("date", "2023-02-29", "22008"),
    ("timestamptz", "yesterday noonish", "22007"),
    ("uuid", "a0eebc99", "22P02"),
    ("jsonb", '{"a":', "22P02"),
    ("bytea", "\\xzz", "22023"),
    ("int4[]", "{1,2", "22P02"),
    ("bool", "maybe", "22P02"),
    ("interval", "1 fortnight and a bit", "22007"),
]


def test_bad_values(connection: Connection, table: str) -> None:
    """The same error by literal, by parameter and by COPY, and nothing is written."""
    columns = [sql.SQL("c{} " + t).format(sql.SQL(str(n))) for n, (t, _, _) in enumerate(BAD_VALUES)]  # pyright: ignore[reportArgumentType]
    create = sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), sql.SQL(", ").join(columns))
    connection.execute(create)
    for n, (kind, value, state) in enumerate(BAD_VALUES):
        column = sql.Identifier(f"c{n}")
        into = sql.SQL("INSERT INTO {} ({}) VALUES ({})")
        named = (sql.Identifier(table), column)
        with pytest.raises(psycopg.DataError) as literal:
            connection.execute(into.format(*named, sql.Literal(value)))
        with pytest.raises(psycopg.DataError) as parameter:
            connection.execute(into.format(*named, sql.Placeholder()), (value,))
        copying = sql.SQL("COPY {} ({}) FROM STDIN").format(*named)
        with pytest.raises(psycopg.DataError) as copied, connection.cursor().copy(copying) as copy:
            copy.write_row((value,))
        assert {e.value.sqlstate for e in (literal, parameter, copied)} == {state}, kind
    assert connection.execute(query(table, "SELECT count(*) FROM {}")).fetchone() == (0,)


def test_statements_that_are_too_large(connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (t text)"))
    with pytest.raises(psycopg.Error) as e:
        connection.execute(sql.SQL("SELECT {}").format(sql.Literal("x" * (2 << 20))))
    assert e.value.sqlstate == "54000"
    assert "2 MB" in str(e.value) or "2097152" in str(e.value)
    with pytest.raises(psycopg.Error) as e:
        connection.execute("SELECT " + "(" * 300 + "1" + ")" * 300)  # pyright: ignore[reportArgumentType]
    assert e.value.sqlstate in ("54000", "54001")
    with pytest.raises(psycopg.Error) as e:
        connection.execute(sql.SQL("SELECT 1 AS {}").format(sql.Identifier("x" * 300)))
    assert e.value.sqlstate in ("42622", "54000")
    # Just below the limit, and far above it by parameter: both are fine.
    big = "y" * (1 << 20)
    connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(table), sql.Literal(big)))
    connection.execute(query(table, "INSERT INTO {} VALUES (%s)"), ("z" * (8 << 20),))
    found = connection.execute(query(table, "SELECT length(t) FROM {} ORDER BY 1")).fetchall()
    assert found == [(1 << 20,), (8 << 20,)]


# -- disks ---------------------------------------------------------------------------------------------


def test_a_full_disk(start_server: StartServer) -> None:
    """Writes that meet it are refused with a clear error, or settled later; whoever writes before, beside and
    after is not concerned; what was acknowledged is there."""
    spots = {
        "persist.part.before_fsync": 20,
        "persist.entry.temp_written": 40,
        "txns.part.written": 15,
        "persist.entry.linked": 60,
    }
    spec = ";".join(f"{name}=enospc@{n}" for name, n in spots.items())
    server = start_server(env={"TIDEMILL_FAILPOINTS": spec})
    refused: list[psycopg.Error] = []
    acknowledged: set[int] = set()
    unknown: set[int] = set()

    def write(first: int, count: int) -> int:
        """How many of the last ones in a row were acknowledged."""
        good = 0
        with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
            for n in range(first, first + count):
                try:
                    connection.execute("INSERT INTO t VALUES (%s)", (n,))
                    acknowledged.add(n)
                    good += 1
                except psycopg.Error as e:
                    good = 0
                    refused.append(e)
                    if e.sqlstate == "08007":
                        unknown.add(n)
        return good

    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n int8)")
    threads = [threading.Thread(target=write, args=(1000 * k, 40), daemon=True) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    # Every failpoint fires once: behind them all it works again.
    assert write(10_000, 60) >= 10
    assert refused, "the disk was never full"
    assert {e.sqlstate for e in refused} <= {"53100", "58030", "08007"}
    assert any("No space left on device" in str(e) for e in refused)
    there = {row[0] for row, _, _ in Store(server.data_dir).found(["t"]).updates["t"]}
    assert acknowledged <= there <= acknowledged | unknown
    assert server.terminate() == 0


def test_a_folder_that_cannot_be_written(server: ServerProcess, connection: Connection, table: str) -> None:
    """One table's parts have nowhere to go (a file stands where their folder was): its writers are told so,
    others go on, and once the folder is back so are the writes."""
    other = f"{table}_2"
    for name in (table, other):
        connection.execute(query(name, "CREATE TABLE {} (n int8)"))
        connection.execute(query(name, "INSERT INTO {} VALUES (1)"))
    shard = Store(server.data_dir).tables()[table].shard
    folder = Path(server.data_dir) / "shards" / shard / "parts"
    aside = folder.with_name("aside")
    until(folder.is_dir, "the table has no parts")
    folder.rename(aside)
    folder.write_text("in the way")
    try:
        with pytest.raises(psycopg.Error) as e:
            connection.execute(query(table, "INSERT INTO {} VALUES (2)"))
        assert e.value.sqlstate in ("58030", "53100", "25006")
        assert "could not write" in str(e.value)
        connection.execute(query(other, "INSERT INTO {} VALUES (2)"))
        # A transaction over both: all or nothing.
        with pytest.raises(psycopg.Error), connection.transaction():
            connection.execute(query(other, "INSERT INTO {} VALUES (3)"))
            connection.execute(query(table, "INSERT INTO {} VALUES (3)"))
    finally:
        folder.unlink()
        aside.rename(folder)
    connection.execute(query(table, "INSERT INTO {} VALUES (4)"))
    assert sorted(connection.execute(query(table, "SELECT n FROM {}"))) == [(1,), (4,)]
    assert sorted(connection.execute(query(other, "SELECT n FROM {}"))) == [(1,), (2,)]


def test_a_data_directory_that_is_none(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("not a folder")
    with pytest.raises(ServerError) as e:
        start_server(data_dir=path)
    assert "ended with status 1" in str(e.value)
    assert "Traceback" not in str(e.value)
    assert str(path) in str(e.value)


def test_a_conflict_names_the_table(dsn: str, table: str) -> None:
    with psycopg.connect(dsn) as first, psycopg.connect(dsn, autocommit=True) as second:
        second.execute(query(table, "CREATE TABLE {} (k int)"))
        second.execute(query(table, "INSERT INTO {} VALUES (1)"))
        first.execute(query(table, "UPDATE {} SET k = k + 1"))
        second.execute(query(table, "INSERT INTO {} VALUES (5)"))
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            first.commit()
    assert (caught.value.diag.message_detail or "").startswith(f'Relation "{table}" was read at ')
    assert caught.value.diag.message_hint == "Run the transaction again."
