"""The shell against the server: what only Tidemill has, in a terminal where it matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from shellrun import ran, typed

from support.server import ServerProcess, connected
from tidemill.cli.shell.context import candidates
from tidemill.cli.shell.names import read

SETUP = [
    "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', price numeric(10,2))",
    "CREATE VIEW dear AS SELECT id, name FROM items WHERE price > 1",
    "CREATE MATERIALIZED VIEW cheap AS SELECT id FROM items WHERE price < 1",
    "CREATE SOURCE clicks FROM LOAD GENERATOR COUNTER",
    "COMMENT ON COLUMN items.price IS 'In euros'",
]


@pytest.fixture
def place(server: ServerProcess, database: str) -> str:
    return f"postgresql://materialize@127.0.0.1:{server.sql_port}/{database}"


@pytest.fixture
def described(server: ServerProcess, database: str, place: str) -> Iterator[str]:
    with connected(server, database) as connection:
        for statement in SETUP:
            connection.execute(statement.encode())
    yield place


def plain(text: str) -> str:
    return " ".join(text.split())


def test_what_there_is(described: str) -> None:
    def shown(command: str) -> str:
        result = ran(described, "-c", command)
        assert result.status == 0 and "ERROR" not in result.err, result.err
        return plain(result.out)

    relations = shown(r"\d")
    for row in ["items | table", "dear | view", "cheap | materialized view", "clicks | source"]:
        assert f"public | {row} | materialize" in relations
    assert "clicks" not in shown(r"\dt") and "items" in shown(r"\dt")
    assert "public | dear | view" in shown(r"\dv") and "public | cheap" in shown(r"\dm")
    sources = shown(r"\ds+")
    assert "public | clicks | load-generator | " in sources
    table = shown(r"\d+ items")
    assert 'Table "public.items"' in table and "price | numeric(10,2) | | | In euros" in table
    assert "name | text | not null | 'x'" in table and '"items_pkey" PRIMARY KEY, btree (id)' in table
    assert "SELECT id, name FROM items WHERE price > 1;" in shown(r"\d+ dear")
    assert "public | materialize" in shown(r"\dn") and "materialize" in shown(r"\du")
    assert "lower | text | text | func" in shown(r"\df lower")
    assert "statement_timeout | 0" in shown(r"\dconfig statement_timeout")
    assert (
        "items" in shown(r"\dp") and "UTF8" in shown(r"\l") and "CREATE OR REPLACE VIEW" in shown(r"\sv dear")
    )
    assert "SUBSCRIBE [TO]" in shown(r"\h subscribe")
    assert 'on host "127.0.0.1"' in shown(r"\conninfo")
    assert ran(described, "-c", r"\d nothing").status == 1


def test_statements_and_formats(described: str) -> None:
    script = """
    INSERT INTO items VALUES (1, 'one', 0.50), (2, 'two', 2.50);
    COPY items FROM STDIN;
3\tthree\t\\N
\\.
    SELECT * FROM items ORDER BY id;
    SELECT mz_now() AS before \\gset
    DELETE FROM items WHERE id = 3;
    SELECT count(*) AS past FROM items AS OF :before;
    """
    result = ran(described, stdin=script)
    assert result.status == 0, result.err
    assert "  3 | three |  NULL\n(3 rows)" in result.out and "DELETE 1\n" in result.out
    assert " past \n------\n    3\n" in result.out
    query = ("-c", "SELECT * FROM items ORDER BY id LIMIT 1")
    assert ran(described, "--json", *query).out == '{"id": 1, "name": "one", "price": 0.50}\n'
    assert ran(described, "--csv", *query).out == "id,name,price\n1,one,0.50\n"
    assert ran(described, "--markdown", *query).out == (
        "| id | name | price |\n| ---: | --- | ---: |\n| 1 | one | 0.50 |\n\n"
    )
    failed = ran(described, "-c", "SELECT nothing FROM items")
    assert failed.status == 1
    assert "LINE 1: SELECT nothing FROM items\n               ^\n" in failed.err


def test_completion_from_the_catalog(described: str) -> None:
    names = read(described)
    assert {"items", "dear", "cheap", "clicks"} <= names.visible
    assert names.columns["public", "items"] == ["id", "name", "price"]
    assert "price" in [c.text for c in candidates("SELECT * FROM items WHERE pr", names)]
    assert [c.text for c in candidates("SUBSCRIBE it", names)] == ["items"]
    assert "statement_timeout" in names.settings


def test_a_session_in_a_terminal(
    described: str, tmp_path: Path, server: ServerProcess, database: str
) -> None:
    history = tmp_path / "tidemill" / "sql_history"
    with typed(described, "-X", env={"XDG_STATE_HOME": str(tmp_path)}) as shell:
        prompt = f"{database}=>"
        shell.until(prompt)
        # Several lines, and what each waits for.
        shell.enter("SELECT 1 AS one,")
        shell.until(f"{database}->")
        shell.enter("'a;")
        shell.until(f"{database}'>")
        shell.enter("b' AS two;")
        assert " one │ two " in shell.until("(1 row)")
        shell.until(prompt)
        # A transaction, and one that failed.
        shell.enter("BEGIN;")
        shell.until(f"{database}=*>")
        shell.enter("SELECT nope;")
        assert "LINE 1: SELECT nope" in shell.until(f"{database}=!>")
        shell.enter("ROLLBACK;")
        shell.until(prompt)
        # A subscription shows rows as they come; Ctrl-C ends it, and not the shell.
        shell.enter("SUBSCRIBE items;")
        with connected(server, database) as other:
            other.execute("INSERT INTO items VALUES (7, 'first', 1)")
            assert "NOTICE" not in shell.until("first")
            other.execute("INSERT INTO items VALUES (8, 'second', 1)")
            shell.until("second")
            shell.type("\x03")
            shell.until("(2 rows)")
            shell.until(prompt)
            # A connection that is gone is made again.
            shell.enter("SELECT 'pid', pg_backend_pid();")
            pid = int(shell.until("(1 row)").rsplit("│", 1)[1].split()[0])
            shell.until(prompt)
            assert other.execute(f"SELECT pg_terminate_backend({pid})".encode()).fetchone() == (True,)
        shell.enter("SELECT 40 + 2;")
        if "42" not in shell.until("42", "connects again"):
            # Its end came while the statement was on its way.
            shell.until("!>")
            shell.enter("SELECT 40 + 2;")
            shell.until("42")
        shell.until(prompt)
        shell.enter("\\timing on")
        shell.until("Timing is on.")
        shell.until(prompt)
        shell.enter("ALTER ROLE nobody PASSWORD 'canary';")
        shell.until("Time:")
        shell.until(prompt)
        # Ctrl-C forgets what was typed.
        shell.type("SELECT forgotten\x03")
        shell.until(prompt)
        shell.enter("\\q")
        assert shell.ended() == 0
    kept = history.read_text()
    assert "SUBSCRIBE items;" in kept and "canary" not in kept and "forgotten" not in kept


def test_ctrl_c_ends_a_subscription_of_a_script(described: str) -> None:
    with typed(described, "--json", "-c", "SUBSCRIBE items", "-c", "SELECT 'never'") as shell:
        with psycopg.connect(described, autocommit=True) as other:
            other.execute("INSERT INTO items VALUES (1, 'shown', 5)")
        shell.until('"name": "shown"')
        shell.type("\x03")
        assert shell.ended() == 0
