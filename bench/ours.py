"""Our side of benchmarks of sources: a real server process, spoken to over SQL and /metrics alone.

What is visible is what SQL says: a source stands at an offset when `mz_source_statistics` says that its
rows are committed up to there.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from bench.serving import serving
from support.server import ServerProcess

# A question to the server costs it some 50 ms of a core.
POLL_SECONDS = 0.25
STATUS_SECONDS = 1.0
# A catch-up with twenty million messages takes minutes.
CATCH_UP_SECONDS = 1800.0


class Stalled(Exception):
    """The source says that it failed."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Of one source, since the server's start."""

    count: int
    visible: float  # seconds, from the durable binding to the committed rows, of all of them
    skipped: int
    misses: int


class OurServer:
    """One server. `scratch` holds the upsert state's cache."""

    def __init__(self, server: ServerProcess, scratch: Path) -> None:
        self.server = server
        self.scratch = scratch
        self._connection = self._connect()
        self._ids: dict[str, str] = {}

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.server.sql_dsn, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def restart(self, *, without_cache: bool) -> None:
        """An orderly end and a new start, which is ready and warm."""
        self.close()
        self.server.terminate()
        if without_cache:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir()
        self.server.start(wait_ready=True)
        self._connection = self._connect()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def created(self, name: str) -> None:
        """A source of this name was created, or a relation of one."""
        ((self._ids[name],),) = self.execute(f"SELECT id FROM mz_sources WHERE name = '{name}'")

    def drop(self, name: str) -> None:
        self.execute(f"DROP SOURCE {name}")
        # The connection stays.
        self._ids[name] = ""

    def committed(self, name: str) -> int:
        """The sum of the offsets before which everything can be read; of a PostgreSQL its LSN."""
        found = self.execute(
            f"SELECT offset_committed FROM mz_internal.mz_source_statistics WHERE id = '{self._ids[name]}'"
        )
        return int(found[0][0] or 0) if found else 0

    def until(self, name: str, offset: int) -> None:
        """Returns when the source is there."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        asked = time.monotonic()
        while self.committed(name) < offset:
            now = time.monotonic()
            if now - asked > STATUS_SECONDS:
                asked = now
                self._must_go_on(name)
            if now > deadline:
                raise Stalled(f"{name} stands at {self.committed(name):,} of {offset:,}")
            time.sleep(POLL_SECONDS)

    def _must_go_on(self, name: str) -> None:
        status, error, details = self.execute(
            "SELECT status, error, details::text FROM mz_internal.mz_source_statuses "
            f"WHERE id = '{self._ids[name]}'"
        )[0]
        if status == "stalled":
            raise Stalled(f"{name}: {error} {details}")

    def frontiers(self, names: Sequence[str]) -> dict[str, int]:
        """By name: it can be read at all times before this one."""
        found = dict(self.execute("SELECT object_id, write_frontier FROM mz_internal.mz_frontiers"))
        return {name: int(found.get(self._ids[name]) or 0) for name in names}

    def bindings(self, name: str) -> pl.DataFrame:
        """At `time` all records of `partition` (0 if there are no partitions) before `value` are there."""
        rows = self.execute(
            "SELECT mz_timestamp, partition, value FROM mz_internal.mz_source_bindings "
            f"WHERE source_id = '{self._ids[name]}'"
        )
        columns = [[int(row[n] or 0) for row in rows] for n in range(3)]
        return pl.DataFrame(dict(zip(("time", "partition", "value"), columns, strict=True)))

    def ticks(self, name: str) -> Ticks:
        with urllib.request.urlopen(f"{self.server.http_url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {"count": 0.0, "sum": 0.0, "skipped": 0.0, "misses": 0.0}
        names = {
            "tidemill_tick_seconds_count": "count",
            "tidemill_tick_seconds_sum": "sum",
            "tidemill_source_ticks_skipped_total": "skipped",
            "tidemill_source_state_misses_total": "misses",
        }
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                what = names.get(sample.name)
                mine = sample.labels.get("id") == self._ids[name]
                if what and mine and sample.labels.get("phase", "visible") == "visible":
                    found[what] = sample.value
        return Ticks(int(found["count"]), found["sum"], int(found["skipped"]), int(found["misses"]))


@contextmanager
def started(*args: str) -> Generator[tuple[ServerProcess, Path]]:
    """A ready server, and the folder for its scratch data."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-scratch-"))
        yield stack.enter_context(serving("--scratch-dir", scratch, *args)), Path(scratch)
