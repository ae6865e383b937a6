"""Server-sent events over a real socket, with an engine that does as it is told: what is asked for, what
comes, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from support.sse import Event, EventReader
from tidemill.engine.api import ConsumeRequest, HistoryGone, SubscribeRequest
from tidemill.errors import Unavailable, UndefinedObject
from tidemill.server.http import live, live_request, protocols, streams
from tidemill.server.http.live_request import parse_live
from tidemill.server.http.request import BadRequest
from tidemill.types.model import BOOL, INT8, MZ_TIMESTAMP, TEXT, Column

from .door import Door, with_door

SECONDS = 60
COLUMNS = (
    Column("mz_timestamp", MZ_TIMESTAMP),
    Column("mz_progressed", BOOL),
    Column("mz_diff", INT8),
    Column("a", TEXT),
)


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Rows of a time; None is progress."""
    arrays = [
        pa.array([time for time, _ in rows], pa.int64()),
        pa.array([text is None for _, text in rows], pa.bool_()),
        pa.array([None if text is None else 1 for _, text in rows], pa.int64()),
        pa.array([text for _, text in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in COLUMNS])


class Listener:
    """A browser's side."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.reader = EventReader()
        self._bytes = answer.aiter_raw()
        self._waiting: list[Event] = []

    async def hear(self) -> tuple[str, Any]:
        """The next event: its kind and data."""
        async with asyncio.timeout(SECONDS):
            while not self._waiting:
                self._waiting += self.reader.feed(await anext(self._bytes))
        event = self._waiting.pop(0)
        return event.kind, json.loads(event.data)

    async def rest(self) -> list[tuple[str, Any]]:
        """All events to the end of the stream."""
        async with asyncio.timeout(SECONDS):
            async for data in self._bytes:
                self._waiting += self.reader.feed(data)
        return [await self.hear() for _ in range(len(self._waiting))]


@contextlib.asynccontextmanager
async def listening(door: Door, query: str, **headers: str) -> AsyncGenerator[Listener]:
    door.engine.live_columns = COLUMNS
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with door.client.stream("GET", f"/api/subscribe?{query}", headers=sent) as answer:
        if answer.status_code != 200:
            await answer.aread()
        yield Listener(answer)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not what():
            await asyncio.sleep(0.005)


def test_what_is_asked_for_is_what_the_engine_is_asked() -> None:
    found = parse_live(
        [
            *(("query", "SELECT 1"), ("key", "a"), ("key", "b,c"), ("envelope", "debezium")),
            *(("as_of", "earliest"), ("up_to", "9"), ("progress", ""), ("database", "d"), ("snapshot", "0")),
        ],
        None,
    )
    assert found.subscribe == SubscribeRequest(
        "SELECT 1",
        ("a", "b,c"),
        "debezium",
        snapshot=False,
        progress=True,
        as_of="earliest",
        up_to="9",
    )
    assert (found.progress, found.database) == (True, "d")
    plain = parse_live([("query", "t")], "")
    assert plain.subscribe == SubscribeRequest("t", progress=True) and not plain.progress
    assert parse_live([("query", "t"), ("key", "a")], None).subscribe == SubscribeRequest(
        "t", ("a",), "upsert", progress=True
    )


def test_a_durable_subscription() -> None:
    asked = [("subscription", "s"), ("position", "5"), ("share", "2")]
    assert parse_live(asked, None).subscribe == ConsumeRequest("s", 5, 2)
    assert parse_live(asked, "43").subscribe == ConsumeRequest("s", 43, 2)
    for wrong in (("query", "t"), ("key", "a"), ("up_to", "5"), ("position", "x")):
        with pytest.raises(BadRequest):
            parse_live([("subscription", "s"), wrong], None)


def test_an_id_asks_for_what_comes_after_it() -> None:
    asked = [("query", "t"), ("as_of", "5"), ("up_to", "100")]
    found = parse_live(asked, "43")
    assert found.subscribe == SubscribeRequest("t", snapshot=False, progress=True, as_of="42", up_to="100")
    assert found.fresh == SubscribeRequest("t", progress=True, up_to="100")
    assert not found.over
    assert parse_live(asked, "100").over
    assert parse_live([*asked, ("snapshot", "false")], "43").fresh is None


@pytest.mark.parametrize(
    ("items", "last"),
    [
        ([], None),
        ([("query", "")], None),
        ([("query", "  ")], None),
        ([("query", "a"), ("query", "b")], None),
        ([("query", "a"), ("qurey", "b")], None),
        ([("query", "a"), ("envelope", "json")], None),
        ([("query", "a"), ("snapshot", "perhaps")], None),
        ([("query", "a\0b")], None),
        ([("query", "\ufffd")], None),
        ([("query", "a")], "x"),
        ([("query", "a")], "-5"),
        ([("query", "a")], "0"),
        ([("query", "a")], "9" * 30),
        ([("query", "a")], "\u0665"),
    ],
)
def test_what_cannot_be_asked_for(items: list[tuple[str, str]], last: str | None) -> None:
    with pytest.raises(BadRequest):
        parse_live(items, last)


def test_a_stream_and_its_end() -> None:
    async def work(door: Door) -> None:
        async with listening(door, "query=live&database=d") as listener:
            headers = listener.answer.headers
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-store, no-transform"
            assert "access-control-allow-origin" not in headers and "content-length" not in headers
            kind, data = await listener.hear()
            assert (kind, [c["name"] for c in data["columns"]]) == ("columns", ["mz_diff", "a"])
            assert listener.reader.retry == live.RETRY_MS
            live_rows = door.engine.live
            await live_rows.put(batch((10, None)))
            await live_rows.put(batch((10, "x"), (10, "y")))
            await live_rows.put(batch((11, None)))
            assert await listener.hear() == ("snapshot", {"time": 10, "rows": [[1, "x"], [1, "y"]]})
            assert listener.reader.last_id == "11"
            await live_rows.put(batch((12, "z"), (13, "w"), (15, None)))
            assert await listener.hear() == ("changes", {"time": 12, "rows": [[1, "z"]]})
            assert await listener.hear() == ("changes", {"time": 13, "rows": [[1, "w"]]})
            assert listener.reader.last_id == "15"
            await live_rows.put(None)
            assert await listener.rest() == [("end", {"time": 15})]
        (session,) = door.engine.sessions
        assert session.calls[-2:] == ["live closed", "close"]
        assert door.engine.options[0].database == "d"
        assert not door.streams

    with_door(work)


def test_what_goes_wrong_later_is_an_event() -> None:
    async def work(door: Door) -> None:
        for error, shown in (
            (
                UndefinedObject("relation 'd.public.t' was dropped"),
                {"message": "relation 'd.public.t' was dropped", "code": "42704"},
            ),
            (
                ZeroDivisionError("inside"),
                {"message": "internal error", "code": "XX000", "hint": "The server's log tells more."},
            ),
        ):
            await door.engine.live.put(batch((10, None)))
            await door.engine.live.put(batch((11, None)))
            await door.engine.live.put(error)
            async with listening(door, "query=live") as listener:
                assert [kind for kind, _ in [await listener.hear(), await listener.hear()]] == [
                    "columns",
                    "snapshot",
                ]
                assert await listener.rest() == [("error", shown)]
                assert listener.reader.last_id == "11"

    with_door(work)


@pytest.mark.parametrize(
    ("query", "refusal", "status"),
    [
        ("", None, 400),
        ("query=bad", None, 400),
        ("query=live&x=1", None, 400),
        ("query=live", UndefinedObject("no such", sqlstate="42P01"), 400),
        ("query=live", Unavailable("not yet"), 503),
        ("query=live", ZeroDivisionError("inside"), 500),
        ("query=live", HistoryGone("u1", 5, 10, 20), 410),
    ],
)
def test_what_is_wrong_before_the_first_row_is_the_status(
    query: str, refusal: Exception | None, status: int
) -> None:
    async def work(door: Door) -> None:
        if refusal is not None:
            door.engine.refuse_live.append(refusal)
        async with listening(door, query) as listener:
            assert listener.answer.status_code == status
            error = listener.answer.json()["error"]
            assert error["code"] and "inside" not in error["message"]
        assert all(session.calls[-1] == "close" for session in door.engine.sessions)
        assert not door.streams

    with_door(work)


def test_a_client_that_comes_back_gets_the_rest_or_begins_anew() -> None:
    async def work(door: Door) -> None:
        engine = door.engine
        await engine.live.put(batch((42, None)))
        await engine.live.put(batch((43, None), (44, "x"), (45, None)))
        async with listening(door, "query=live", last_event_id="43") as listener:
            assert (await listener.hear())[0] == "columns"
            assert await listener.hear() == ("changes", {"time": 44, "rows": [[1, "x"]]})
        assert engine.requests[-1] == SubscribeRequest("live", snapshot=False, progress=True, as_of="42")
        # The next rows are for the next stream.
        await until(lambda: not door.streams)

        engine.refuse_live.append(HistoryGone("u1", 42, 1000, 2000))
        await engine.live.put(batch((2000, None)))
        await engine.live.put(batch((2000, "all"), (2001, None)))
        async with listening(door, "query=live", last_event_id="43") as listener:
            assert (await listener.hear())[0] == "columns"
            assert await listener.hear() == ("snapshot", {"time": 2000, "rows": [[1, "all"]]})
            assert listener.reader.last_id == "2001"
        assert engine.requests[-1] == SubscribeRequest("live", progress=True)

        # Who wanted no snapshot is told that there is a gap.
        engine.refuse_live.append(HistoryGone("u1", 42, 1000, 2000))
        async with listening(door, "query=live&snapshot=false", last_event_id="43") as listener:
            assert listener.answer.status_code == 410
        # Who has it all need not come back.
        async with listening(door, "query=live&up_to=43", last_event_id="43") as listener:
            assert listener.answer.status_code == 204

    with_door(work)


def test_silence_is_filled_with_heartbeats_that_carry_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.02)

    async def work(door: Door) -> None:
        async with listening(door, "query=live") as listener:
            await door.engine.live.put(batch((10, None)))
            await door.engine.live.put(batch((11, None)))
            for kind in ("columns", "snapshot"):
                assert (await listener.hear())[0] == kind
            # Time goes on, nothing is told of it but the id of a heartbeat.
            await door.engine.live.put(batch((500, None)))
            waiting = asyncio.create_task(listener.hear())
            await until(lambda: listener.reader.last_id == "500" and listener.reader.comments > 3)
            assert not waiting.done()
            await door.engine.live.put(batch((600, "x"), (601, None)))
            assert await waiting == ("changes", {"time": 600, "rows": [[1, "x"]]})

    with_door(work)


@pytest.mark.parametrize("began", [True, False])
def test_a_client_that_leaves_takes_its_subscription_with_it(began: bool) -> None:
    async def work(door: Door) -> None:
        _reader, writer = await asyncio.open_connection(*door.server.address)
        query = "live" if began else "hang"
        writer.write(b"GET /api/subscribe?query=%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % query.encode())
        if began:
            await _reader.readuntil(b"columns")
        else:
            async with asyncio.timeout(SECONDS):
                await door.engine.hanging.wait()
        assert len(door.streams) == 1
        writer.close()
        await until(lambda: not door.streams)
        assert door.engine.sessions[0].calls[-1] == "close"
        assert "cancel" in door.engine.sessions[0].calls

    with_door(work)


def test_a_client_that_never_reads_is_cut_off_and_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "STALLED_SECONDS", 0.2)

    async def work(door: Door) -> None:
        door.engine.live_columns = COLUMNS
        _reader, writer = await asyncio.open_connection(*door.server.address, limit=1024)
        writer.write(b"GET /api/subscribe?query=live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(door.streams) == 1)
        big = batch((10, None), *((11, "x" * 1000) for _ in range(1000)))
        for _ in range(60):
            await door.engine.live.put(big)
        await until(lambda: not door.streams)
        assert "live closed" in door.engine.sessions[0].calls
        assert (await door.client.get("/healthz")).status_code == 200
        writer.transport.abort()

    with_door(work)


def test_too_many_are_told_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 0)

    async def work(door: Door) -> None:
        async with listening(door, "query=live") as listener:
            assert listener.answer.status_code == 503

    with_door(work)


def test_parameters_have_a_limit() -> None:
    async def work(door: Door) -> None:
        query = "query=live" + "&key=a" * live_request.MAX_PARAMETERS
        async with listening(door, query) as listener:
            assert listener.answer.status_code == 400

    with_door(work)


def test_a_server_that_stops_says_so() -> None:
    async def work(door: Door) -> None:
        async with listening(door, "query=live") as listener:
            assert (await listener.hear())[0] == "columns"
            closing = asyncio.create_task(door.server.close())
            ((kind, data),) = await listener.rest()
            assert (kind, data["code"]) == ("error", "57P01")
            await closing

    with_door(work)


def test_a_page_of_another_site_cannot_listen() -> None:
    async def work(door: Door) -> None:
        async with listening(door, "query=live", origin="http://evil.example") as listener:
            assert listener.answer.status_code == 403
        assert not door.engine.sessions

    with_door(work)


def test_head_runs_nothing() -> None:
    async def work(door: Door) -> None:
        answer = await door.client.head("/api/subscribe?query=live")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert (await door.client.post("/api/subscribe?query=live")).status_code == 405
        assert not door.engine.sessions

    with_door(work)
