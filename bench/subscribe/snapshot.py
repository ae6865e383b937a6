"""Large snapshots to one reader, and a million changes at one time, in every output."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import psycopg

from bench.report import Figure
from bench.serving import serving
from bench.subscribe.crowd import Wrong, crowd
from bench.subscribe.memory import Family
from bench.subscribe.reader import Job
from support.server import ServerProcess

TABLE = "CREATE TABLE big (id bigint, name text, amount bigint)"
OUTPUTS = {
    "plain": "",
    "ENVELOPE UPSERT": "ENVELOPE UPSERT (KEY (id))",
    "ENVELOPE DEBEZIUM": "ENVELOPE DEBEZIUM (KEY (id))",
    "WITHIN TIMESTAMP": "WITHIN TIMESTAMP ORDER BY name",
}
# One INSERT of so many: what a transaction holds in memory is limited.
STEP = 1_000_000
# Until the last row is there.
SECONDS = 900.0

Connection = psycopg.Connection[tuple[object, ...]]


def fill(c: Connection, rows: int) -> None:
    for first in range(0, rows, STEP):
        last = min(rows, first + STEP)
        c.execute(
            "INSERT INTO big SELECT n, '~name ' || n, n * 7 "
            f"FROM generate_series({first + 1}, {last}) AS g(n)".encode()
        )


def now(c: Connection) -> int:
    ((found,),) = c.execute("SELECT mz_now()").fetchall()
    return int(str(found))


def seconds(server: ServerProcess, statement: str, rows: int) -> float:
    """How long all rows take to one reader."""
    with crowd(Job(server.sql_port, 1, statement, changes=rows)) as readers:
        if not readers.wait_for(1, SECONDS):
            raise Wrong(f"{statement}: not all of {rows} rows within {SECONDS:.0f} s")
        (told,) = readers.end()
    if told.marks != rows:
        raise Wrong(f"{statement}: {told.marks} rows instead of {rows}")
    return told.arrivals[0] - told.asked


def large(*, quick: bool) -> list[Figure]:
    """Ten million rows: a server that has just begun, and is warm."""
    rows, repeats = (1_200_000, 1) if quick else (10_000_000, 3)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        server.warm = True
        try:
            server.start(wait_ready=True)
            with psycopg.connect(server.sql_dsn, autocommit=True) as c:
                c.execute(TABLE)
                fill(c, rows)
            server.terminate()
            for name, output in OUTPUTS.items():
                # What an earlier run left behind must not hide what this one needs.
                server.start(wait_ready=True)
                with psycopg.connect(server.sql_dsn, autocommit=True) as c:
                    c.execute("SELECT count(*), max(name) FROM big").fetchall()
                    at = now(c)
                family = Family(server.pid)
                took = seconds(server, f"SUBSCRIBE big AS OF {at} UP TO {at + 1} {output}", rows)
                grown = family.grown_mb()
                aim = ("<= 512 MB", grown <= 512) if name == "plain" else ("", None)
                figures.append(
                    Figure(
                        f"snapshot of {rows} rows to one reader, {name}: memory of server, JVM and workers",
                        f"+ {grown:.0f} MB ({rows / took / 1000:.0f}k rows/s)",
                        *aim,
                    )
                )
                if name == "plain":
                    figures.append(_against_select(server, rows, repeats))
                server.terminate()
        finally:
            server.close()
    return figures


def _against_select(server: ServerProcess, rows: int, repeats: int) -> Figure:
    pairs: list[tuple[float, float]] = []
    for _ in range(repeats):
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            at = now(c)
        subscribe = seconds(server, f"SUBSCRIBE big AS OF {at} UP TO {at + 1}", rows)
        select = seconds(server, f"SELECT * FROM big AS OF {at}", rows)
        pairs.append((rows / subscribe, rows / select))
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(side) / 1000 for side in zip(*pairs, strict=True))
    return Figure(
        "... its rate against SELECT's",
        f"{ratio:.2f}x ({ours:.0f}k rows/s, SELECT {theirs:.0f}k)",
        ">= 0.7x",
        ratio >= 0.7,
    )


def shapes(*, quick: bool) -> list[Figure]:
    """Each output beside plain, in turns: a million changes of one time, and a million rows of a snapshot."""
    rows, repeats = (100_000, 1) if quick else (1_000_000, 5)
    figures: list[Figure] = []
    with serving() as server, psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(TABLE)
        before = now(c)
        fill(c, rows)
        after = now(c)
        kinds = {
            "changes of one time": f"WITH (SNAPSHOT = false) AS OF {before} UP TO {after + 1}",
            "rows of a snapshot": f"AS OF {after} UP TO {after + 1}",
        }
        for kind, bounds in kinds.items():
            took: dict[str, list[float]] = {name: [] for name in OUTPUTS}
            for _ in range(repeats + 1):
                for name, output in OUTPUTS.items():
                    took[name].append(seconds(server, f"SUBSCRIBE big {bounds} {output}", rows))
            # The first turn warms up.
            plain = took["plain"][1:]
            for name in list(OUTPUTS)[1:]:
                ratio = statistics.median(a / b for a, b in zip(took[name][1:], plain, strict=True))
                rate, usual = (rows / statistics.median(t) / 1000 for t in (took[name][1:], plain))
                figures.append(
                    Figure(
                        f"{name}, {rows} {kind}, against plain",
                        f"{ratio:.2f}x ({rate:.0f}k rows/s, plain {usual:.0f}k)",
                        "<= 2x",
                        ratio <= 2,
                    )
                )
    return figures
