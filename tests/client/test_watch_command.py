"""`tidemill watch` as a person meets it: as a process, in a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from client_world import name, url, wait_for

import tidemill
from support.server import ServerProcess

pytestmark = pytest.mark.server


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "tidemill.cli", "watch", *args]


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | more


class Terminal:
    """A process on a terminal of its own; what it wrote is gathered."""

    def __init__(self, *args: str, **env: str) -> None:
        ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*args),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm", COLUMNS="100", LINES="30", **env),
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 1 << 16):
                self._written += data
        except OSError:
            pass  # the other end is gone

    @property
    def written(self) -> str:
        return self._written.decode(errors="replace")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join(60)
        os.close(self._ours)
        return status


def test_a_table_in_the_terminal(plain_server: ServerProcess) -> None:
    table = name("watched")
    with tidemill.connect(url(plain_server)) as db:
        db.execute(f"CREATE TABLE {table} (id int, name text)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'anna')")
        place = ("-h", "127.0.0.1", "-p", str(plain_server.sql_port))
        shown = Terminal(table, "--key", "id", "--interval", "0.05", *place)
        try:
            wait_for(lambda: "anna" in shown.written and "1 rows at" in shown.written)
            db.execute(f"INSERT INTO {table} VALUES (2, 'bruno')")
            wait_for(lambda: "bruno" in shown.written and "2 rows at" in shown.written)
            assert table in shown.written and "lag" in shown.written
        finally:
            status = shown.end(signal.SIGINT)
    assert status == 0, shown.written
    assert "Traceback" not in shown.written


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lines_in_a_pipe(plain_server: ServerProcess, number: int) -> None:
    table = name("watched")
    with tidemill.connect(url(plain_server)) as db:
        db.execute(f"CREATE TABLE {table} (id int, name text)")
        db.execute(f"INSERT INTO {table} VALUES (1, NULL)")
        process = subprocess.Popen(
            command(table), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_pg(plain_server)
        )
        head, first = lines_of(process, 2)
        assert head == "mz_timestamp\tmz_diff\tid\tname"
        assert first.split("\t")[1:] == ["1", "1", "\\N"]
        db.execute(f"INSERT INTO {table} VALUES (2, E'a\\tb')")
        (second,) = lines_of(process, 1)
        assert second.split("\t")[1:] == ["1", "2", "a\\tb"]
        process.send_signal(number)
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (0, "")


def test_a_line_is_as_copy_writes_it(plain_server: ServerProcess) -> None:
    columns = (
        "b bytea, a text[], i interval, n numeric(10, 2), t timestamptz, y bool, s text, f float8, j jsonb"
    )
    values = (
        r"""('\x00ff', '{"a b",NULL}', '1 day 02:00', 1.50, '2024-01-02 03:04:05+00', true, 'a\b', 2.0, """
        """'{"a": 1}')"""
    )
    table = name("watched")
    with tidemill.connect(url(plain_server)) as db:
        db.execute(f"CREATE TABLE {table} ({columns})")
        db.execute(f"INSERT INTO {table} VALUES {values}")
    run = _run(table, "--limit", "1", "--url", url(plain_server))
    assert run.returncode == 0, run.stderr
    head, line = run.stdout.splitlines()
    assert head.split("\t") == ["mz_timestamp", "mz_diff", *"bainty", "s", "f", "j"]
    # As PostgreSQL's COPY ... TO STDOUT.
    copied = r'\\x00ff|{"a b",NULL}|1 day 02:00:00|1.50|2024-01-02 03:04:05+00|t|a\\b|2|{"a": 1}'
    assert line.split("\t")[2:] == copied.split("|")


def test_a_limit_and_a_reader_that_has_enough(plain_server: ServerProcess) -> None:
    table = name("watched")
    with tidemill.connect(url(plain_server)) as db:
        db.execute(f"CREATE TABLE {table} (id int, name text)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        run = _run(table, "--key", "id", "--limit", "2", "--url", url(plain_server))
        assert run.returncode == 0, run.stderr
        assert [line.split("\t")[1:] for line in run.stdout.splitlines()] == [
            ["mz_state", "id", "name"],
            ["upsert", "1", "a"],
            ["upsert", "2", "b"],
        ]
        process = subprocess.Popen(
            command(table), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_pg(plain_server)
        )
        lines_of(process, 4)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        db.execute(f"INSERT INTO {table} VALUES (4, 'd')")
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        process.stderr.close()


def test_errors_are_readable(plain_server: ServerProcess) -> None:
    cases = [
        (("nothing", "--url", url(plain_server)), "nothing"),
        (("t", "-p", "1", "-h", "127.0.0.1"), "cannot connect to 127.0.0.1:1"),
        (("t", "--url", "postgresql://["), "not a connection string"),
        (("t", "--limit", "0"), "--limit must be at least 1"),
    ]
    for args, text in cases:
        run = _run(*args)
        assert run.returncode == 2 and run.stderr.startswith("tidemill: "), run.stderr
        assert text in run.stderr and "Traceback" not in run.stderr


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=60, env=environment())


def _pg(server: ServerProcess) -> dict[str, Any]:
    return environment(PGHOST="127.0.0.1", PGPORT=str(server.sql_port))
