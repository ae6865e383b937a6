"""A durable subscription under kill -9 of the server and of its reader, while its table is written: a reader
that stores its position with its effects has every change exactly once. `make chaos` goes on for many rounds.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from support.server import ServerProcess

# Where the server is killed: an acknowledgement is durable, a commit or a part of it is.
STEPS = (None, "subscriptions.acknowledged", "persist.part.written", "txns.entry.put")
SECONDS = 300.0


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ServerProcess(folder / "data")
        self.server.spark = False  # a table needs none
        self.reader: subprocess.Popen[bytes] | None = None
        self.written = 0

    def start(self, step: str | None, hit: int) -> None:
        self.server.env = {} if step is None else {"TIDEMILL_FAILPOINTS": f"{step}=kill@{hit}"}
        self.server.start(wait_sql=False)
        while self.server.returncode is None:
            try:
                psycopg.connect(self.server.sql_dsn).close()
                break
            except psycopg.OperationalError:
                time.sleep(0.05)
        (self.folder / "dsn").write_text(self.server.sql_dsn)

    def read(self) -> None:
        """A reader; one that runs is killed."""
        if self.reader is not None:
            self.reader.kill()
            self.reader.wait()
        script = Path(__file__).with_name("subscription_reader.py")
        self.reader = subprocess.Popen([sys.executable, str(script), str(self.folder)])

    def effects(self) -> list[int]:
        with sqlite3.connect(self.folder / "effects.db") as store:
            return [row for (row,) in store.execute("SELECT id FROM effects")]

    def write(self, stop: threading.Event) -> None:
        try:
            with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
                while not stop.is_set():
                    self.written += 1
                    c.execute(f"INSERT INTO t VALUES ({self.written})".encode())
        except psycopg.OperationalError:
            pass  # the server was killed; whether the row is there, the end tells

    def round(self, step: str | None, dice: random.Random) -> None:
        """A life of the server, with one death of the reader."""
        self.start(step, dice.randint(3, 40))
        stop = threading.Event()
        writer = threading.Thread(target=self.write, args=(stop,))
        writer.start()
        first, deadline = self.written, time.monotonic() + SECONDS
        killed = False
        while self.server.returncode is None and self.written < first + 60:
            assert time.monotonic() < deadline, self.server.log[-4000:]
            if not killed and self.written > first + dice.randint(5, 30):
                self.read()
                killed = True
            time.sleep(0.01)
        self.server.kill9()
        stop.set()
        writer.join()

    def end(self) -> None:
        self.start(None, 0)
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            there = [int(row[2]) for row in c.execute("SUBSCRIBE t UP TO LATEST")]
        deadline = time.monotonic() + SECONDS
        while len(self.effects()) < len(there):
            assert time.monotonic() < deadline, (len(self.effects()), len(there), self.server.log[-4000:])
            time.sleep(0.1)
        assert sorted(self.effects()) == sorted(there)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.kill()
            self.reader.wait()
        self.server.close()


@pytest.fixture
def world(tmp_path: Path) -> Generator[World]:
    world = World(tmp_path)
    world.start(None, 0)
    with psycopg.connect(world.server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE t (id int)")
        c.execute("CREATE SUBSCRIPTION s FOR t")
    world.read()
    world.server.kill9()
    yield world
    world.close()


def _play(world: World, rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    for n in range(rounds):
        world.round(STEPS[n % len(STEPS)], dice)
    world.end()


@pytest.mark.server
def test_every_change_once_over_kills(world: World) -> None:
    _play(world, 5, 23)


@pytest.mark.server
@pytest.mark.chaos
def test_every_change_once_over_many_kills(world: World) -> None:
    _play(world, 200, time.time_ns())
