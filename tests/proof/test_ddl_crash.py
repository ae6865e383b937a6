"""kill -9 of the real server in the middle of CREATE TABLE AS and ADD COLUMN ... DEFAULT: after a restart the
table or the column is there with everything in it, or not there at all.

The server dies at the steps that matter; tests/catalog/catalog_crash.py goes through every other one without
a server.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from support.server import ServerProcess

# Of rows that are there when a column is added, and of those that a new table begins with. Some are twice.
ROWS = [(n % 90,) for n in range(100)]


@dataclass(frozen=True)
class Death:
    """`statement` on the table of that name dies at `failpoint`. `done` tells whether its commit point is
    behind it then."""

    name: LiteralString
    statement: LiteralString
    failpoint: str
    done: bool


CREATE: LiteralString = "CREATE TABLE {} AS VALUES "
ADD: LiteralString = "ALTER TABLE {} ADD COLUMN b text NOT NULL DEFAULT 'x'"
DEATHS = [
    Death("made_1", CREATE, "catalog.before_put", done=False),
    Death("made_2", CREATE, "catalog.put", done=True),
    Death("grown_1", ADD, "catalog.before_put", done=False),
    Death("grown_2", ADD, "catalog.put", done=False),  # the catalog has the column, the shard does not
    # A server that finds a column half added writes the catalog when it starts: it must not die of that.
    Death("made_3", CREATE, "persist.create.after_entry0", done=False),
    Death("grown_3", ADD, "catalog.widened", done=True),
]


@pytest.mark.server
@pytest.mark.timeout(1200)
def test_definitions_are_whole_after_a_crash(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.spark = False
    try:
        before = 0
        for death in DEATHS:
            # The first life writes the catalog when it begins, and once for each table that it sets up.
            nth = 1 if before else 2 + sum(d.statement is ADD for d in DEATHS)
            server.env = {"TIDEMILL_FAILPOINTS": f"{death.failpoint}=kill@{nth}"}
            server.start()
            before = before or set_up(server)
            die(server, death)
        server.env, server.spark = {}, True
        server.start(wait_ready=True)
        with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
            for death in DEATHS:
                look(connection, death, before)
    finally:
        server.close()


def values() -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("({})").format(sql.Literal(a)) for (a,) in ROWS)


def set_up(server: ServerProcess) -> int:
    """The tables that get a column; a time at which they have none."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        for death in DEATHS:
            if death.statement is ADD:
                table = sql.Identifier(death.name)
                connection.execute(sql.SQL("CREATE TABLE {} (a int)").format(table))
                connection.execute(sql.SQL("INSERT INTO {} VALUES {}").format(table, values()))
        row = connection.execute("SELECT mz_now()::text").fetchone()
        assert row is not None
        return int(row[0])


def die(server: ServerProcess, death: Death) -> None:
    text = sql.SQL(death.statement).format(sql.Identifier(death.name))
    if death.statement is CREATE:
        text += values()
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        # Also what was committed a moment ago and not yet applied gets the value.
        if death.statement is ADD:
            insert = sql.SQL("INSERT INTO {} VALUES (1000)").format(sql.Identifier(death.name))
            connection.execute(insert)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(text)
    assert server.wait_exit() == -9, server.log[-4000:]


def look(connection: psycopg.Connection[Any], death: Death, before: int) -> None:
    table = sql.Identifier(death.name)
    select = sql.SQL("SELECT * FROM {}").format(table)
    if death.statement is CREATE:
        if not death.done:
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute(select)
            # The name is free.
            connection.execute(sql.SQL("CREATE TABLE {} (a int)").format(table))
            assert connection.execute(select).fetchall() == []
        else:
            assert Counter(connection.execute(select).fetchall()) == Counter(ROWS)
        return
    old = Counter(ROWS)
    now = old + Counter([(1000,)])
    at = sql.SQL("SELECT * FROM {} AS OF {}").format(table, sql.Literal(before))
    if not death.done:
        assert Counter(connection.execute(select).fetchall()) == now
        assert Counter(connection.execute(at).fetchall()) == old
        # It can be written, and altered as one likes.
        connection.execute(sql.SQL("INSERT INTO {} VALUES (1001)").format(table))
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN b int DEFAULT 5").format(table))
        now += Counter([(1001,)])
        value: object = 5
    else:
        value = "x"
    wide = Counter({(*row, value): count for row, count in now.items()})
    assert Counter(connection.execute(select).fetchall()) == wide
    assert Counter(connection.execute(at).fetchall()) == Counter({(*row, None): n for row, n in old.items()})
    # Retractions meet their rows.
    connection.execute(sql.SQL("DELETE FROM {} WHERE a < 500").format(table))
    left = Counter({row: count for row, count in wide.items() if row[0] >= 500})
    assert Counter(connection.execute(select).fetchall()) == left
