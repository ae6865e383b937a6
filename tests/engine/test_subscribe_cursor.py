"""FETCH from a subscription: rows that came before an error are given, and the error after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from tidemill.engine.session.cursors import SqlCursor
from tidemill.engine.session.interrupt import Interrupt
from tidemill.errors import TidemillError


async def _failing() -> AsyncIterator[pa.RecordBatch]:
    for n in range(2):
        yield pa.RecordBatch.from_pydict({"n": [n]})
    raise TidemillError("the relation holds an error")


async def _numbers(cursor: SqlCursor, count: int | None, timeout: float | None) -> list[int]:
    return [n async for batch in cursor.fetch(count, timeout) for n in batch["n"].to_pylist()]


@pytest.mark.parametrize(("count", "timeout"), [(None, 30.0), (3, 30.0)])
def test_an_error_does_not_take_the_rows_before_it_along(count: int | None, timeout: float) -> None:
    async def scenario() -> None:
        cursor = SqlCursor(_failing(), Interrupt(), endless=True)
        assert await _numbers(cursor, count, timeout) == [0, 1]
        with pytest.raises(TidemillError, match="holds an error"):
            await _numbers(cursor, count, timeout)
        assert await _numbers(cursor, count, timeout) == []

    asyncio.run(scenario())


def test_what_has_an_end_is_given_whole_or_fails() -> None:
    async def scenario() -> None:
        with pytest.raises(TidemillError, match="holds an error"):
            await _numbers(SqlCursor(_failing(), Interrupt()), None, None)

    asyncio.run(scenario())
