"""The HTTP port over a fake engine, for the time of one test's work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tidemill.config import Address
from tidemill.server.http import HttpServer, serve_http
from tidemill.server.http.streams import OpenStream

from .fake import FakeEngine


class Door:
    """An open port, its engine, and a client on it."""

    def __init__(self, server: HttpServer, engine: FakeEngine, client: httpx.AsyncClient) -> None:
        self.server, self.engine, self.client = server, engine, client

    @property
    def streams(self) -> list[OpenStream]:
        """Those that are open."""
        api = self.server._api  # pyright: ignore[reportPrivateUsage]
        return list(api._streams._open)  # pyright: ignore[reportPrivateUsage]

    async def sql(self, body: Any, status: int = 200) -> Any:
        answer = await self.client.post("/api/sql", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def raw(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.server.address)
        writer.write(data)
        await writer.drain()
        try:
            return await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


def with_door(work: Callable[[Door], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        engine = FakeEngine()
        server = await serve_http(engine, Address("127.0.0.1", 0), **options)
        url = f"http://{server.address}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                await work(Door(server, engine, client))
        finally:
            await server.close()

    asyncio.run(main())
