"""examples/debezium, and what `tidemill dev kafka --debezium` says to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dev.dev_command import Command
from support.server import ServerProcess, connected
from text.docs import split

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "examples" / "debezium" / "tour.py"

pytestmark = [pytest.mark.kafka, pytest.mark.server]


@pytest.fixture
def command(tmp_path: Path, postgres_folder: Path) -> Iterator[Command]:
    command = Command(tmp_path, "--debezium", "--data-dir", str(postgres_folder / "example"))
    try:
        yield command
    finally:
        command.process.terminate()
        command.process.wait()


@pytest.mark.timeout(1200)
def test_what_is_printed_works_and_the_tour_goes_to_its_end(
    command: Command, server: ServerProcess, database: str
) -> None:
    command.wait_ready()
    type_what_is_printed(command, server, database)
    kafka, registry = command.ports[:2]
    addresses = {
        "PGDSN": server.sql_dsn,
        "KAFKA": f"127.0.0.1:{kafka}",
        "REGISTRY": f"http://127.0.0.1:{registry}/apis/ccompat/v7",
        "UPSTREAM": command.postgres,
    }
    tour = subprocess.run(
        [sys.executable, str(TOUR)],
        env={**os.environ, **addresses},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert tour.stdout.endswith("That was the tour.\n")


def type_what_is_printed(command: Command, server: ServerProcess, database: str) -> None:
    found = re.search(r"In Tidemill:\n\n(.*?)\n\nand then .*?:\n\n(.*?)\n\n", command.output, re.DOTALL)
    assert found is not None, command.output
    *statements, subscribe = (statement.strip().removesuffix(";") for statement in split(found[1]))
    upstream = psycopg.connect(command.postgres, autocommit=True)
    with upstream, connected(server, database) as sql:
        for statement in statements:
            sql.execute(statement.encode())
        accounts = sql.execute(b"SELECT id, owner, balance FROM accounts ORDER BY id").fetchall()
        # The first transfer is there.
        assert accounts == [(1, "ada", 90), (2, "bob", 110), (3, "cid", 100)]
        rows: list[tuple[Any, ...]] = []
        for row in sql.cursor().stream(subscribe.encode()):
            rows.append(row)
            if len(rows) == len(accounts):
                upstream.execute(found[2].encode())
            elif len(rows) == len(accounts) + 2:
                break
        assert [row[1:] for row in rows[3:]] == [(-1, 3, "cid", 100), (1, 3, "cid", 105)]
        assert rows[3][0] == rows[4][0]
