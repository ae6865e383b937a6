"""Server-sent events of queries that are more than a table: constants, and system relations, which have no
history to come back to."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse

import psycopg
import pytest

from support.server import ServerProcess
from support.sse import Event, EventReader

SECONDS = 120


@pytest.fixture
def table(server: ServerProcess) -> Iterator[str]:
    name = f"queries_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE TABLE {name} (a int)".encode())
        yield name
        c.execute(f"DROP TABLE {name}".encode())


def asked(server: ServerProcess, query: str, last: str | None = None, **options: str) -> HTTPResponse:
    parameters = urllib.parse.urlencode({"query": query, **options})
    headers = {} if last is None else {"Last-Event-ID": last}
    request = urllib.request.Request(f"{server.http_url}/api/subscribe?{parameters}", headers=headers)
    return urllib.request.urlopen(request, timeout=SECONDS)


def events(answer: HTTPResponse) -> Iterator[Event]:
    reader = EventReader()
    while data := answer.read1(65_536):
        yield from reader.feed(data)


def test_a_query_that_cannot_change_ends(server: ServerProcess) -> None:
    with closing(asked(server, "VALUES (1)")) as answer:
        said = list(events(answer))
    assert [event.kind for event in said] == ["columns", "snapshot", "end"]
    assert json.loads(said[1].data)["rows"] == [[1, 1]]


def test_a_system_relation_is_followed_and_begins_anew(server: ServerProcess, table: str) -> None:
    query = f"SELECT name FROM mz_tables WHERE name LIKE '{table}%'"
    with (
        closing(asked(server, query)) as answer,
        psycopg.connect(server.sql_dsn, autocommit=True) as c,
    ):
        said = events(answer)
        assert next(said).kind == "columns"
        first = next(said)
        assert first.kind == "snapshot" and json.loads(first.data)["rows"] == [[1, table]]
        c.execute(f"CREATE TABLE {table}_2 (a int)".encode())
        try:
            change = next(said)
            assert change.kind == "changes" and json.loads(change.data)["rows"] == [[1, f"{table}_2"]]
            # Who comes back cannot be told what changed meanwhile, and is told all.
            with closing(asked(server, query, first.id)) as again:
                anew = events(again)
                assert [next(anew).kind, next(anew).kind] == ["columns", "snapshot"]
            assert first.id is not None
            for options, last in (
                ({"as_of": str(int(first.id) - 1)}, None),
                ({"snapshot": "false"}, first.id),
            ):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    asked(server, query, last, **options)
                assert refused.value.code == 410
                assert json.load(refused.value)["error"]["code"] == "22000"
        finally:
            c.execute(f"DROP TABLE {table}_2".encode())


def test_a_query_over_a_table_resumes(server: ServerProcess, table: str) -> None:
    query = f"SELECT a * 10 AS b FROM {table} WHERE a > 1"
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"INSERT INTO {table} VALUES (1), (2)".encode())
        with closing(asked(server, query, key="b")) as answer:
            said = events(answer)
            assert next(said).kind == "columns"
            first = next(said)
        assert first.kind == "snapshot" and json.loads(first.data)["rows"] == [["upsert", 20]]
        c.execute(f"INSERT INTO {table} VALUES (0), (3)".encode())
        with closing(asked(server, query, first.id, key="b")) as answer:
            said = events(answer)
            assert next(said).kind == "columns"
            change = next(said)
        assert change.kind == "changes" and json.loads(change.data)["rows"] == [["upsert", 30]]
