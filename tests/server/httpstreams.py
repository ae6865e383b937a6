"""Clients of WebSockets and server-sent events, for tests against a real server."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psycopg
from websockets.asyncio.client import ClientConnection, connect

from support.server import ServerProcess
from support.sse import Event, EventReader

# Whatever must come comes long before, on any machine.
SECONDS = 120


def writing(server: ServerProcess, database: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        server.sql_dsn.replace("dbname=materialize", f"dbname={database}"), autocommit=True
    )


def metric(server: ServerProcess, name: str) -> float:
    """The sum over all labels."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=SECONDS) as answer:
        text = answer.read().decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not await asyncio.to_thread(what):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def run(work: Coroutine[Any, Any, None], seconds: float = 2 * SECONDS) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


def nothing_is_read(server: ServerProcess) -> bool:
    return metric(server, "tidemill_subscriptions_active") + metric(server, "tidemill_http_streams") == 0


# -- WebSockets


class Talk:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def hear(self) -> tuple[str, Any]:
        async with asyncio.timeout(SECONDS):
            message = json.loads(await self.socket.recv())
        return message["type"], message["payload"]

    async def until(self, *kinds: str) -> list[tuple[str, Any]]:
        heard = [await self.hear()]
        while heard[-1][0] not in kinds:
            heard.append(await self.hear())
        return heard

    async def ask(self, query: str, *params: Any) -> list[tuple[str, Any]]:
        asked = {"queries": [{"query": query, "params": params}]} if params else {"query": query}
        await self.say(asked)
        return (await self.until("ReadyForQuery"))[:-1]


@asynccontextmanager
async def talking(server: ServerProcess, database: str) -> AsyncGenerator[Talk]:
    url = f"ws://127.0.0.1:{server.http_port}/api/experimental/sql"
    async with connect(url, max_size=None, ping_interval=None) as connection:
        talk = Talk(connection)
        await talk.say({"options": {"database": database}})
        await talk.until("ReadyForQuery")
        yield talk


def rows(heard: list[tuple[str, Any]]) -> list[Any]:
    return [payload for kind, payload in heard if kind == "Row"]


# -- server-sent events


def path_of(database: str, query: str, **options: str) -> str:
    return "/api/subscribe?" + urllib.parse.urlencode({"query": query, "database": database, **options})


def request_of(database: str, query: str) -> bytes:
    return f"GET {path_of(database, query)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Listener:
    def __init__(self, answer: httpx.Response, reader: EventReader) -> None:
        self.answer = answer
        self.reader = reader
        self._bytes = answer.aiter_raw(chunk_size=None)
        self._waiting: list[Event] = []

    async def hear(self) -> Event:
        async with asyncio.timeout(SECONDS):
            while not self._waiting:
                self._waiting += self.reader.feed(await anext(self._bytes))
        return self._waiting.pop(0)

    async def kind(self) -> str:
        return (await self.hear()).kind

    async def ended(self) -> bool:
        async with asyncio.timeout(SECONDS):
            async for data in self._bytes:
                self._waiting += self.reader.feed(data)
        return not self._waiting


@asynccontextmanager
async def listening(
    server: ServerProcess, database: str, query: str, last: str | None = None, **options: str
) -> AsyncGenerator[Listener]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with (
        httpx.AsyncClient(base_url=server.http_url, timeout=SECONDS) as client,
        client.stream("GET", path_of(database, query, **options), headers=headers) as answer,
    ):
        yield Listener(answer, EventReader())


class Held:
    """What a client holds that applies only what is complete, as a page would."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[Any, ...]] = Counter()
        self.times: list[int] = []
        self.snapshots = 0
        self._parts: list[list[Any]] = []

    def connected(self) -> None:
        self._parts.clear()

    def apply(self, event: Event) -> None:
        if event.kind not in ("snapshot", "changes"):
            assert event.kind == "columns", event
            return
        data = json.loads(event.data)
        self._parts += data["rows"]
        if data.get("more"):
            assert event.id is None
            return
        if event.kind == "snapshot":
            self.rows.clear()
            self.snapshots += 1
        # No time is told twice, and none is skipped back to.
        assert not self.times or data["time"] > self.times[-1] or event.kind == "snapshot"
        self.times.append(data["time"])
        for diff, *row in self._parts:
            self.rows[tuple(row)] += diff
        self._parts.clear()
