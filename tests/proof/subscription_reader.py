"""A reader of a durable subscription, as a process that a test kills: `subscription_reader.py FOLDER`.

It stores rows and position in one transaction of SQLite (`effects.db`), then acknowledges. Where the server
is, it reads in the file `dsn`; if the server is away it asks again.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path

import psycopg


def read(folder: Path, store: sqlite3.Connection) -> None:
    with psycopg.connect((folder / "dsn").read_text(), autocommit=True) as server:
        while True:
            found = store.execute("SELECT max(position) FROM positions").fetchone()[0]
            at = "" if found is None else f", POSITION = {found}"
            fetch = f"FETCH 50 FROM SUBSCRIPTION s WITH (TIMEOUT = '1 s'{at})"
            rows = server.execute(fetch.encode()).fetchall()
            with store:
                for when, progressed, diff, row in rows:
                    if progressed:
                        store.execute("INSERT OR REPLACE INTO positions VALUES (1, ?)", (int(when),))
                    else:
                        store.execute("INSERT INTO effects VALUES (?, ?)", (row, diff))
            server.execute("ACKNOWLEDGE SUBSCRIPTION s")


def main(folder: Path) -> None:
    store = sqlite3.connect(folder / "effects.db")
    with store:
        # No key: a row that comes twice is there twice.
        store.execute("CREATE TABLE IF NOT EXISTS effects (id int, diff int)")
        store.execute("CREATE TABLE IF NOT EXISTS positions (only int PRIMARY KEY, position int)")
    while True:
        try:
            read(folder, store)
        except psycopg.OperationalError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
