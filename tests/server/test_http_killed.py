"""Server-sent events of a server that is killed: whoever comes back with Last-Event-ID has no gap, no repeat,
and no second snapshot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from httpstreams import SECONDS, Held, listening, run

from support.server import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

LAST = -1
# Statements between two deaths.
BETWEEN = 20


class Writer:
    """Inserts rows in pairs until it is told to stop, and then those of LAST. What was acknowledged is
    counted; a server that is away is waited for, and what was under way is written again under other numbers:
    nobody knows whether it was."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._number = 0
        self.acknowledged: Counter[tuple[Any, ...]] = Counter()
        self.tried: Counter[tuple[Any, ...]] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._connected(lambda: not self._stop.is_set())
        while not self.acknowledged[(LAST, 0)]:
            self._number = LAST
            self._connected(lambda: not self.acknowledged[(LAST, 0)])

    def _connected(self, wanted: Any) -> None:
        try:
            with psycopg.connect(self._server.sql_dsn, autocommit=True) as c:
                while wanted():
                    rows = [(self._number, 0), (self._number, 1)]
                    self._number += 1
                    self.tried.update(rows)
                    c.execute("INSERT INTO t VALUES (%s, %s), (%s, %s)", [x for row in rows for x in row])
                    self.acknowledged.update(rows)
        except psycopg.OperationalError:
            time.sleep(0.02)


def kills(folder: Path, count: int) -> None:
    server = ServerProcess(folder / "data")
    server.spark = False
    server.start()
    held, last = Held(), None
    connections = 0

    async def listen() -> bool:
        """Until the connection ends; whether the last rows have come."""
        nonlocal last, connections
        async with listening(server, "materialize", "t", last) as listener:
            assert listener.answer.status_code == 200
            connections += 1
            held.connected()
            while (LAST, 1) not in held.rows:
                event = await listener.hear()
                held.apply(event)
                last = event.id or last
        return True

    async def reading() -> None:
        while True:
            try:
                if await listen():
                    return
            except (httpx.TransportError, StopAsyncIteration):
                await asyncio.sleep(0.02)

    async def work() -> None:
        reader = asyncio.create_task(reading())
        writer = Writer(server)
        for _ in range(count):
            seen = len(held.times)
            while len(held.times) < seen + BETWEEN:
                assert not reader.done()
                await asyncio.sleep(0.01)
            server.kill9()
            await asyncio.to_thread(server.start)
        await asyncio.to_thread(writer.stop)
        await asyncio.wait_for(reader, SECONDS)
        assert connections == count + 1 and held.snapshots == 1
        # Everything once, whole statements; what was acknowledged, and what else was written.
        assert set(held.rows.values()) == {1}
        assert not writer.acknowledged - held.rows and not held.rows - writer.tried
        assert {n for n, k in held.rows if k} == {n for n, k in held.rows if not k}

    try:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            c.execute("CREATE TABLE t (n int, k int)")
        run(work(), 600)
    finally:
        server.close()


def test_the_server_is_killed(tmp_path: Path) -> None:
    kills(tmp_path, 2)


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(4))
def test_the_server_is_killed_many_times(tmp_path: Path, number: int) -> None:
    """20 times, five in each data directory."""
    kills(tmp_path, 5)
