"""Sources on a server whose Spark tasks run in processes of their own: how to watch, kill and judge them.

What the sources hold is judged from the files alone, by the judge of the crash tests; here is what goes on
while the server runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from proof.proof_sources import Judge
from support.server import ServerProcess
from tidemill.persist.blob import open_blobs

# Two minutes pass before a session without executors is begun anew; nothing else takes so long on a quiet
# machine.
PATIENCE = 480.0

# Every worker dawdles once, with its parts written and nobody told.
DAWDLE = {"TIDEMILL_FAILPOINTS": "tick.task.written=sleep:2@4"}

SOURCES: tuple[LiteralString, ...] = (
    "CREATE SOURCE numbers FROM LOAD GENERATOR COUNTER (TICK INTERVAL '2ms')",
    "CREATE SOURCE slow_numbers FROM LOAD GENERATOR COUNTER (TICK INTERVAL '20ms', MAX CARDINALITY 300)",
    "CREATE SOURCE latest FROM LOAD GENERATOR KEY VALUE (KEYS 100, TICK INTERVAL '5ms', TOMBSTONES '10%')",
)
NAMES = ("numbers", "slow_numbers", "latest")


def until(what: Callable[[], bool], message: str, seconds: float = PATIENCE) -> float:
    """Wait for it; returns the seconds that it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, message
        time.sleep(0.2)
    return time.monotonic() - began


def connect(server: ServerProcess) -> psycopg.Connection[Any]:
    return psycopg.connect(server.sql_dsn, autocommit=True)


def create_sources(server: ServerProcess) -> None:
    with connect(server) as c:
        c.execute("CREATE TABLE pairs (k int, v text)")
        c.execute("INSERT INTO pairs SELECT n, 'v' || n FROM generate_series(1, 100) AS n")
        for statement in SOURCES:
            c.execute(statement)
    wait_for_ticks(server, 2)


def _metric(server: ServerProcess, name: str) -> dict[str, int]:
    """By source; asked of the server's memory, without Spark."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{name}\{{[^}}]*source="(\w+)"[^}}]*\}} ([0-9.e+]+)$', text, re.M)
    return {source: int(float(value)) for source, value in found}


def ticks(server: ServerProcess) -> dict[str, int]:
    """How many ticks of each source were committed."""
    return _metric(server, "tidemill_source_ticks_total")


def stalled(server: ServerProcess) -> set[str]:
    """Sources whose last attempt failed."""
    return {name for name, value in _metric(server, "tidemill_source_stalled").items() if value}


def wait_for_ticks(server: ServerProcess, more: int) -> float:
    """Until every source has committed so many more; returns the seconds that it took."""
    before = ticks(server)

    def moved() -> bool:
        now = ticks(server)
        return all(now.get(name, 0) >= before.get(name, 0) + more for name in NAMES)

    return until(moved, f"the sources stand still: {before}, {ticks(server)}\n{server.log[-3000:]}")


def wait_until_running(server: ServerProcess) -> None:
    """Until every source is well: what failed a moment ago is tried again."""
    until(
        lambda: all(status == ("running", None) for status in statuses(server).values()),
        f"a source does not recover: {statuses(server)}",
    )


def statuses(server: ServerProcess) -> dict[str, tuple[str, str | None]]:
    with connect(server) as c:
        rows = c.execute("SELECT name, status, error FROM mz_internal.mz_source_statuses").fetchall()
    return {name: (status, error) for name, status, error in rows if name in NAMES}


def check_reads(server: ServerProcess) -> int:
    """Tables and sources are read, together and each; returns how far the counter is. Rows that are lost or
    doubled would show as a count, a maximum and a number of different rows that differ."""
    with connect(server) as c:
        count, most, different = _one(
            c, "SELECT count(*), max(counter), count(DISTINCT counter) FROM numbers"
        )
        assert count == most == different > 0
        c.execute("BEGIN")
        (offset,) = _one(c, 'SELECT "offset"::bigint FROM numbers_progress')
        (counted,) = _one(c, "SELECT count(*) FROM numbers")
        assert counted == offset >= count, "a source does not hold what its progress says at the same time"
        c.execute("COMMIT")
        assert _one(c, "SELECT count(*), count(DISTINCT key) = count(*) FROM latest")[1]
        (joined,) = _one(c, "SELECT count(*) FROM pairs p JOIN numbers n ON p.k = n.counter")
        assert joined == 100
        return count


def _one(c: psycopg.Connection[Any], statement: LiteralString) -> tuple[Any, ...]:
    (row,) = c.execute(statement).fetchall()
    return row


# -- processes


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int(re.findall(r"^PPid:\s+(\d+)", (folder / "status").read_text(), re.M)[0])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
            children.setdefault(parent, []).append(int(folder.name))
    found, look = list[int](), [pid]
    while look:
        own = children.get(look.pop(), [])
        found += own
        look += own
    return found


def executors(pid: int) -> list[int]:
    """The executors that a process (a server with a local-cluster, or a worker) has started."""
    return [p for p in descendants(pid) if b"CoarseGrainedExecutorBackend" in _command(p) and _java(p)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _java(pid: int) -> bool:
    """Not the shell that is about to become it."""
    return os.path.basename(_command(pid).split(b"\0")[0]) == b"java"


def kill9(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# -- files


# Of log entries that were read before: they never change.
_named: dict[tuple[str, str], frozenset[str]] = {}


def orphans(data_dir: str, options: dict[str, str] | None = None) -> list[str]:
    """Parts that no log entry names: written by tasks that were retried, run twice or killed."""
    blobs = open_blobs(data_dir, options)
    written = [info.path for info in blobs.list("shards")]
    entries = [p for p in written if "/_delta_log/" in p and p.endswith(".json")]
    fresh = [path for path in entries if (data_dir, path) not in _named]
    for path, data in zip(fresh, blobs.get_many(fresh), strict=True):
        actions = [json.loads(line) for line in data.decode().splitlines()]
        root = path.split("/_delta_log/")[0]
        _named[data_dir, path] = frozenset(f"{root}/{a['add']['path']}" for a in actions if "add" in a)
    parts = {p for p in written if p.endswith(".parquet") and "_delta_log" not in p}
    return sorted(parts.difference(*(_named[data_dir, path] for path in entries)))


def judge(data_dir: str, options: dict[str, str] | None = None) -> dict[str, int]:
    """Every time of every source holds what its binding says; returns how many events each has."""
    return Judge(data_dir, options=options or {}).check()
