"""An engine in this process, without a JVM: sessions that run SQL over tables, and restarts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.server import silent_java
from tidemill.config import Config
from tidemill.engine.api import Complete, Param, Rows, StartupOptions, close_batches
from tidemill.engine.engine import TidemillEngine
from tidemill.engine.session.session import EngineSession
from tidemill.errors import TidemillError


class World:
    """One data directory and its engine."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self._settings: dict[str, Any] = {"data_dir": str(folder / "data"), **settings}
        os.environ["JAVA_HOME"] = str(silent_java(folder / "java"))
        self._processes = 0
        self.loop = asyncio.Runner()
        self.engine = self._opened()

    def _opened(self) -> TidemillEngine:
        def lost(error: TidemillError) -> None:
            raise error

        return TidemillEngine.open(Config(**self._settings), on_fatal=lost)

    def restart(self) -> None:
        self.engine.close()
        self.engine = self._opened()

    def session(self, user: str = "materialize") -> Client:
        self._processes += 1
        options = StartupOptions(user=user)
        return Client(self.engine.open_session(options, process_id=self._processes))

    def maintain(self) -> None:
        """A round of what the maintenance thread does about once a second."""
        background = self.engine._background  # pyright: ignore[reportPrivateUsage]
        background._maintenance.round()  # pyright: ignore[reportPrivateUsage]

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.engine.close()
        self.loop.close()


class Client:
    """A session that is used as the server does."""

    def __init__(self, session: EngineSession) -> None:
        self.session = session

    async def run(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        rows: list[tuple[Any, ...]] = []
        try:
            statements = [await self.session.prepare(sql, ())] if params else await self.session.parse(sql)
            given: Sequence[Param] = [Param(str(p).encode()) for p in params]
            for statement in statements:
                many = len(statements) > 1
                outcome = await self.session.execute(statement, given, alone=not many, in_block=many)
                if isinstance(outcome, Rows):
                    rows = []
                    async for batch in outcome.batches:
                        rows += _rows(batch)
                else:
                    assert isinstance(outcome, Complete), outcome
        except BaseException:
            await self.session.fail()
            raise
        await self.session.sync()
        return rows

    async def abandon(self, sql: str) -> None:
        """Read one batch, as a client whose connection fails."""
        (statement,) = await self.session.parse(sql)
        outcome = await self.session.execute(statement, alone=True)
        assert isinstance(outcome, Rows)
        await anext(outcome.batches, None)
        await close_batches(outcome.batches)
        await self.session.fail()

    async def close(self) -> None:
        await self.session.close()


def _rows(batch: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
