"""examples/postgres, the README's PostgreSQL, and what `tidemill dev postgres` says to type."""

from __future__ import annotations

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
from support.wire import Wire
from text.docs import Psql, matches, split

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "examples" / "postgres" / "tour.py"
README = ROOT / "README.md"
# That of `tidemill dev postgres`.
PORT = "5433"

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    command = Command(tmp_path_factory.mktemp("command"), "--load", "20", upstream="postgres")
    try:
        command.wait_ready()
        yield command
    finally:
        command.process.terminate()
        command.process.wait()


def test_what_is_printed_works(command: Command, server: ServerProcess, database: str) -> None:
    found = re.search(r"In Tidemill:\n\n(.*?)\n\nand then .*?:\n\n(.*?)\n\n", command.output, re.DOTALL)
    assert found is not None, command.output
    *statements, subscribe = (statement.strip().removesuffix(";") for statement in split(found[1]))
    with psycopg.connect(command.postgres, autocommit=True) as up, connected(server, database) as sql:
        ((before,),) = up.execute("SELECT sum(balance)::int FROM accounts").fetchall()
        for statement in statements:
            sql.execute(statement.encode())
        assert sql.execute(b"SELECT sum(balance)::int FROM accounts").fetchall() == [(before,)]
        balances: dict[int, int] = {}
        sums: set[int] = set()
        time: Any = None
        # Not kept: its end closes the stream, which holds the session.
        for at, diff, account, _, balance in sql.cursor().stream(subscribe.encode()):
            if at != time:
                # All of the time before was there: transfers leave the sum as it is.
                sums.add(sum(balances.values()))
                if time is None:
                    up.execute(found[2].encode())
                time = at
            balances[account] = balances.get(account, 0) + int(diff) * balance
            if before + 5 in sums:
                break
        assert sums == {0, before, before + 5}
        # The others begin with the sum that they expect.
        up.execute(found[2].replace("+ 5", "- 5").encode())


def test_the_readme(command: Command, server: ServerProcess, database: str) -> None:
    page = README.read_text()
    blocks = re.findall(r"^```sql postgres\n(.*?)^```$(?:\s*^```\n(.*?)\n```$)?", page, re.M | re.DOTALL)
    assert len(blocks) == 2
    wire = Wire(f"{server.sql_dsn} dbname={database}")
    try:
        psql, got = Psql(wire), ""
        for block, shown in blocks:
            for statement in split(block.replace(PORT, str(command.ports[0]))):
                got, failed = psql.type(statement)
                assert not failed, got
            assert not shown or matches(shown, got), got
        assert "300" in got
    finally:
        wire.close()


def test_the_tour_goes_to_its_end() -> None:
    tour = subprocess.run(
        [sys.executable, str(TOUR), "--alone"], capture_output=True, text=True, timeout=600, check=False
    )
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert tour.stdout.endswith("That was the tour.\n")
