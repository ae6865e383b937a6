"""Everywhere that a password or a secret could be heard: what a server says to clients of all kinds, to those
who look at it from outside, and to its log. `test_access_server` lets canaries fly and listens here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Any

import psycopg
from guarded import Guarded
from psycopg import sql
from websockets.asyncio.client import connect

SCHEMAS = ["mz_catalog", "mz_internal", "pg_catalog", "information_schema"]
# For what must come.
SECONDS = 120.0


def by_sql(connection: psycopg.Connection[Any], statements: Sequence[str]) -> list[str]:
    """Rows, notices and errors with all their fields."""
    heard: list[str] = []
    connection.add_notice_handler(lambda d: heard.append(f"{d.message_primary} {d.message_detail}"))
    for statement in statements:
        try:
            cursor = connection.execute(statement.encode())
            heard += [str(row) for row in (cursor.fetchall() if cursor.description else [])]
        except psycopg.Error as e:
            heard.append(f"{e.diag.message_primary} {e.diag.message_detail} {e.diag.message_hint}")
    return heard


def by_relations(connection: psycopg.Connection[Any]) -> list[str]:
    """Every row of every system relation that can be read without Spark."""
    names = connection.execute(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = ANY(%s)",
        [SCHEMAS],
    ).fetchall()
    assert len(names) > 30
    heard: list[str] = []
    # What would need Spark is not waited for.
    connection.execute("SET statement_timeout = '60s'")
    for schema, name in names:
        text = sql.SQL("SELECT * FROM {}.{}").format(sql.Identifier(schema), sql.Identifier(name))
        try:
            heard += [str(row) for row in connection.execute(text).fetchall()]
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.QueryCanceled):
            pass
    return heard


def by_http(server: Guarded, user: str, password: str, statements: Sequence[str]) -> list[str]:
    """Bodies of all kinds of answers: results, refusals, streams that do not begin, metrics and the page."""
    heard = [server.http("/api/sql", user, password, {"query": s})[1] for s in statements]
    heard += [server.http("/api/sql", user, password, {"queries": [{"query": s}]})[1] for s in statements]
    for statement in statements:
        query = urllib.parse.urlencode({"query": statement})
        heard.append(server.http(f"/api/subscribe?{query}", user, password)[1])
    heard += [server.http(path, user, password)[1] for path in ("/metrics", "/", "/nothing")]
    return heard


def by_websocket(server: Guarded, login: dict[str, str], statements: Sequence[str]) -> list[str]:
    """All frames of a conversation: the login and what the statements say."""

    async def main() -> list[str]:
        heard: list[str] = []
        url = f"wss://localhost:{server.http_port}/api/experimental/sql"
        async with connect(url, ssl=server.context) as socket:
            await socket.send(json.dumps(login))
            for message in (*(json.dumps({"query": s}) for s in statements), None):
                while True:
                    heard.append(str(await asyncio.wait_for(socket.recv(), SECONDS)))
                    kind = json.loads(heard[-1])["type"]
                    if kind == "Error" and len(heard) == 1:
                        return heard
                    if kind == "ReadyForQuery":
                        break
                if message is not None:
                    await socket.send(message)
        return heard

    return asyncio.run(main())


def by_commands(server: Guarded) -> list[str]:
    """What the command line shows of the data directory and the settings."""
    heard: list[str] = []
    folder = server.data_dir
    for command in (["inspect", folder], ["inspect", "--json", folder], ["doctor", "--data-dir", folder]):
        done = subprocess.run(
            [sys.executable, "-m", "tidemill.cli", *command],
            env={**os.environ, **server.env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stdout, done.stderr
        heard += [done.stdout, done.stderr]
    return heard
