"""`tidemill dev postgres` as a person meets it: as a process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dev.dev_command import GONE_SECONDS, READY_SECONDS, Command, until
from tidemill.dev.process import is_free

pytestmark = pytest.mark.server

SUM = "SELECT sum(balance)::int FROM accounts"
SESSIONS = "SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'"
TRANSFERS = "SELECT count(*)::int FROM transfers"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def run(*flags: str) -> Command:
        started.append(Command(tmp_path, *flags, upstream="postgres"))
        return started[-1]

    yield run
    for command in started:
        # What it started ends with it.
        command.process.kill()
        command.process.wait()


def value(sql: psycopg.Connection[Any], query: str) -> Any:
    ((found,),) = sql.execute(query.encode()).fetchall()
    return found


def test_a_load_that_leaves_the_sum_as_it_is_and_tables_that_are_kept(
    start: Callable[..., Command], postgres_folder: Path
) -> None:
    kept = str(postgres_folder / "kept-postgres")
    command = start("--load", "200", "--data-dir", kept)
    command.wait_ready()
    port = command.ports[0]
    assert f"CREATE CONNECTION pg TO POSTGRES (HOST '127.0.0.1', PORT {port}," in command.output
    assert "transfers per second: 200 " in command.output
    with psycopg.connect(command.postgres, autocommit=True) as sql:
        until(lambda: value(sql, TRANSFERS) > 20, READY_SECONDS)
        assert value(sql, SUM) == 300
        # A table of one's own is published as it is made, for logical replication.
        sql.execute("CREATE TABLE mine (a int)")
        tables = "SELECT array_agg(tablename::text) FROM pg_publication_tables WHERE pubname = 'tidemill'"
        assert set(value(sql, tables)) == {"accounts", "mine", "transfers"}
        assert value(sql, "SHOW wal_level") == "logical"
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(GONE_SECONDS) == 0, command.output
    assert is_free(port) and kept in command.output
    again = start("--load", "0", "--data-dir", kept)
    again.wait_ready()
    assert "transfers per second: 0 " in again.output
    with psycopg.connect(again.postgres, autocommit=True) as sql:
        assert value(sql, SUM) == 300
        before = value(sql, TRANSFERS)
        assert before > 20
        assert value(sql, "SELECT count(*)::int FROM mine") == 0
        assert value(sql, SESSIONS) == 1
    again.process.kill()
    until(lambda: is_free(again.ports[0]), GONE_SECONDS)


def test_a_rate_below_zero_is_refused(start: Callable[..., Command]) -> None:
    command = start("--load", "-1")
    assert command.process.wait(GONE_SECONDS) == 2
    assert "--load" in command.output
