"""pgjdbc's DatabaseMetaData against a real server. Without the driver or a JDK nothing is tested here.
What it asks is in tests/text/cases/clients/pgjdbc.slt in any case."""

from __future__ import annotations

import subprocess

from pgjdbc import PROGRAMS, driver

from support.server import ServerProcess, connected

SETUP = """
CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', price numeric(10,2), tags text[]);
CREATE VIEW dear AS SELECT id, name FROM items WHERE price > 1;
CREATE SCHEMA other;
CREATE TABLE other.t (a int, b varchar(10), UNIQUE (a));
COMMENT ON TABLE items IS 'Things';
"""

SAID = """
version: 16.4
schemas: pg_catalog public
tables: items/TABLE/Things dear/VIEW/null
columns: id/int4/NO/null name/text/NO/'x' price/numeric/YES/null tags/_text/YES/null
primary keys: id/items_pkey
indexes: t_a_key/a/f
imported keys:
exported keys:
functions: lower
function columns: returnValue/text $1/text
procedures:
row identifier: id
user types:
types: true
keywords: true
prepared: items/r
shape: id/int4 price/numeric tags/_text
array: {"1","2"}
"""


def test_what_the_driver_says(server: ServerProcess, database: str) -> None:
    jar = driver()
    with connected(server, database) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode())
    url = f"jdbc:postgresql://127.0.0.1:{server.sql_port}/{database}?user=materialize"
    source = PROGRAMS / "Metadata.java"
    ran = subprocess.run(
        ["java", "-cp", str(jar), str(source), url], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == SAID.strip().splitlines()
