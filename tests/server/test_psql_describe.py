"""psql's commands that look into the catalog, by the psql of the tests' PostgreSQL and by the one that is
installed, over a real socket. Nothing of it needs Spark."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from wireserver import PSQL

from support.server import ServerProcess, connected

SETUP = """
CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', price numeric(10,2), tags text[],
    at timestamptz, since mz_timestamp);
CREATE VIEW dear AS SELECT id, name FROM items WHERE price > 1;
CREATE SCHEMA other;
CREATE TABLE other.t (a int, "B c" varchar(10), UNIQUE (a, "B c"));
CREATE TABLE other.nested (l int list, m map[text=>int], d map[text=>numeric(4,2) list], a text list[]);
COMMENT ON TABLE items IS 'Things, and "more"';
COMMENT ON COLUMN items.name IS 'What it is called';
COMMENT ON SCHEMA other IS 'Elsewhere';
"""

# Between the answers of two commands.
MARK = "=====#====="
# Commands that have nothing to show, and must say so without an error.
NOTHING = r"""
\ds \dx \dD \des \dE \drds \dL \dy \dRp \dRs \dO \dc \dAc \dAf \dAo \dA \dP \dFd \dF \dFp \dFt \dX \ddp \dl
\det \dew \deu \dS \dT+
"""

# Command -> what its answer must hold (blanks between words count as one).
SHOWN: dict[str, list[str]] = {
    r"\d": ["public | dear | view | materialize", "public | items | table | materialize", "(2 rows)"],
    r"\d items": [
        'Table "public.items"',
        "id | integer | | not null |",
        "name | text | | not null | 'x'",
        "price | numeric(10,2) | | |",
        "tags | text[] | | |",
        "at | timestamp with time zone | | |",
        "since | mz_timestamp | | |",
        '"items_pkey" PRIMARY KEY, btree (id)',
    ],
    r"\d+ items": ["What it is called"],
    r"\d+ dear": ['View "public.dear"', "SELECT id, name FROM items WHERE price > 1;"],
    r"\d other.t": ["B c | character varying(10)", '"t_a_B c_key" UNIQUE CONSTRAINT, btree (a, "B c")'],
    r"\d other.nested": [
        "l | integer list",
        "m | map[text=>integer]",
        "d | map[text=>numeric(4,2) list]",
        "a | text list[]",
    ],
    r"\d pg_catalog.pg_class": ["relname | name", 'relkind | "char"'],
    r"\d mz_catalog.mz_tables": ["shard_id | text"],
    r"\dt": ["public | items | table | materialize", "(1 row)"],
    r"\dt+": ['Things, and "more"'],
    r"\dt other.t": ["other | t | table", "(1 row)"],
    r"\dv": ["public | dear | view", "(1 row)"],
    r"\dm": [],
    r"\di": ["items_pkey", "(1 row)"],
    r"\dn": ["other | materialize", "public | materialize"],
    r"\dn+": ["Elsewhere"],
    r"\df": ["(0 rows)"],
    r"\df lower": ["pg_catalog | lower | text | text | func"],
    r"\da count": ["pg_catalog | count | bigint"],
    r"\do ||": ["pg_catalog | || | text | text | text"],
    r"\l": ["materialize | UTF8"],
    r"\l+": [],
    r"\du": ["materialize", "mz_system"],
    r"\dT": ["(0 rows)"],
    r"\dT pg_catalog.int4": ["pg_catalog | integer"],
    r"\dp": ["public | items | table"],
    r"\z items": ["public | items | table"],
    r"\dd": [],
    r"\db": ["pg_default"],
    r"\dC": ["bigint | numeric | (with inout) | yes"],
    r"\sv dear": ["CREATE OR REPLACE VIEW public.dear AS"],
    r"\dconfig statement_timeout": ["statement_timeout | 0"],
    **{command: [] for command in NOTHING.split()},
}


@pytest.fixture(params=["of the tests", "installed"])
def psql(request: pytest.FixtureRequest) -> Path:
    if request.param == "of the tests":
        return PSQL
    found = shutil.which("psql")
    if found is None:
        pytest.skip("no psql is installed")
    return Path(found)


@pytest.fixture
def described(server: ServerProcess, database: str) -> Iterator[str]:
    with connected(server, database) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode())
    yield server.sql_dsn.replace("dbname=materialize", f"dbname={database}")


def run(psql: Path, dsn: str, commands: list[str]) -> list[str]:
    """What each command prints, by itself."""
    script: list[str] = []
    for command in commands:
        script += [command, rf"\echo {MARK}"]
    found = subprocess.run(
        [str(psql), "-X", "-q", "-P", "pager=off", dsn],
        input="\n".join(script),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0 and not found.stderr, found.stderr
    return found.stdout.split(f"{MARK}\n")[:-1]


def plain(text: str) -> str:
    return " ".join(text.split())


def test_what_psql_shows(psql: Path, described: str) -> None:
    commands = list(SHOWN)
    texts = run(psql, described, commands)
    missing = {
        command: [want for want in SHOWN[command] if want not in plain(text)]
        for command, text in zip(commands, texts, strict=True)
    }
    assert not {c: m for c, m in missing.items() if m}, texts
