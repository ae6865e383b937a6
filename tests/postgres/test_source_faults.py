"""Faults of the upstream: a status that says what to do, and then all goes on, or it is definitely lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from client.client_proxy import Proxy
from postgres.source_world import WAIT_SECONDS, SourceWorld
from support.upstream_postgres import UpstreamDatabase, start_again
from tidemill.dev.postgres import Postgres
from tidemill.sources.contract import UpstreamError, UpstreamLost
from tidemill.sources.postgres import receiver, source, table_faults
from tidemill.sources.postgres.failures import NotPublished
from tidemill.sources.postgres.lsn import parse_lsn

pytestmark = pytest.mark.server

SETTINGS = {"max_slot_wal_keep_size": "32MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[Postgres]:
    """A server that tests may kill."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-mortal-"))
    process = Postgres(folder, settings=SETTINGS)
    try:
        process.start()
        yield process
    finally:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(table_faults, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(receiver, "STATUS_SECONDS", 0.1)
    monkeypatch.setattr(receiver, "LAST_RETRY_SECONDS", 0.3)


Opened = Callable[..., SourceWorld]
_SETUP = (
    "CREATE TABLE t (id int, v text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "INSERT INTO t VALUES (1, 'snapshot')",
    "CREATE PUBLICATION p FOR TABLE t",
)


@pytest.fixture
def opened(upstream: UpstreamDatabase) -> Iterator[Opened]:
    worlds: list[SourceWorld] = []

    def open_() -> SourceWorld:
        upstream.run(*_SETUP)
        worlds.append(SourceWorld(upstream, "t"))
        worlds[-1].catch_up()
        return worlds[-1]

    yield open_
    for world in worlds:
        world.close()


@pytest.fixture
def mortal(mortal_server: Postgres) -> Iterator[SourceWorld]:
    """A source of a server that may be killed."""
    database = UpstreamDatabase(mortal_server, "postgres")
    database.run("DROP TABLE IF EXISTS t", "DROP PUBLICATION IF EXISTS p", *_SETUP)
    world = SourceWorld(database, "t")
    world.catch_up()
    yield world
    world.close()
    if mortal_server.running:
        _without_slots(database)


def _without_slots(database: UpstreamDatabase) -> None:
    for name, pid in database.query("SELECT slot_name::text, active_pid FROM pg_replication_slots"):
        if pid is not None:
            database.query("SELECT pg_terminate_backend(%s, 5000)", [pid])
        database.query("SELECT pg_drop_replication_slot(%s)", [name])


def goes_on(world: SourceWorld) -> None:
    """Nothing is missing, and nothing is there twice."""
    world.upstream.run("INSERT INTO t VALUES (100, 'later')", "UPDATE t SET id = id + 1")
    world.catch_up()
    assert world.table() == world.wanted("SELECT * FROM t")
    assert not world.errors[0]


def end_sender(world: SourceWorld) -> None:
    world.upstream.query(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
        [world.slot],
    )


def failing(world: SourceWorld, sqlstate: str) -> UpstreamError:
    """It soon has this error."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (error := world.failure()).sqlstate != sqlstate:
        assert time.monotonic() < deadline, error
    return error


def lost(world: SourceWorld, text: str) -> UpstreamError:
    """It is lost for good, and says so."""
    deadline = time.monotonic() + WAIT_SECONDS
    error = world.failure()
    while not isinstance(error, UpstreamLost):
        assert time.monotonic() < deadline, error
        error = world.failure()
    assert text in error.primary and error.permanent
    assert error.hint is not None
    return error


# -- the slot


def test_the_slot_is_dropped_under_us(opened: Opened) -> None:
    world = opened()
    end_sender(world)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            world.upstream.query("SELECT pg_drop_replication_slot(%s)", [world.slot])
            break
        except Exception:
            assert time.monotonic() < deadline
            end_sender(world)
    error = lost(world, "does not exist any more")
    assert "create it again" in str(error.hint)
    # Also for the next server.
    world.source.close()
    world.crash()
    lost(world, "does not exist any more")


def test_the_slot_is_in_use(opened: Opened) -> None:
    world = opened()
    world.source.close()
    other = SourceWorld(world.upstream, "t")
    other.definition = {**world.definition}
    other.source.close()
    other.bound = world.bound
    other.crash()
    other.bind()
    world.crash()
    error = world.failure()
    assert error.sqlstate == "55006" and error.transient and "wal_sender_timeout" in str(error.hint)
    other.close()
    goes_on(world)


def test_another_reader_moves_the_slot(opened: Opened) -> None:
    world = opened()
    world.upstream.run("INSERT INTO t VALUES (2, 'stolen')")
    world.source.close()
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            world.upstream.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [world.slot])
            break
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    world.crash()
    error = lost(world, "was moved by another reader")
    assert "Only Tidemill may use" in str(error.hint)


def test_the_server_removes_what_the_slot_needs(mortal: SourceWorld) -> None:
    """max_slot_wal_keep_size is passed while the source is away."""
    mortal.source.close()
    for _ in range(8):
        mortal.upstream.run("SELECT pg_logical_emit_message(false, 'x', repeat('x', 10000000))")
        mortal.upstream.run("SELECT pg_switch_wal()", "CHECKPOINT")
    ((status,),) = mortal.upstream.query(
        "SELECT wal_status::text FROM pg_replication_slots WHERE slot_name = %s", [mortal.slot]
    )
    assert status == "lost"
    mortal.crash()
    error = lost(mortal, "has lost changes")
    assert "max_slot_wal_keep_size" in f"{error.detail} {error.hint}"


def test_the_slot_moves_while_the_tables_are_quiet(opened: Opened) -> None:
    """Else the server would keep all that is written to other tables."""
    world = opened()
    world.upstream.run("CREATE TABLE busy (v text)")
    positions: list[tuple[int, int]] = []
    for _ in range(4):
        world.upstream.run("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
        written = world.now()
        # For the slot to release old log, the server must have noted which transactions run.
        world.upstream.run("CHECKPOINT")
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            world.catch_up(0)
            confirmed, restart = (parse_lsn(str(value)) for value in _slot(world))
            if confirmed >= written and (not positions or restart > positions[-1][1]):
                break
            assert time.monotonic() < deadline, "the slot stays where it is"
            time.sleep(0.1)
        positions.append((confirmed, restart))
    assert world.source.frontier(0)[None] >= positions[-1][0]
    goes_on(world)


def _slot(world: SourceWorld) -> tuple[str, str]:
    ((confirmed, restart),) = world.upstream.query(
        "SELECT confirmed_flush_lsn::text, restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        [world.slot],
    )
    return confirmed, restart


# -- the server


def test_the_server_is_killed_and_comes_back(mortal: SourceWorld, mortal_server: Postgres) -> None:
    upstream = mortal.upstream
    for n in range(3):
        upstream.run(f"INSERT INTO t SELECT i, 'round {n}' FROM generate_series(1, 200) i")
        with contextlib.suppress(psycopg.OperationalError), upstream.session() as sql:
            sql.execute("BEGIN")
            sql.execute("INSERT INTO t SELECT i, 'never committed' FROM generate_series(1, 200) i")
            mortal_server.kill()
        if n == 1:
            mortal.crash()
        error = mortal.failure()
        assert error.transient
        start_again(mortal_server)
        goes_on(mortal)


def test_the_server_has_another_timeline(mortal: SourceWorld, mortal_server: Postgres) -> None:
    """As behind a failover: what was read may not have happened there."""
    mortal_server.stop()
    signal_file = mortal_server.folder / "data" / "standby.signal"
    signal_file.touch()
    owner = (mortal_server.folder / "data").stat()
    os.chown(signal_file, owner.st_uid, owner.st_gid)
    # It is ready when it is promoted.
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(mortal_server.start)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                mortal.upstream.query("SELECT pg_promote()")
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline
            time.sleep(0.1)
        started.result()
    # (A reader of a standby may stay connected while it is promoted.)
    end_sender(mortal)
    error = lost(mortal, "has begun another timeline")
    assert "on timeline 1; now it is on timeline 2" in str(error.detail)


def test_another_server_answers(mortal: SourceWorld, opened: Opened) -> None:
    world = opened()
    world.source.close()
    world.definition["connection"] = {**mortal.definition["connection"]}
    world.crash()
    assert "system identifier" in str(lost(world, "another PostgreSQL server answers").detail)


def test_the_password_changes(mortal: SourceWorld, mortal_server: Postgres) -> None:
    upstream = mortal.upstream
    hba = mortal_server.folder / "data" / "pg_hba.conf"
    before = hba.read_text()
    upstream.run("DROP ROLE IF EXISTS reader", "CREATE ROLE reader SUPERUSER LOGIN PASSWORD 'right'")
    try:
        hba.write_text(f"host all,replication reader 127.0.0.1/32 scram-sha-256\n{before}")
        upstream.run("SELECT pg_reload_conf()")
        options = {**mortal.definition["connection"], "user": "reader", "password": "right"}
        mortal.definition["connection"] = options
        mortal.crash()
        goes_on(mortal)
        upstream.run("ALTER ROLE reader PASSWORD 'other'")
        end_sender(mortal)
        error = failing(mortal, "28P01")
        assert error.hint == "Check USER and PASSWORD of the connection."
        upstream.run("ALTER ROLE reader PASSWORD 'right'")
        goes_on(mortal)
        upstream.run("ALTER ROLE reader NOSUPERUSER")
        end_sender(mortal)
        assert failing(mortal, "08001").hint == "ALTER ROLE reader REPLICATION; at the server"
    finally:
        hba.write_text(before)
        upstream.run("SELECT pg_reload_conf()")


# -- the publication


def test_the_publication_is_dropped(opened: Opened) -> None:
    """Even if it comes back: what changed meanwhile is not in the stream."""
    world = opened()
    world.upstream.run("DROP PUBLICATION p")
    error = world.failure()
    assert 'publication "p" does not exist upstream' in error.primary
    assert "Drop the source" in str(error.hint)
    # It stays an error, and does not come and go.
    for _ in range(20):
        with pytest.raises(UpstreamError, match="does not exist upstream"):
            world.source.frontier(0)
        time.sleep(0.05)
    world.upstream.run("DELETE FROM t", "CREATE PUBLICATION p FOR TABLE t")
    deadline = time.monotonic() + WAIT_SECONDS
    while not world.errors[0]:
        assert time.monotonic() < deadline
        with contextlib.suppress(NotPublished):
            world.catch_up(0)
    assert "publication p was altered or created again upstream" in world.errors[0][0]


# -- the network


@pytest.mark.parametrize("budget", [0, 1500, 150_000, 2_000_000])
def test_the_connection_is_cut_inside_a_transaction(opened: Opened, budget: int) -> None:
    world = opened()
    world.source.close()
    target = world.upstream.process.port
    with Proxy(lambda: target) as proxy:
        world.definition["connection"] = {**world.definition["connection"], "port": proxy.port}
        world.crash()
        world.catch_up()
        # Every second connection is one for the catalog: it is cut too, if it says so much.
        proxy.cut_next([budget] * 8)
        world.upstream.run(
            "INSERT INTO t SELECT i, 'large ' || repeat('x', 40) FROM generate_series(1, 20000) i",
            "UPDATE t SET id = -id WHERE id % 2 = 0",
        )
        goes_on(world)
        assert proxy.cuts > 0 or budget == 2_000_000
        world.close()


def test_a_connection_that_says_nothing_is_opened_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the process that the server still has for it does not keep the slot."""
    world = opened()
    monkeypatch.setattr(receiver, "SILENT_SECONDS", 1.0)
    ((pid,),) = world.upstream.query(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [world.slot]
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while "in use" not in (error := world.failure()).primary:
            assert time.monotonic() < deadline, error
    finally:
        os.kill(pid, signal.SIGCONT)
    # It was told to end; nobody waits for wal_sender_timeout.
    began = time.monotonic()
    goes_on(world)
    assert time.monotonic() - began < 30


# -- large things


@pytest.mark.parametrize("megabytes", [16, pytest.param(200, marks=pytest.mark.chaos)])
def test_a_large_row(opened: Opened, megabytes: int) -> None:
    """In the stream, with its old row, and in the snapshot."""
    world = opened()
    world.upstream.run(
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT 2, repeat('x', {megabytes * 1_000_000})",
        "UPDATE t SET id = 3 WHERE id = 2",
    )
    world.catch_up()
    assert sorted((row[0], len(row[1])) for row in world.table()) == [(1, 8), (3, megabytes * 1_000_000)]
    other = SourceWorld(world.upstream, "t")
    other.catch_up()
    assert other.table() == world.table()
    other.close()
    world.upstream.run("DELETE FROM t WHERE id = 3")
    world.catch_up()
    assert [row[0] for row in world.table()] == [1]


# -- errors of tables, and restarts


def test_a_table_that_is_lost_while_the_server_is_away(opened: Opened) -> None:
    """The slot is behind what was bound: the error must not be put where nobody reads any more."""
    world = opened()
    world.upstream.run("INSERT INTO t VALUES (2, 'x')", "CREATE TABLE other (id int)")
    # All of this is in the shards, and the slot does not know it.
    lower, upper = world.bind()
    world.kept[0].update(world.read(lower, upper)[0][0])
    world.source.close()
    world.upstream.run("ALTER PUBLICATION p SET TABLE other", "DELETE FROM t")
    world.crash()
    deadline = time.monotonic() + WAIT_SECONDS
    while not world.errors[0]:
        assert time.monotonic() < deadline, "the table is silently wrong"
        world.catch_up(0)
    assert "is no longer in publication p" in world.errors[0][0]
    # The error is the last thing that happened; its position is not one of the server. (Unless WAL of the
    # server's own came meanwhile.)
    world.crash()
    world.catch_up(0)


def test_an_error_of_a_table_does_not_hide_the_next_transaction(upstream: UpstreamDatabase) -> None:
    """Its position is between two of PostgreSQL; a transaction may begin its commit at the first of them."""
    upstream.run(*_SETUP, "CREATE TABLE u (id int)", *_FULL_U, "ALTER PUBLICATION p ADD TABLE u")
    world = SourceWorld(upstream, "t", "u")
    world.catch_up()
    with upstream.session() as first, upstream.session() as second:
        for n in range(10):
            second.execute("BEGIN")
            second.execute("INSERT INTO u VALUES (%s)", [n])
            first.execute("INSERT INTO t VALUES (%s, 'x')", [n])
            at = world.now()
            if n == 5:
                first.execute("ALTER PUBLICATION p DROP TABLE t")
                at = world.now()
                while not world.errors[0]:
                    world.catch_up(0)
                # Usually between two positions of the server: unless WAL of its own came meanwhile.
                world.crash()
            second.execute("COMMIT")
            world.catch_up(at)
    world.catch_up()
    assert world.table(1) == world.wanted("SELECT * FROM u")
    world.close()


_FULL_U = ("ALTER TABLE u REPLICA IDENTITY FULL",)
