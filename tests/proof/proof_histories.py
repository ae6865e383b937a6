"""Sessions that run transactions against a real server at once, and the history of what they saw.

`play` runs one program per session and gives the `History` that `proof_model.check` judges. Most transactions
end as their client wishes. Those with a `fate` do not: the connection is cut with the last statement on its
way, the session is ended by another, the statement is cancelled. What then became of them only the shards
know: they are there whole, at one time, or not at all.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from proof_model import TABLES, Anomaly, Copy, Delete, History, Insert, Op, Read, Row, Update, Write
from proof_store import Store
from psycopg import pq, sql

from support.server import ServerProcess

# leave: the connection is closed before the last statement (of a block: COMMIT) is sent; cut: right after it
# was sent; cancel, terminate: the same is asked of the server.
Fate = Literal["leave", "cut", "cancel", "terminate"]
FATES: tuple[Fate, ...] = ("leave", "cut", "cancel", "terminate")
NEVER = float("inf")
# Of this many commits of a history at most, what was there before and after is read: two queries each.
COMMITS_READ = 4


@dataclass(frozen=True)
class WriteTxn:
    """`block`: in BEGIN ... COMMIT, else a statement by itself. Inside a block a row of `log` names it; a
    single statement is found by its tag. With a `fate` what it is about to do last is disturbed, `delay`
    seconds after it was sent."""

    ops: tuple[Op, ...]
    block: bool
    commit: bool = True
    fate: Fate | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class ReadTxn:
    """`block`: one SELECT per table in BEGIN ... COMMIT, else one for all. `as_of` picks a time that was
    read before; `at_least`: that time or later. `serializable`: not bound to real time."""

    block: bool = False
    as_of: int | None = None
    at_least: bool = False
    serializable: bool = False


Txn = WriteTxn | ReadTxn
Connection = psycopg.Connection[Any]


@dataclass
class World:
    """What the sessions of one example share."""

    dsn: str
    suffix: str
    history: History = field(default_factory=History)
    times: list[int] = field(default_factory=list[int])
    errors: list[BaseException] = field(default_factory=list[BaseException])
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: int = 0

    def name(self, table: str) -> sql.Identifier:
        return sql.Identifier(f"{table}_{self.suffix}")

    def next_id(self) -> int:
        with self.lock:
            self.last += 1
            return self.last

    def connect(self) -> Connection:
        # Parameters are written into the statements: a statement is one message, to be cut off from.
        return psycopg.connect(self.dsn, autocommit=True, cursor_factory=psycopg.ClientCursor)


def statement(world: World, op: Op, tag: int) -> tuple[sql.Composed, list[int]]:
    match op:
        case Insert(table, rows):
            marks = sql.SQL(", ").join([sql.SQL("(%s, %s, %s)")] * len(rows))
            text = sql.SQL("INSERT INTO {} VALUES {}").format(world.name(table), marks)
            return text, [value for k, v in rows for value in (k, v, tag)]
        case Update(table, k, d):
            text = sql.SQL("UPDATE {} SET v = v + %s, tag = %s WHERE k = %s").format(world.name(table))
            return text, [d, tag, k]
        case Delete(table, k):
            return sql.SQL("DELETE FROM {} WHERE k = %s").format(world.name(table)), [k]
        case Copy(table, source, k, d):
            text = sql.SQL("INSERT INTO {} SELECT k, v + %s, %s FROM {} WHERE k = %s")
            return text.format(world.name(table), world.name(source)), [d, tag, k]


def write(world: World, connection: Connection, txn: WriteTxn) -> None:
    tag = world.next_id()
    counts: list[int] = []
    outcome = "failed"
    ended: float | None = None
    log = sql.SQL("INSERT INTO {} VALUES (%s)").format(world.name("log"))
    began = time.monotonic()
    try:
        if txn.block:
            connection.execute("BEGIN")
        for op in txn.ops if txn.block or txn.fate is None else txn.ops[:-1]:
            counts.append(connection.execute(*statement(world, op, tag)).rowcount)
        if txn.block and txn.commit:
            connection.execute(log, [tag])
        if txn.fate is not None:
            outcome = disturb(world, connection, txn, tag, counts)
            # A cancel or an end that came late must not hit the next transaction.
            connection.close()
        elif txn.block:
            connection.execute("COMMIT" if txn.commit else "ROLLBACK")
            outcome = "ack" if txn.commit else "failed"
        else:
            outcome = "ack"
    except psycopg.errors.SerializationFailure:
        pass
    if not connection.closed and connection.info.transaction_status != pq.TransactionStatus.IDLE:
        connection.execute("ROLLBACK")
    # Nobody knows when one ended that was not answered.
    ended = NEVER if outcome == "unknown" else time.monotonic()
    with world.lock:
        world.history.writes.append(Write(tag, txn.ops, tuple(counts), began, ended, outcome))


def disturb(world: World, connection: Connection, txn: WriteTxn, tag: int, counts: list[int]) -> str:
    """Send the last statement, and let its fate come; the outcome as far as the client knows."""
    if txn.fate == "leave":
        return "failed"
    last = (
        "COMMIT"
        if txn.block
        else psycopg.ClientCursor(connection).mogrify(*statement(world, txn.ops[-1], tag))
    )
    pgconn = connection.pgconn
    pgconn.send_query(last.encode())
    time.sleep(txn.delay)
    if txn.fate == "cut":
        return "unknown"
    if txn.fate == "cancel":
        connection.cancel_safe(timeout=60)
    else:
        with world.connect() as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if result is not None and result.status == pq.ExecStatus.COMMAND_OK:
        if not txn.block:
            counts.append(int(result.command_tuples or 0))
        return "ack"
    state = None if result is None else result.error_field(pq.DiagnosticField.SQLSTATE)
    if pgconn.status != pq.ConnStatus.OK:
        return "unknown"
    # Cancelled, or refused because of others: it says that nothing happened.
    assert state in (b"57014", b"40001"), state
    return "failed"


def read(
    world: World, connection: Connection, txn: ReadTxn, between: Callable[[], None] | None = None
) -> None:
    """`between` is called in a block after each table's SELECT."""
    at: int | None = None
    if txn.as_of is not None:
        with world.lock:
            at = world.times[txn.as_of % len(world.times)] if world.times else None
    level = "SERIALIZABLE" if txn.serializable else "STRICT SERIALIZABLE"
    began = time.monotonic()
    if txn.block:
        seen: dict[str, Counter[Row]] = {}
        connection.execute(f"BEGIN ISOLATION LEVEL {level} READ ONLY".encode())
        row = connection.execute("SELECT mz_now()").fetchone()
        assert row is not None
        now = int(row[0])
        for table in TABLES:
            seen[table] = Counter(connection.execute(sql.SQL("SELECT * FROM {}").format(world.name(table))))
            if between is not None:
                between()
        connection.execute("COMMIT")
    else:
        connection.execute(f"SET transaction_isolation = '{level}'".encode())
        now, seen = read_all(world, connection, at, at_least=txn.at_least)
        connection.execute("RESET transaction_isolation")
    ended = time.monotonic()
    with world.lock:
        free = at is not None or txn.serializable
        world.history.reads.append(Read(now, seen, began, ended, as_of=free))
        world.times.append(now)


def read_all(
    world: World, connection: Connection, at: int | None, *, at_least: bool = False
) -> tuple[int, dict[str, Counter[Row]]]:
    """Both tables and the time in one SELECT; a row without a table tells the time where both are empty."""
    selects: list[sql.Composable] = [
        sql.SQL("SELECT mz_now(), {}, k, v, tag FROM {}").format(sql.Literal(table), world.name(table))
        for table in TABLES
    ]
    selects.append(sql.SQL("SELECT mz_now(), NULL, NULL, NULL, NULL"))
    text = sql.SQL(" UNION ALL ").join(selects)
    if at is not None:
        text += sql.SQL(" AS OF AT LEAST {}" if at_least else " AS OF {}").format(sql.Literal(at))
    rows = connection.execute(text).fetchall()
    assert len({row[0] for row in rows}) == 1
    seen = {t: Counter[Row](tuple(row[2:]) for row in rows if row[1] == t) for t in TABLES}
    now = int(rows[0][0])
    assert at is None or (now >= at if at_least else now == at)
    return now, seen


def session(world: World, program: list[Txn], start: threading.Barrier) -> None:
    connection: Connection | None = None
    try:
        connection = world.connect()
        start.wait(180)
        for txn in program:
            if connection.closed:
                connection = world.connect()
            if isinstance(txn, WriteTxn):
                write(world, connection, txn)
            else:
                read(world, connection, txn)
    except BaseException as e:
        world.errors.append(e)
    finally:
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def play(server: ServerProcess, dsn: str, programs: list[list[Txn]]) -> History:
    """Run the programs at once; the history with the times of all writes."""
    with tables(server, dsn) as (world, connection):
        start = threading.Barrier(len(programs))
        threads = [threading.Thread(target=session, args=(world, p, start), daemon=True) for p in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(500)
            assert not thread.is_alive(), "a session hangs"
        if world.errors:
            raise world.errors[0]
        read(world, connection, ReadTxn())
    return world.history


@contextmanager
def tables(server: ServerProcess, dsn: str) -> Generator[tuple[World, Connection]]:
    """Tables of their own for one example. When it is over the history gets the times of all writes, and
    reads right around some of them."""
    world = World(dsn, uuid.uuid4().hex[:12])
    with world.connect() as connection:
        for table in TABLES:
            text = sql.SQL("CREATE TABLE {} (k int4, v int8, tag int8)")
            connection.execute(text.format(world.name(table)))
        connection.execute(sql.SQL("CREATE TABLE {} (id int8)").format(world.name("log")))
        yield world, connection
        find_times(world, Store(server.data_dir))
        read_around(world, connection)
        for table in (*TABLES, "log"):
            connection.execute(sql.SQL("DROP TABLE {}").format(world.name(table)))


def read_around(world: World, connection: Connection) -> None:
    """The moments of some commits and the ones right before: where a read that is off by one time shows."""
    times = sorted({w.time for w in world.history.writes if w.time is not None})
    for at in times[:: -(-len(times) // COMMITS_READ)] if times else ():
        for moment in (at - 1, at):
            began = time.monotonic()
            now, seen = read_all(world, connection, moment)
            world.history.reads.append(Read(now, seen, began, time.monotonic(), as_of=True))


def find_times(world: World, store: Store) -> None:
    names = {table: f"{table}_{world.suffix}" for table in (*TABLES, "log")}
    found = store.found(list(names.values()))
    times: dict[int, set[int]] = {}
    for (number,), at, _ in found.updates[names["log"]]:
        times.setdefault(number, set()).add(at)
    for table in TABLES:
        for row, at, diff in found.updates[names[table]]:
            if diff > 0:
                times.setdefault(row[2], set()).add(at)
    for write in world.history.writes:
        at = times.pop(write.id, set[int]())
        if len(at) > 1:
            raise Anomaly(f"transaction {write.id} is spread over the times {sorted(at)}")
        write.time = at.pop() if at else None
    if times:
        raise Anomaly(f"there are rows of the transactions {sorted(times)}, which nobody ran")
