"""The WebSocket over a real socket, with an engine that does as it is told: the conversation, and what a bad
client can do to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tidemill.errors import LimitExceeded, Notice
from tidemill.server.http import conversation, inbox, limits, protocols, streams
from tidemill.types.model import INT8, TEXT, Column

from .door import Door, with_door
from .fake import FakeSession

# Whatever must come comes long before.
SECONDS = 60


class Talk:
    """A client's side of a conversation."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, message: Any) -> None:
        await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def hear(self) -> tuple[str, Any]:
        async with asyncio.timeout(SECONDS):
            message = json.loads(await self.socket.recv())
        assert set(message) == {"type", "payload"}
        return message["type"], message["payload"]

    async def until(self, kind: str) -> list[tuple[str, Any]]:
        """All messages up to one of this kind, itself included."""
        heard = [await self.hear()]
        while heard[-1][0] != kind:
            heard.append(await self.hear())
        return heard

    async def ask(self, message: Any) -> list[tuple[str, Any]]:
        """All that is answered before ReadyForQuery."""
        await self.say(message)
        return (await self.until("ReadyForQuery"))[:-1]

    async def closed(self) -> int:
        """The close code, after whatever else comes."""
        async with asyncio.timeout(SECONDS):
            try:
                while True:
                    await self.socket.recv()
            except ConnectionClosed:
                pass
        assert self.socket.close_code is not None
        return self.socket.close_code


def opened(door: Door, **options: Any) -> connect:
    return connect(f"ws://{door.server.address}/api/experimental/sql", max_size=None, **options)


def talking(work: Callable[[Door, Talk], Awaitable[None]], first: Any = None) -> None:
    """A conversation after its login."""

    async def with_talk(door: Door) -> None:
        async with opened(door) as socket:
            talk = Talk(socket)
            await talk.say({} if first is None else first)
            await talk.until("ReadyForQuery")
            await work(door, talk)

    with_door(with_talk)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not what():
            await asyncio.sleep(0.005)


def closed(door: Door, session: int = 0) -> Callable[[], bool]:
    return lambda: door.engine.sessions[session].calls[-1:] == ["close"]


def test_a_login_tells_who_we_are() -> None:
    async def work(door: Door) -> None:
        async with opened(door) as socket:
            talk = Talk(socket)
            options = {"database": "d", "application_name": "page", "timezone": "UTC", "n": 5, "b": True}
            await talk.say({"user": "me", "password": "secret", "options": options})
            heard = await talk.until("ReadyForQuery")
        assert heard[-1] == ("ReadyForQuery", "I")
        assert heard[-2][0] == "BackendKeyData"
        assert heard[-2][1]["conn_id"] == door.engine.process_ids[0]
        (got,) = door.engine.options
        assert (got.user, got.database, got.application_name) == ("me", "d", "page")
        assert got.settings == {"timezone": "UTC", "n": "5", "b": "on"}

    with_door(work)


def test_statements_and_what_they_answer() -> None:
    async def work(door: Door, talk: Talk) -> None:
        assert await talk.ask({"query": "ok; rows 3; "}) == [
            ("CommandStarting", {"has_rows": False, "is_streaming": False}),
            ("CommandComplete", "INSERT 0 1"),
            ("CommandStarting", {"has_rows": True, "is_streaming": False}),
            (
                "Rows",
                {"columns": [{"name": "n", "type": "bigint", "type_oid": 20, "type_len": 8, "type_mod": -1}]},
            ),
            ("Row", [0]),
            ("Row", [1]),
            ("Row", [2]),
            ("CommandComplete", "SELECT 3"),
            ("CommandStarting", {"has_rows": False, "is_streaming": False}),
            ("CommandComplete", ""),
        ]
        heard = await talk.ask({"queries": [{"query": "echo", "params": ["a", None, 1.25]}, {"query": "ok"}]})
        assert ("Row", ["a", None, "1.25"]) in heard
        # One session for all, one transaction for each message.
        (session,) = door.engine.sessions
        assert session.calls.count("sync") == 2
        await talk.socket.close()
        await until(closed(door))

    talking(work)


def test_notices_and_parameters_are_told() -> None:
    async def work(door: Door, talk: Talk) -> None:
        heard = await talk.ask({"query": "notice"})
        assert heard[1:3] == [
            ("Notice", {"message": "look", "severity": "notice", "code": "00000", "hint": "there"}),
            ("ParameterStatus", {"name": "TimeZone", "value": "UTC"}),
        ]

    talking(work)


def test_a_notice_comes_while_the_statement_runs() -> None:
    async def work(door: Door, talk: Talk) -> None:
        await talk.say({"query": "hang"})
        async with asyncio.timeout(SECONDS):
            await door.engine.hanging.wait()
        door.engine.sessions[0].notify(Notice("still waiting"))
        assert (await talk.hear())[1]["message"] == "still waiting"

    talking(work)


def test_errors_end_their_message_and_nothing_else() -> None:
    async def work(door: Door, talk: Talk) -> None:
        heard = await talk.ask({"query": "ok; error; ok"})
        assert [kind for kind, _ in heard] == ["CommandStarting", "CommandComplete", "Error"]
        assert heard[-1][1] == {"message": "no", "code": "25000", "detail": "d", "hint": "h"}
        assert (await talk.ask({"query": "bad"}))[0][1]["position"] == 1
        bug = (await talk.ask({"query": "bug"}))[-1]
        assert bug == (
            "Error",
            {"message": "internal error", "code": "XX000", "hint": "The server's log tells more."},
        )
        assert (await talk.ask({"query": "failcommit"}))[-1] == (
            "Error",
            {"message": "commit failed", "code": "25000"},
        )
        for copy in ("copy in", "copy out"):
            assert (await talk.ask({"query": copy}))[-1][1]["code"] == "0A000"
        assert door.engine.sessions[0].sink.failed is not None
        assert (await talk.ask({"query": "ok"}))[-1] == ("CommandComplete", "INSERT 0 1")

    talking(work)


GARBAGE: list[str | bytes] = [
    "",
    "x",
    "[]",
    "{}",
    "null",
    '"query"',
    '{"query": 5}',
    '{"query": "ok", "more": 1}',
    '{"queries": "ok"}',
    '{"cancel": false}',
    '{"user": "again"}',
    "[" * 50_000,
    '{"query": "\\u0000"}',
    b"",
    b'{"query": "ok"}',
    b"\xff\xfe",
]


def test_what_makes_no_sense_is_an_error_and_the_conversation_goes_on() -> None:
    async def work(door: Door, talk: Talk) -> None:
        for garbage in GARBAGE:
            ((kind, payload),) = await talk.ask(garbage)
            assert (kind, payload["code"]) == ("Error", "08P01"), garbage
        assert (await talk.ask({"query": "ok"}))[-1] == ("CommandComplete", "INSERT 0 1")

    talking(work)


@pytest.mark.parametrize(
    "first",
    ["x", '{"query": "ok"}', '{"cancel": true}', '{"user": 5}', '{"options": {"a": null}}', b"{}", "[]"],
)
def test_a_first_message_that_is_no_login_ends_it(first: str | bytes) -> None:
    async def work(door: Door) -> None:
        async with opened(door) as socket:
            talk = Talk(socket)
            await talk.say(first)
            kind, payload = await talk.hear()
            assert (kind, payload["code"]) == ("Error", "08P01")
            assert await talk.closed() == inbox.POLICY
        assert not door.engine.sessions

    with_door(work)


def test_whoever_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LOGIN_SECONDS", 0.1)

    async def work(door: Door) -> None:
        async with opened(door) as socket:
            talk = Talk(socket)
            assert (await talk.hear())[0] == "Error"
            assert await talk.closed() == inbox.POLICY

    with_door(work)


@pytest.mark.parametrize(
    ("status", "setting", "sqlstate"),
    [("I", "idle_session_timeout", "57P05"), ("T", "idle_in_transaction_session_timeout", "25P03")],
)
def test_one_that_rests_for_longer_than_its_settings_allow(
    status: str, setting: str, sqlstate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "transaction_status", status)

    async def work(door: Door) -> None:
        async with opened(door) as patient, opened(door) as socket:
            other, talk = Talk(patient), Talk(socket)
            for one in (other, talk):
                await one.say({})
                await one.until("ReadyForQuery")
            await talk.say({"query": "hang"})
            await door.engine.hanging.wait()
            door.engine.settings[setting] = "20ms"
            # A statement takes as long as it takes.
            await asyncio.sleep(0.05)
            door.engine.sessions[1].cancel()
            assert (await talk.until("Error"))[-1][1]["code"] == "57014"
            assert (await talk.until("Error"))[-1][1]["code"] == sqlstate
            assert await talk.closed() == 1008
            await until(closed(door, 1))
            # Whoever was there before had no limit.
            del door.engine.settings[setting]
            assert (await other.ask({"query": "ok"}))[-1] == ("CommandComplete", "INSERT 0 1")

    with_door(work)


def test_a_message_that_is_too_large_closes_its_own_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(door: Door) -> None:
        async with opened(door) as socket, opened(door) as other:
            talk, second = Talk(socket), Talk(other)
            for t in (talk, second):
                await t.say({})
                await t.until("ReadyForQuery")
            try:
                await talk.say("x" * (limits.MAX_MESSAGE_BYTES + 1))
            except ConnectionClosed:
                pass
            assert await talk.closed() == 1009
            await until(closed(door))
            assert (await second.ask({"query": "ok"}))[-1] == ("CommandComplete", "INSERT 0 1")
            # The largest that is allowed is understood (as no query, here).
            await second.say("x" * limits.MAX_MESSAGE_BYTES)
            assert (await second.until("ReadyForQuery"))[0][1]["code"] == "08P01"

    with_door(work)


def test_fragments_without_end_are_too_many() -> None:
    async def work(door: Door) -> None:
        async with opened(door) as socket:
            talk = Talk(socket)
            await talk.say({})
            await talk.until("ReadyForQuery")
            try:
                await socket.send([""] * (2 * limits.MAX_FRAGMENTS))
            except ConnectionClosed:
                pass
            assert await talk.closed() == 1009
            await until(closed(door))

    with_door(work)


FRAMES = [
    b"\x00" * 20,
    b"\xff" * 100,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    # A text that is not UTF-8, masked with zeros.
    b"\x81\x82\x00\x00\x00\x00\xff\xfe",
    # One that is not masked; a length beyond all limits; a close without a reason's code; a reserved opcode.
    b"\x81\x02ab",
    b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
    b"\x88\x81\x00\x00\x00\x00x",
    b"\x83\x80\x00\x00\x00\x00",
]


@pytest.mark.parametrize("frames", FRAMES)
def test_bytes_that_are_no_frames_close_their_own_connection_alone(frames: bytes) -> None:
    async def work(door: Door) -> None:
        async with opened(door) as other:
            second = Talk(other)
            await second.say({})
            await second.until("ReadyForQuery")
            socket = await opened(door)
            talk = Talk(socket)
            await talk.say({})
            await talk.until("ReadyForQuery")
            socket.transport.write(frames)
            await talk.closed()
            await until(closed(door, 1))
            assert (await second.ask({"query": "ok"}))[-1] == ("CommandComplete", "INSERT 0 1")

    with_door(work)


def test_a_stream_is_sent_as_it_comes_and_ends_by_cancel() -> None:
    async def work(door: Door, talk: Talk) -> None:
        door.engine.live_columns = (Column("n", INT8), Column("t", TEXT))
        await talk.say({"query": "live"})
        await talk.until("Rows")
        for n in range(3):
            await door.engine.live.put(pa.record_batch([[n], [f"t{n}"]], names=["n", "t"]))
            assert await talk.hear() == ("Row", [n, f"t{n}"])
        await talk.say({"cancel": True})
        kind, payload = await talk.hear()
        assert (kind, payload["code"]) == ("Error", "57014")
        assert await talk.hear() == ("ReadyForQuery", "I")
        # A cancel when nothing runs does nothing.
        await talk.say({"cancel": True})
        assert (await talk.ask({"query": "rows 1"}))[-1] == ("CommandComplete", "SELECT 1")

    talking(work)


def test_a_stream_that_ends_or_fails_is_told_so() -> None:
    async def work(door: Door, talk: Talk) -> None:
        for item, last in (
            (None, ("CommandComplete", "SUBSCRIBE 1")),
            (
                LimitExceeded("SUBSCRIBE fell behind: much", sqlstate="53000"),
                ("Error", {"message": "SUBSCRIBE fell behind: much", "code": "53000"}),
            ),
        ):
            await door.engine.live.put(pa.record_batch([[1]], names=["n"]))
            await door.engine.live.put(item)
            assert (await talk.ask({"query": "live"}))[-1] == last

    talking(work)


@pytest.mark.parametrize("way", ["close", "abort"])
def test_a_client_that_leaves_takes_its_statement_with_it(way: str) -> None:
    async def work(door: Door, talk: Talk) -> None:
        await talk.say({"query": "live"})
        await talk.until("Rows")
        if way == "close":
            await talk.socket.close()
        else:
            talk.socket.transport.abort()
        await until(closed(door))
        calls = door.engine.sessions[0].calls
        assert calls[-4:] == ["cancel", "live closed", "fail", "close"]

    talking(work)


def test_another_connection_can_cancel_with_the_key_alone() -> None:
    async def work(door: Door, talk: Talk) -> None:
        calls = door.engine.sessions[0].calls
        await talk.say({"query": "hang"})
        async with asyncio.timeout(SECONDS):
            await door.engine.hanging.wait()
        (stream,) = door.streams
        assert stream.key is not None
        conn_id, secret = stream.key
        for wrong in ({"conn_id": conn_id, "secret_key": secret ^ 1}, {"conn_id": 5, "secret_key": secret}):
            async with opened(door) as other:
                await Talk(other).say({"cancel": wrong})
                assert await Talk(other).closed() == 1000
        assert "cancel" not in calls
        async with opened(door) as other:
            await Talk(other).say({"cancel": {"conn_id": conn_id, "secret_key": secret}})
            assert await Talk(other).closed() == 1000
        assert (await talk.until("ReadyForQuery"))[-2][1]["code"] == "57014"

    talking(work)


def test_messages_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_WAITING_MESSAGES", 3)

    async def work(door: Door, talk: Talk) -> None:
        await talk.say({"query": "hang"})
        async with asyncio.timeout(SECONDS):
            await door.engine.hanging.wait()
        for _ in range(4):
            await talk.say({"query": "ok"})
        kind, payload = await talk.hear()
        assert (kind, payload["code"]) == ("Error", "54000")
        assert await talk.closed() == inbox.POLICY
        await until(closed(door))
        assert "execute ok" not in door.engine.sessions[0].calls

    talking(work)


def test_queries_sent_together_are_answered_in_order() -> None:
    async def work(door: Door, talk: Talk) -> None:
        for n in range(100):
            await talk.say({"queries": [{"query": "echo", "params": [n]}]})
        for n in range(100):
            heard = await talk.until("ReadyForQuery")
            assert [payload for kind, payload in heard if kind == "Row"] == [[str(n)]]

    talking(work)


def test_a_client_that_never_reads_is_cut_off_and_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "STALLED_SECONDS", 0.2)

    async def work(door: Door, talk: Talk) -> None:
        reader, writer = await asyncio.open_connection(*door.server.address, limit=1024)
        writer.write(
            b"GET /api/experimental/sql HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        for message in (b"{}", b'{"query":"big 100"}'):
            writer.write(bytes([0x81, 0x80 | len(message), 0, 0, 0, 0]) + message)
        # It reads nothing of a hundred megabytes.
        await until(lambda: len(door.engine.sessions) == 2 and closed(door, 1)())
        assert "batches closed" in door.engine.sessions[1].calls
        assert (await talk.ask({"query": "rows 2"}))[-1] == ("CommandComplete", "SELECT 2")
        writer.transport.abort()

    talking(work)


def test_pings_without_reading_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MAX_PONG_BYTES", -1)

    async def work(door: Door, talk: Talk) -> None:
        await talk.socket.ping()
        assert await talk.closed() == 1006
        await until(closed(door))

    talking(work)


def test_a_page_of_another_site_cannot_open_one() -> None:
    async def work(door: Door) -> None:
        for origin, allowed in (
            ("http://evil.example", False),
            (f"http://{door.server.address}", True),
        ):
            try:
                async with opened(door, origin=origin):
                    assert allowed
            except InvalidStatus as e:
                assert not allowed and e.response.status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            await opened(door, additional_headers={"Host": "rebound.example"})
        assert refused.value.response.status_code in (400, 403)

    with_door(work)


def test_too_many_are_refused_and_a_place_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)

    async def work(door: Door, talk: Talk) -> None:
        async with opened(door) as socket:
            kind, payload = await Talk(socket).hear()
            assert (kind, payload["code"]) == ("Error", "53300")
            assert await Talk(socket).closed() == 1013
        await talk.socket.close()
        await until(lambda: not door.streams)
        async with opened(door) as socket:
            await Talk(socket).say({})
            await Talk(socket).until("ReadyForQuery")

    talking(work)


def test_a_server_that_stops_says_so() -> None:
    async def work(door: Door, talk: Talk) -> None:
        await talk.say({"query": "live"})
        await talk.until("Rows")
        closing = asyncio.create_task(door.server.close())
        assert (await talk.until("Error"))[-1][1]["code"] == "57P01"
        assert await talk.closed() == 1012
        await closing
        assert door.engine.sessions[0].calls[-1] == "close"

    talking(work)


def test_other_paths_have_no_websocket() -> None:
    async def work(door: Door) -> None:
        with pytest.raises(InvalidStatus):
            await connect(f"ws://{door.server.address}/api/sql")

    with_door(work)
