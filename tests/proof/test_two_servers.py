"""Two servers: one writes a changing table out to a topic while it is killed, the other reads the topic while
it is killed. The other one's source with the stream's own times is the table at every time that both have;
its source with times of its own is at every time what the table was at some time, ever later, and in the end
what it is.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import psycopg
import pytest
from proof_sinks import PAUSE_SECONDS, Row, updates_of

from support.kafka import Kafka
from support.server import ServerProcess
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard

pytestmark = pytest.mark.server

SECONDS = 400.0
WRITER_STEPS = ("sink.settled", "sink.stated")
READER_STEPS = (
    "tick.bound",
    "tick.recovery.stashed",
    "tick.recovery.tallied",
    "tick.recovery.lined",
    "tick.committed",
)

# By time, what changes: rows and how many of each come (or go).
History = dict[int, Counter[Row]]


class Changes:
    """Somebody who inserts, updates and deletes, as long as the server lives; each row is there twice."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._next = 1
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, dsn: str) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(dsn,), daemon=True)
        self._thread.start()

    def _run(self, dsn: str) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as c:
                while not self._stop.wait(PAUSE_SECONDS):
                    c.execute(self._change().encode())
        except psycopg.Error:
            pass  # the server is dead

    def _change(self) -> str:
        n = self._rng.randrange(self._next)
        kind = self._rng.random()
        if kind < 0.2:
            return f"DELETE FROM t WHERE n = {n}"
        if kind < 0.5:
            # Most become different, some the same as others.
            return f"UPDATE t SET x = 'y{self._rng.randrange(9)}' WHERE n BETWEEN {n} AND {n + 2}"
        self._next += 1
        return f"INSERT INTO t VALUES ({self._next}, 'x'), ({self._next}, 'x')"

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class World:
    def __init__(self, folder: Path, kafka: Kafka) -> None:
        self.writer = ServerProcess(folder / "a")
        self.reader = ServerProcess(folder / "b")
        self.changes = Changes(7)
        self._topic = f"two-{time.time_ns()}"
        self._connection = f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')"
        # The last time of the table at each kill: the reader must come beyond all of them.
        self._kills: list[int] = []

    def create(self) -> None:
        self.writer.start()
        self._run(
            self.writer,
            "CREATE TABLE t (n int NOT NULL, x text)",
            "INSERT INTO t VALUES (0, 'first'), (0, 'first')",
            self._connection,
            f"CREATE SINK s FROM t INTO KAFKA CONNECTION k (TOPIC '{self._topic}', PARTITION COUNT 2) "
            "FORMAT JSON ENVELOPE MATERIALIZE",
        )
        self.changes.start(self.writer.sql_dsn)
        self.reader.start()
        source = f"FROM KAFKA CONNECTION k (TOPIC '{self._topic}') FORMAT JSON ENVELOPE MATERIALIZE"
        self._run(
            self.reader,
            self._connection,
            f"CREATE SOURCE s {source}",
            f"CREATE SOURCE o {source} WITH (TIMELINE 'theirs')",
        )

    def _run(self, server: ServerProcess, *statements: str) -> None:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            for statement in statements:
                c.execute(statement.encode())

    def kill_writer(self, failpoint: str) -> None:
        """It dies at the failpoint, and is there again, with somebody who writes to it."""
        self.writer.kill9()
        self.changes.stop()
        self.writer.env["TIDEMILL_FAILPOINTS"] = failpoint
        self.writer.start(wait_sql=False)
        with contextlib.suppress(Exception):
            self.writer.wait_sql(SECONDS)
            self.changes.start(self.writer.sql_dsn)
        self.writer.wait_exit(SECONDS)
        self.changes.stop()
        self._killed()
        self.writer.env.pop("TIDEMILL_FAILPOINTS")
        self.writer.start()
        self.changes.start(self.writer.sql_dsn)

    def kill_reader(self, failpoint: str) -> None:
        self.reader.kill9()
        self.reader.env["TIDEMILL_FAILPOINTS"] = failpoint
        self.reader.start(wait_sql=False)
        self.reader.wait_exit(SECONDS)
        self._killed()
        self.reader.env.pop("TIDEMILL_FAILPOINTS")
        self.check()
        self.reader.start()

    def _killed(self) -> None:
        self._kills.append(max(self.table()[0]))

    def table(self) -> tuple[History, int]:
        """The first one's, and up to where."""
        (shard,) = shards(self.writer.data_dir)
        return _history((u["n"], u["x"], u["mz_timestamp"], u["mz_diff"]) for u in updates_of(shard)), _upper(
            shard
        )

    def sources(self) -> tuple[tuple[History, int], tuple[History, int]]:
        """The second one's: with times of its own, and with the stream's."""
        found: list[tuple[History, int]] = []
        for shard in shards(self.reader.data_dir):
            upper, told = _upper(shard), list(updates_of(shard))
            assert all(update["mz_error"] is None for update in told), told
            history = _history((*_row(u["data"]), u["mz_timestamp"], u["mz_diff"]) for u in told)
            found.append((history, upper))
        reclocked, own = found
        return reclocked, own

    def quiet(self) -> None:
        """Nothing disturbs them: they become equal."""
        # Something of every life of the first one comes to the second: a source without rows proves nothing.
        self._wait(lambda: max(self.sources()[1][0], default=0) > max(self._kills))
        self.changes.stop()
        self._wait(lambda: all(_held(history) == _held(self.table()[0]) for history, _ in self.sources()))
        self.writer.terminate()
        self.reader.terminate()
        self.check()
        table = _held(self.table()[0])
        for history, _ in self.sources():
            assert _held(history) == table and len(table) > 5
        own = sorted(self.sources()[1][0])
        for before, after in zip([0, *sorted(self._kills)], [*sorted(self._kills), own[-1] + 1], strict=True):
            assert before == after or any(before < at <= after for at in own), (before, after)
        # Rows went as well as came, in both.
        assert any(n < 0 for change in self.sources()[1][0].values() for n in change.values())

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, self.reader.log[-3000:]
            time.sleep(0.5)

    def check(self) -> None:
        """What the second one has so far."""
        # First the reader: what it has the table had before.
        reclocked, own = self.sources()
        table = self.table()
        check_own_times(table, own)
        check_reclocked(table[0], reclocked[0])


def check_own_times(table: tuple[History, int], own: tuple[History, int]) -> None:
    """At every time that both have they hold the same: so each change of either is looked at. The stream
    begins with all that the table held at its first time."""
    if not own[0]:
        return
    begin, upper = min(own[0]), min(table[1], own[1])
    held: dict[str, Counter[Row]] = {"table": Counter(), "source": Counter()}
    for at in sorted({*table[0], *own[0]}):
        held["table"].update(table[0].get(at, Counter()))
        held["source"].update(own[0].get(at, Counter()))
        if begin <= at < upper:
            assert _plain(held["table"]) == _plain(held["source"]), f"at {at}"


def check_reclocked(table: History, reclocked: History) -> None:
    """At each of its times it holds what the table held at some time, ever later."""
    held: Counter[Row] = Counter()
    states: list[Counter[Row]] = [Counter()]
    for at in sorted(table):
        held.update(table[at])
        states.append(_plain(held))
    found: Counter[Row] = Counter()
    place = 0
    for at in sorted(reclocked):
        found.update(reclocked[at])
        now = _plain(found)
        assert now in states[place:], f"at {at}"
        place += states[place:].index(now)


def shards(data_dir: str) -> list[Shard]:
    """Of the tables or sources, as they were made."""
    folder = Path(data_dir) / "shards"
    names = [p.name for p in folder.glob("u[0-9]*") if p.name.count("-") == 1]
    names.sort(key=lambda name: int(name[1:].partition("-")[0]))
    return [Shard.open(open_blobs(data_dir, {}), name, epoch=None) for name in names]


def _upper(shard: Shard) -> int:
    assert shard.upper is not None
    return shard.upper


def _history(told: Iterable[tuple[int, str, int, int]]) -> History:
    found: History = {}
    for n, x, at, diff in told:
        found.setdefault(at, Counter())[n, x] += diff
    return {at: change for at, change in found.items() if _plain(change)}


def _held(history: History) -> Counter[Row]:
    """In the end."""
    held: Counter[Row] = Counter()
    for change in history.values():
        held.update(change)
    return _plain(held)


def _plain(rows: Counter[Row]) -> Counter[Row]:
    return Counter({row: n for row, n in rows.items() if n})


def _row(data: str) -> Row:
    found = json.loads(data)
    return found["n"], found["x"]


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka) -> Generator[World]:
    world = World(tmp_path, kafka)
    try:
        yield world
    finally:
        # What it waits for ends with the server.
        world.writer.close()
        world.changes.stop()
        world.reader.close()


@pytest.mark.timeout(1800)
def test_both_are_killed_and_become_equal(world: World) -> None:
    world.create()
    world.kill_writer("sink.settled=kill@2")
    world.kill_reader("tick.recovery.lined=kill@2")
    world.kill_writer("sink.stated=kill@3")
    world.quiet()


@pytest.mark.chaos
def test_both_are_killed_many_times(world: World) -> None:
    rng = random.Random(1)
    world.create()
    for _ in range(40):
        world.kill_writer(f"{rng.choice(WRITER_STEPS)}=kill@{rng.randrange(1, 20)}")
        world.kill_reader(f"{rng.choice(READER_STEPS)}=kill@{rng.randrange(1, 6)}")
    world.quiet()


# -- the checks find what they are there for


TABLE: History = {
    5: Counter({(1, "a"): 2}),
    7: Counter({(1, "a"): -2, (1, "b"): 2}),
    9: Counter({(2, "a"): 2}),
}


@pytest.mark.parametrize(
    ("own", "sound"),
    [
        (TABLE, True),
        ({7: Counter({(1, "b"): 2}), 9: TABLE[9]}, True),
        ({5: TABLE[5], 7: Counter({(1, "a"): -2}), 9: TABLE[9]}, False),
        ({**TABLE, 8: Counter({(1, "b"): 2})}, False),
        ({5: TABLE[5], 8: TABLE[7], 9: TABLE[9]}, False),
        ({5: TABLE[5], 7: TABLE[7]}, False),
        ({}, True),
    ],
    ids=["same", "from the middle", "lost", "twice", "late", "nothing at 9", "nothing yet"],
)
def test_what_is_wrong_at_a_time_is_found(own: History, sound: bool) -> None:
    with contextlib.nullcontext() if sound else pytest.raises(AssertionError, match="at "):
        check_own_times((TABLE, 12), (own, 10))
    # What only one of them has is no time of both.
    check_own_times((TABLE, 5), (own, 10))


@pytest.mark.parametrize(
    ("reclocked", "sound"),
    [
        ({100: TABLE[5], 200: TABLE[7] + Counter(), 300: TABLE[9]}, False),
        ({100: TABLE[5], 200: TABLE[7], 300: TABLE[9]}, True),
        ({100: Counter({(1, "b"): 2, (2, "a"): 2})}, True),
        ({100: Counter({(1, "a"): 1})}, False),
        ({100: Counter({(1, "b"): 2}), 200: Counter({(1, "b"): -2, (1, "a"): 2})}, False),
    ],
    ids=["half an update", "same", "all at once", "half", "back"],
)
def test_what_never_was_is_found(reclocked: History, sound: bool) -> None:
    with contextlib.nullcontext() if sound else pytest.raises(AssertionError, match="at "):
        check_reclocked(TABLE, reclocked)
