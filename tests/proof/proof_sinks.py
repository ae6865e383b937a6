"""Writers to a table whose sink is judged, and the table as its files have it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard

PAUSE_SECONDS = 0.02

Row = tuple[int, str]


class Ledger:
    """Rows that nobody else writes, each twice; which of them were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.intents = 0
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
                    self.intents += 1
                    n = self.intents
                    c.execute(f"INSERT INTO t VALUES ({n}, 'x'), ({n}, 'x')".encode())
                    self.acknowledged.append(n)
        except psycopg.Error:
            pass  # the server is dead

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


def table_shard(data_dir: str) -> Shard:
    """The one table's (or the one source's) rows."""
    found = [p.name for p in (Path(data_dir) / "shards").glob("u[0-9]*") if p.name.count("-") == 1]
    (shard_id,) = found
    return Shard.open(open_blobs(data_dir, {}), shard_id, epoch=None)


def updates_of(shard: Shard) -> Iterator[dict[str, Any]]:
    """All that its parts hold."""
    for part in shard.parts:
        yield from shard.reader.read(part, shard.desc).to_pylist()
