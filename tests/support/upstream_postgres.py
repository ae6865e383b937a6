"""A real PostgreSQL as the upstream of sources, started once per run by the first test that asks for it.

The fixture `upstream` gives each test a database of its own on it, with logical replication. A test that
kills or restarts the server starts one of its own (`tidemill.dev.postgres`).
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tidemill.dev.postgres import Postgres
from tidemill.dev.process import HOST
from tidemill.errors import Unavailable

# Debian's package postgresql-15, where it is installed.
OLDER_BINARIES = Path("/usr/lib/postgresql/15/bin")
_NUMBERS = itertools.count(1)


class UpstreamDatabase:
    """A database on the server of the test run. `options` are those of a connection."""

    def __init__(self, process: Postgres, name: str) -> None:
        self.process = process
        self.name = name
        self.options: dict[str, Any] = {
            "host": HOST,
            "port": process.port,
            "database": name,
            "user": "postgres",
            "ssl_mode": "disable",
        }

    @property
    def dsn(self) -> str:
        return f"host={HOST} port={self.process.port} user=postgres dbname={self.name} client_encoding=UTF8"

    def session(self) -> psycopg.Connection[Any]:
        """A session that commits each statement."""
        return psycopg.connect(self.dsn, autocommit=True)

    def run(self, *statements: LiteralString | str) -> None:
        with self.session() as sql:
            for statement in statements:
                sql.execute(statement.encode())

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.session() as sql:
            return sql.execute(statement.encode(), parameters or None).fetchall()


@pytest.fixture(scope="session")
def upstream_server() -> Iterator[Postgres]:
    # Not a folder of pytest: run by root, PostgreSQL has a user of its own, who must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="tidemill-upstream-"))
    process = Postgres(
        folder,
        settings={"max_replication_slots": "40", "max_wal_senders": "40", "max_prepared_transactions": "10"},
    )
    try:
        process.start()
        yield process
    finally:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def upstream(upstream_server: Postgres) -> Iterator[UpstreamDatabase]:
    """Its slots and its database go with the test."""
    database = UpstreamDatabase(upstream_server, f"test_{next(_NUMBERS)}")
    admin = UpstreamDatabase(upstream_server, "postgres")
    admin.run(f"CREATE DATABASE {database.name}")
    yield database
    admin.query(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active",
        [database.name],
    )
    for (slot,) in admin.query(
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = %s AND NOT temporary",
        [database.name],
    ):
        _drop_slot(admin, slot)
    admin.run(f"DROP DATABASE {database.name} WITH (FORCE)")


def _drop_slot(admin: UpstreamDatabase, slot: str) -> None:
    """Its reader may end a moment later, and a source that was dropped drops its slot in the background."""
    deadline = time.monotonic() + 10
    while True:
        try:
            admin.query("SELECT pg_drop_replication_slot(%s)", [slot])
            return
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def start_again(process: Postgres) -> None:
    """After kill -9: its children end a moment later, and until then it refuses to start."""
    deadline = time.monotonic() + 60
    while True:
        try:
            process.start()
            return
        except Unavailable as e:
            if "pre-existing shared memory" not in f"{e.detail}" or time.monotonic() > deadline:
                raise
        time.sleep(0.2)
