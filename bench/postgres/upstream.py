"""The upstream of the benchmark: a PostgreSQL with pgbench's tables, and the programs that it comes with."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tidemill.dev.postgres import DATABASE, USER, Postgres, find_binaries
from tidemill.dev.process import HOST
from tidemill.sources.postgres.lsn import parse_lsn

PUBLICATION = "bench"
# By pgbench's names; the first one has almost all rows.
TABLES = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
# In pgbench's own script.
CHANGES_PER_TRANSACTION = 4
# The disk is not what is compared. A reader that is stopped for a while keeps its connection.
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "fsync": "off",
    "wal_sender_timeout": "0",
    "autovacuum": "off",
}
PROGRAM_SECONDS = 900.0


class Upstream:
    def __init__(self, process: Postgres) -> None:
        self.process = process
        self.sql = psycopg.connect(process.dsn, autocommit=True)
        self._binaries = find_binaries()

    def value(self, query: str) -> Any:
        ((found,),) = self.sql.execute(query.encode()).fetchall()
        return found

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.sql.execute(statement.encode())

    def position(self) -> int:
        """The end of the log."""
        return parse_lsn(self.value("SELECT pg_current_wal_flush_lsn()::text"))

    def fill(self, scale: int) -> None:
        """pgbench's tables with `scale` times 100,000 accounts, published."""
        names = ", ".join(TABLES)
        self.run("DROP PUBLICATION IF EXISTS bench", f"DROP TABLE IF EXISTS {names}")
        self.finished(self.command("pgbench", "-i", "-q", "-s", str(scale), DATABASE))
        self.run(
            *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in TABLES),
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}",
        )

    def command(self, program: str, *arguments: str) -> list[str]:
        place = ["-h", HOST, "-p", str(self.process.port), "-U", USER]
        return [str(self._binaries / program), *place, *arguments]

    def load(self, *arguments: str) -> subprocess.Popen[str]:
        """pgbench's own transactions, by eight clients."""
        command = self.command("pgbench", "-n", "-c", "8", "-j", "2", *arguments, DATABASE)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    @staticmethod
    def finished(command: Sequence[str]) -> float:
        """Seconds until the program ends."""
        began = time.monotonic()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROGRAM_SECONDS,
        )
        return time.monotonic() - began

    def copy_seconds(self, table: str) -> float:
        """psql reads the table and throws it away."""
        return self.finished(self.command("psql", "-Xqc", f"COPY {table} TO STDOUT", DATABASE))


def tps(pgbench: subprocess.Popen[str]) -> float:
    """Of a program that ends by itself."""
    out, _ = pgbench.communicate(timeout=PROGRAM_SECONDS)
    found = [line for line in out.splitlines() if line.startswith("tps = ")]
    if pgbench.returncode != 0 or not found:
        raise SystemExit(f"pgbench failed: {out}")
    return float(found[0].split()[2])


@contextmanager
def upstream() -> Generator[Upstream]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-upstream-") as folder:
        process = Postgres(Path(folder) / "postgres", settings=SETTINGS)
        try:
            process.start()
            one = Upstream(process)
            yield one
            one.sql.close()
        finally:
            process.stop()
