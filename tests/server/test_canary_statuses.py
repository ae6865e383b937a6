"""A source that cannot reach its broker says why, and no secret: in its status, in the metrics and in the
server's log; neither does a sink that cannot be made."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import psycopg
from canaries import SECONDS, by_relations, by_sql

from support.server import ServerProcess, connected

SECRET = "canary-status-63b0"
# Nobody listens on port 1.
SETUP = [
    f"CREATE SECRET s AS '{SECRET}'",
    (
        "CREATE CONNECTION k TO KAFKA (BROKER '127.0.0.1:1', SASL MECHANISMS PLAIN, SASL USERNAME 'u', "
        "SASL PASSWORD = SECRET s) WITH (VALIDATE = false)"
    ),
    "CREATE TABLE t (a int)",
]
MADE = [
    "CREATE SOURCE src FROM KAFKA CONNECTION k (TOPIC 't') FORMAT TEXT WITH (VALIDATE = false)",
    "CREATE SINK out FROM t INTO KAFKA CONNECTION k (TOPIC 't') FORMAT JSON ENVELOPE MATERIALIZE",
]


def by_status(connection: psycopg.Connection[Any], name: str) -> str:
    """What is wrong with a source, as soon as it is known."""
    text = "SELECT status, error, details::text FROM mz_internal.mz_source_statuses WHERE name = %s"
    deadline = time.monotonic() + SECONDS
    while True:
        row = connection.execute(text, [name]).fetchone()
        if row is not None and row[1] is not None:
            return str(row)
        assert time.monotonic() < deadline, row
        time.sleep(0.1)


def test_statuses(server: ServerProcess, database: str) -> None:
    with connected(server, database) as connection:
        assert by_sql(connection, SETUP) == []
        heard = by_sql(connection, MADE)
        assert any("127.0.0.1:1" in text for text in heard)
        heard += by_sql(connection, ["SHOW CREATE SOURCE src", "SHOW CREATE CONNECTION k"])
        heard.append(by_status(connection, "src"))
        assert "127.0.0.1:1" in heard[-1]
        heard += by_relations(connection)
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=60) as answer:
        heard.append(answer.read().decode())
    heard.append(server.log)
    assert not [text[:2000] for text in heard if SECRET in text]
