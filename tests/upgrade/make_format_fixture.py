"""Makes the backup that `test_upgrade.py` restores: one of each kind of thing, by the real server, and what
the data directory holds at several times. Run it once for each format, and never again for that format.

    python -m upgrade.make_format_fixture FOLDER [--without-spark]       (in tests/)

Without Spark there are no rows of sources and views in it, and nothing is updated.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from subscriptions.subscriptions_world import Client, World
from support.server import SMALL, server_process
from tidemill.backup.take import take
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.log import load
from tidemill.persist.shard import Shard

MADE = """
CREATE ROLE reader WITH LOGIN PASSWORD 'of the fixture';
CREATE SCHEMA other;
CREATE TABLE things (id int8 NOT NULL, name text, at timestamptz, tags text[], about jsonb, price numeric(12,2));
COMMENT ON TABLE things IS 'what there is';
INSERT INTO things VALUES (1, 'one', '2026-01-02 03:04:05+00', '{a,b}', '{"k": [1, null]}', 1.50);
INSERT INTO things (id, price) VALUES (2, -7);
CREATE VIEW other.named AS SELECT id, name FROM things WHERE name IS NOT NULL;
CREATE SECRET hidden AS 'text of the secret';
CREATE SOURCE pairs FROM LOAD GENERATOR KEY VALUE (KEYS 20, PARTITIONS 2, SNAPSHOT ROUNDS 2, SEED 7,
    VALUE SIZE 8, BATCH SIZE 4) ENVELOPE UPSERT;
CREATE SOURCE counted FROM LOAD GENERATOR COUNTER (TICK INTERVAL '200ms', UP TO 9);
CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(price) AS price FROM things;
CREATE SUBSCRIPTION followed FOR things;
CREATE SINK written FROM things INTO FILES 'written' FORMAT JSON ENVELOPE MATERIALIZE;
GRANT SELECT ON things TO reader
"""  # noqa: E501
CHANGED = """
UPDATE things SET name = 'two' WHERE id = 2;
INSERT INTO things (id) VALUES (10), (11), (12);
DELETE FROM things WHERE id = 1
"""
# What the catalog says of them, in words that need no Spark.
SHOWN = (
    "SHOW CREATE TABLE things",
    "SHOW CREATE VIEW other.named",
    "SHOW CREATE SOURCE pairs",
    "SHOW CREATE SOURCE counted",
    "SHOW CREATE MATERIALIZED VIEW total",
    "SHOW CREATE SINK written",
    "SELECT name, type FROM mz_objects WHERE id LIKE 'u%' ORDER BY 1, 2",
    "SELECT name, position FROM mz_subscriptions",
    "SELECT rolname, rolcanlogin FROM pg_roles ORDER BY 1",
)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        args = (*SMALL, "--files-root", scratch)
        with server_process(data, args=args, wait_ready=True) as server:
            with psycopg.connect(server.sql_dsn, autocommit=True) as db:
                run(db, *MADE.split(";\n"))
                for relation, count in (("counted", 9), ("pairs", 20)):
                    while run(db, f"SELECT count(*) FROM {relation}") != [(count,)]:
                        time.sleep(0.1)
                times = [now(db)]
                for statement in CHANGED.split(";\n"):
                    run(db, statement, "SELECT n FROM total")
                    times.append(now(db))
                rows = run(db, "FETCH 2 FROM SUBSCRIPTION followed WITH (TIMEOUT = 10000)")
                run(db, f"ACKNOWLEDGE SUBSCRIPTION followed TO {int(rows[0][0]) + 1}")
                shown = {sql: [list(map(str, row)) for row in run(db, sql)] for sql in SHOWN}
            server.terminate()
        blobs = open_blobs(str(data))
        take(blobs, open_blobs(str(folder)), data / "secrets")
        keep(folder, blobs, times, shown)


def without_spark(folder: Path) -> None:
    # The directory names the machine of its server.
    socket.gethostname = lambda: "host"
    with tempfile.TemporaryDirectory() as scratch:
        world = World(Path(scratch), files_root=scratch)

        async def make(client: Client) -> tuple[list[int], dict[str, Any]]:
            times: list[int] = []
            for statement in [*MADE.split(";\n"), CHANGED.split(";\n")[1]]:
                await client.run(statement)
                times.append(world.engine.environment.oracle.read_ts())
            return times, {sql: [list(map(str, row)) for row in await client.run(sql)] for sql in SHOWN}

        try:
            times, shown = world.loop.run(make(world.session()))
        finally:
            world.close()
        blobs = open_blobs(str(Path(scratch) / "data"))
        take(blobs, open_blobs(str(folder)), Path(scratch) / "data" / "secrets")
        keep(folder, blobs, times, shown)


def keep(folder: Path, blobs: Blobs, times: list[int], shown: dict[str, Any]) -> None:
    seen = {"times": times, "shown": shown, "contents": contents(blobs, times)}
    (folder / "seen.json").write_text(json.dumps(seen, indent=1, ensure_ascii=False) + "\n")


def run(db: psycopg.Connection[Any], *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last one."""
    cursor = db.cursor()
    for statement in statements:
        cursor.execute(statement.encode())
    return cursor.fetchall() if cursor.description is not None else []


def now(db: psycopg.Connection[Any]) -> int:
    return int(run(db, "SELECT mz_now()::text")[0][0])


def contents(blobs: Blobs, times: list[int]) -> dict[str, list[list[str]]]:
    """The rows of each shard at each of the times, as far as it can be read there."""
    found: dict[str, list[list[str]]] = {}
    for shard_id in blobs.folders("shards"):
        state = load(blobs, shard_id).state
        shard = Shard.open(blobs, shard_id, epoch=None)
        at = [time for time in times if state.since <= time and (state.upper < 0 or time < state.upper)]
        found[shard_id] = [_rows(shard, time) for time in at]
    return found


def _rows(shard: Shard, at: int) -> list[str]:
    with shard.snapshot(at) as snapshot:
        return sorted(str(tuple(row.values())) for row in snapshot.read().to_pylist() if row["mz_diff"])


if __name__ == "__main__":
    (without_spark if "--without-spark" in sys.argv else main)(Path(sys.argv[1]))
