"""A server that is started again goes on with what its views' queries keep: nothing is computed anew."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from support.server import ServerProcess

# One reads by sums, one keeps two inner stages by different keys, one joins, one reads another view.
VIEWS = {
    "sums": "SELECT k, count(*) AS n, sum(v) AS s FROM a GROUP BY k",
    "chained": "SELECT m, max(v) AS most FROM "
    "(SELECT x.v, max(y.v) AS m FROM a x JOIN b y USING (k) GROUP BY x.v) AS t GROUP BY m",
    "joined": "SELECT x.k, x.v, y.v AS w FROM a x LEFT JOIN b y ON x.k = y.k",
    "above": "SELECT n, max(k) AS k FROM sums GROUP BY n",
}


def built(server: ServerProcess) -> int:
    """The arrangements that this process has computed."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=60) as answer:
        found = re.search(r"^tidemill_arrangements_built_total (\S+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found.group(1)))


def check(server: ServerProcess, key: int) -> None:
    """Every view is its query, after a change."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("INSERT INTO a VALUES (%s, 7), (%s, 8)", (key, key + 1))
        c.execute("DELETE FROM b WHERE v = %s", (key,))
        for name, text in VIEWS.items():
            found, wanted = (c.execute(q.encode()).fetchall() for q in (f"SELECT * FROM {name}", text))
            assert Counter(found) == Counter(wanted), name


@pytest.mark.server
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_nothing_is_computed_again_after_a_restart(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    try:
        server.start(wait_ready=True)
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            for table in ("a", "b"):
                c.execute(f"CREATE TABLE {table} (k int, v int)".encode())
                c.execute(
                    f"INSERT INTO {table} SELECT n % 50, n % 13 FROM generate_series(1, 300) AS s(n)".encode()
                )
            for name, text in VIEWS.items():
                c.execute(f"CREATE MATERIALIZED VIEW {name} AS {text}".encode())
        check(server, 1)
        assert built(server) >= len(VIEWS)
        server.terminate()
        server.start(wait_ready=True)
        check(server, 3)
        assert built(server) == 0
    finally:
        server.close()
