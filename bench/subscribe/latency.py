"""From a commit to its row at one client, and to all of a thousand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import psutil
import psycopg

from bench.report import Figure, ms, p50_p99, percentile
from bench.serving import serving
from bench.subscribe.crowd import Told, Wrong, crowd, rows
from bench.subscribe.reader import Job

TABLE = "CREATE TABLE feed (n bigint, v text)"
STATEMENT = "SUBSCRIBE feed WITH (PROGRESS)"
# Until the last change is there.
LAST_SECONDS = 60.0
# Of one reader, before the others come.
WARM_TICKS = 3

Connection = psycopg.Connection[tuple[object, ...]]


def one(*, quick: bool) -> list[Figure]:
    """A row every 20 ms, from the moment in which its INSERT is sent."""
    commits = 50 if quick else 1000
    with serving() as server, psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(TABLE)
        with crowd(Job(server.sql_port, 1, STATEMENT, changes=1, kept=1)) as readers:
            for n in range(10):
                c.execute("INSERT INTO feed VALUES (%s, '~')", [n], prepare=True)
            readers.wait_for(10, LAST_SECONDS)
            sent: list[float] = []
            for n in range(10, 10 + commits):
                sent.append(time.monotonic())
                c.execute("INSERT INTO feed VALUES (%s, '~')", [n], prepare=True)
                time.sleep(0.02)
            readers.wait_for(10 + commits, LAST_SECONDS)
            (told,) = readers.end()
    _check(told, 10 + commits, 1)
    waited = [at - began for at, began in zip(told.arrivals[10:], sent, strict=True)]
    fast = percentile(waited, 50) <= 0.02 and percentile(waited, 99) <= 0.1
    return [
        Figure(
            f"INSERT of a row sent -> row at the client, 1 reader, {commits} commits",
            p50_p99(waited),
            "p50 <= 20 ms, p99 <= 100 ms",
            fast,
        )
    ]


def many(*, quick: bool) -> list[Figure]:
    """A thousand changes in each second, to a thousand readers; the load is on the same cores."""
    return crowded(*((100, 5) if quick else (1000, 60)), changes=1000)


@dataclass(frozen=True, slots=True)
class _Run:
    """What so many readers of one server saw, and what they took."""

    told: list[Told]
    sent: list[float]
    memory: int  # resident bytes of the server, with all of them up to date
    busy: float  # its seconds of a core for a tick
    joined: float  # seconds until all had begun


def _run(readers: int, ticks: int, changes: int) -> _Run:
    with serving() as server, psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(TABLE)
        process = psutil.Process(server.pid)
        with crowd(Job(server.sql_port, 1, STATEMENT, changes)) as first:
            write(c, ticks=WARM_TICKS, changes=changes)
            first.wait_for(WARM_TICKS, LAST_SECONDS)
            first.end()
        c.execute("DELETE FROM feed")
        began = time.monotonic()
        with crowd(Job(server.sql_port, readers, STATEMENT, changes, kept=3)) as all_:
            joined = time.monotonic() - began
            busy = _busy(process)
            sent = write(c, ticks=ticks, changes=changes)
            late = not all_.wait_for(ticks, LAST_SECONDS)
            memory, busy = process.memory_info().rss, _busy(process) - busy
            told = all_.end()
    if late and not any(t.ended for t in told):
        raise Wrong("readers did not get all of it within a minute of the last change")
    return _Run(told, sent, memory, busy / ticks, joined)


def crowded(readers: int, ticks: int, changes: int) -> list[Figure]:
    # Two servers that do the same, but for the number of readers: what they share, and what the ticks
    # themselves leave behind, is in both.
    few = readers // 5
    less, run = _run(few, ticks, changes), _run(readers, ticks, changes)
    told = run.told
    dropped = sum(1 for t in told if t.ended)
    for t in told[:3]:
        _check(t, ticks, changes)
    waited = [at - began for t in told for at, began in zip(t.arrivals, run.sent, strict=False)]
    complete = all(t.marks == ticks * changes for t in told)
    each = (run.memory - less.memory) / (readers - few) / 1000
    return [
        Figure(
            f"{readers} readers, {changes} changes a second, {ticks} s: COPY sent -> all there",
            f"{p50_p99(waited)}, at most {ms(max(waited))}",
            "p99 <= 2 s",
            percentile(waited, 99) <= 2,
        ),
        Figure(
            "... readers that were dropped, that miss rows",
            f"{dropped}, {sum(t.marks != ticks * changes for t in told)}",
            "none",
            complete and not dropped,
        ),
        Figure(
            f"... the server's memory for each more than {few}, after as many ticks",
            f"{each:.1f} kB",
            "<= 64 kB",
            each <= 64,
        ),
        Figure("... the server's processor time for a tick", ms(run.busy), ""),
        Figure(f"... until all {readers} have begun", f"{run.joined:.1f} s", ""),
    ]


def _busy(process: psutil.Process) -> float:
    """Seconds of a core that the server itself has used, without Spark."""
    times = process.cpu_times()
    return times.user + times.system


def write(c: Connection, *, ticks: int, changes: int) -> list[float]:
    """A tick each second; when each was sent."""
    sent: list[float] = []
    began = time.monotonic()
    for tick in range(ticks):
        time.sleep(max(0.0, began + tick - time.monotonic()))
        first = tick * changes
        lines = "".join(f"{n}\t~{n:09}\n" for n in range(first, first + changes))
        sent.append(time.monotonic())
        with c.cursor().copy("COPY feed FROM STDIN") as copy:
            copy.write(lines)
    return sent


def _check(told: Told, ticks: int, changes: int) -> None:
    """Every change once, each tick at one time, and no time after it was said to be complete."""
    found: dict[int, set[int]] = {}
    count, complete = 0, 0
    for time_, progressed, *row in rows(told.kept):
        at = int(time_ or 0)
        if at < complete:
            raise Wrong(f"something came at {at}, {complete} was complete")
        if progressed == "t":
            complete = at
        elif row[0] == "1":
            count += 1
            found.setdefault(at, set()).add(int(row[1] or -1))
    if count != ticks * changes or [len(s) for s in found.values()] != [changes] * ticks:
        raise Wrong(f"{count} changes at {len(found)} times instead of {ticks * changes} at {ticks}")
    if any(max(a) + 1 != min(b) for a, b in pairwise(found.values())):
        raise Wrong("changes are missing or came twice")
