"""A durable subscription over HTTP: as server-sent events, which a browser resumes; one FETCH a request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from subscriptions_world import World

from support.sse import Event, EventReader
from tidemill.config import Address
from tidemill.server.http.serve import serve_http


class Stream:
    """A browser's side."""

    def __init__(self, answer: httpx.Response) -> None:
        self._reader = EventReader()
        self._bytes: AsyncIterator[bytes] = answer.aiter_raw()
        self._waiting: list[Event] = []

    async def changes(self, count: int) -> tuple[list[int], str]:
        """The ids of the next rows, and the id of the last event."""
        found: list[int] = []
        while True:
            while not self._waiting:
                self._waiting += self._reader.feed(await anext(self._bytes))
            event = self._waiting.pop(0)
            assert event.kind in ("columns", "changes"), event
            if event.kind == "changes":
                found += [row[1] for row in json.loads(event.data)["rows"]]
                if len(found) >= count:
                    assert event.id is not None
                    return found, event.id


def test_http(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def sql(http: httpx.AsyncClient, text: str) -> Any:
        answer = await http.post("/api/sql", json={"query": text})
        (result,) = answer.json()["results"]
        return result

    async def play() -> None:
        server = await serve_http(world.engine, Address("127.0.0.1", 0))
        base = f"http://127.0.0.1:{server.address.port}"
        async with httpx.AsyncClient(base_url=base, timeout=60) as http:
            await sql(http, "CREATE TABLE t (id int)")
            await sql(http, "INSERT INTO t VALUES (1), (2)")
            await sql(http, "CREATE SUBSCRIPTION s FOR t")
            url = "/api/subscribe?subscription=s"
            async with http.stream("GET", url) as answer:
                assert answer.status_code == 200
                found, first = await Stream(answer).changes(2)
                assert found == [1, 2]
            await sql(http, "INSERT INTO t VALUES (3)")
            # Nothing was acknowledged; a browser sends the id of its last event.
            async with http.stream("GET", url, headers={"Last-Event-ID": first}) as answer:
                stream = Stream(answer)
                assert (await stream.changes(1))[0] == [3]
                await sql(http, "INSERT INTO t VALUES (4)")
                found, last = await stream.changes(1)
                assert found == [4]
                await sql(http, f"ACKNOWLEDGE SUBSCRIPTION s TO {last}")
            await sql(http, "INSERT INTO t VALUES (5)")
            async with http.stream("GET", url) as answer:
                assert (await Stream(answer).changes(1))[0] == [5]
            # What was acknowledged may be gone, and other parameters are not for it.
            assert (await http.get(url + f"&position={first}")).status_code == 400
            assert (await http.get(url + "&key=id")).status_code == 400
            # Each request is a session of its own: the position says where to go on.
            rows = (await sql(http, "FETCH 10 FROM SUBSCRIPTION s"))["rows"]
            assert [row[3] for row in rows if not row[1]] == [5]
            again = f"FETCH 10 FROM SUBSCRIPTION s WITH (POSITION = {rows[-1][0]}, TIMEOUT = 0)"
            assert all(row[1] for row in (await sql(http, again))["rows"])
        await server.close()

    world.loop.run(play())
    world.close()
