"""Rows that nobody has to wait for: taken without the event loop, under the statement's cancel."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.result_stream import GuardedRows
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.variables import Variables
from tidemill.errors import QueryCanceled

TABLE = pa.table({"c0": [1, 2, 3]})


def watched() -> tuple[GuardedRows, Interrupt]:
    interrupt = Interrupt()
    interrupt.begin(0)
    return GuardedRows(stream(TABLE), interrupt), interrupt


def test_the_end_is_the_end_of_the_statement() -> None:
    rows, interrupt = watched()
    assert rows.at_hand
    batch = rows.take()
    assert batch is not None and batch.num_rows == 3 and interrupt.running
    assert rows.take() is None and not interrupt.running
    assert rows.take() is None


def test_a_cancel_reaches_rows_at_hand() -> None:
    rows, interrupt = watched()
    interrupt.cancel()
    with pytest.raises(QueryCanceled):
        rows.take()
    assert not interrupt.running
    assert rows.take() is None


def test_they_can_be_awaited_too_and_closed() -> None:
    async def main() -> None:
        rows, interrupt = watched()
        assert [batch.num_rows async for batch in rows] == [3]
        assert not interrupt.running
        rows, interrupt = watched()
        await rows.aclose()
        assert rows.take() is None and not interrupt.running

    asyncio.run(main())


def test_what_a_transaction_set_is_taken_back_and_what_was_saved_is_not_changed() -> None:
    variables = Variables({})
    before = variables.get("application_name")
    variables.begin()
    variables.set("application_name", "x")
    variables.reset("datestyle")
    variables.end(committed=False)
    assert variables.get("application_name") == before
    variables.begin()
    variables.set("application_name", "y")
    variables.end(committed=True)
    variables.begin()
    variables.reset_all()
    variables.end(committed=False)
    assert variables.get("application_name") == "y"
