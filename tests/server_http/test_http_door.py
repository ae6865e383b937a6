"""The HTTP door over a real socket, with an engine that does as it is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from tidemill.config import Address
from tidemill.errors import Unavailable
from tidemill.server.http import app as app_module
from tidemill.server.http import limits, run, serve_http
from tidemill.server.http import protocols as protocols_module

from .door import Door, with_door

JSON = {"content-type": "application/json"}


def test_a_script_is_one_session_and_one_transaction() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": "ok; rows 3; ok"})
        assert [r["tag"] for r in found["results"]] == ["INSERT 0 1", "SELECT 3", "INSERT 0 1"]
        assert found["results"][1]["rows"] == [[0], [1], [2]]
        columns = found["results"][1]["desc"]["columns"]
        assert columns == [{"name": "n", "type": "bigint", "type_oid": 20, "type_len": 8, "type_mod": -1}]
        assert door.engine.sessions[0].calls == [
            "execute ok",
            "execute rows 3",
            "batches closed",
            "execute ok",
            "sync",
            "close",
        ]
        assert door.engine.process_ids == [app_module.FIRST_PROCESS_ID]

    with_door(work)


def test_what_never_ends_is_refused_with_where_to_go() -> None:
    async def work(door: Door) -> None:
        (result,) = (await door.sql({"query": "live"}))["results"]
        assert result["error"]["code"] == "0A000" and "/api/subscribe" in result["error"]["hint"]
        assert door.engine.sessions[0].calls[-2:] == ["fail", "close"]

    with_door(work)


def test_parameters_come_as_text_with_every_digit() -> None:
    async def work(door: Door) -> None:
        params = '["a", null, 12345678901234567890.10, true, {"a": [1.50, "x"]}]'
        answer = await door.client.post(
            "/api/sql",
            content=f'{{"queries": [{{"query": "echo", "params": {params}}}]}}',
            headers={"content-type": "application/json; charset=utf-8"},
        )
        row = answer.json()["results"][0]["rows"][0]
        assert row == ["a", None, "12345678901234567890.10", "true", '{"a":[1.50,"x"]}']

    with_door(work)


def test_the_first_failure_is_the_last_result() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"queries": [{"query": "ok"}, {"query": "error"}, {"query": "ok"}]})
        assert found["results"][0]["tag"] == "INSERT 0 1"
        assert found["results"][1]["error"] == {"message": "no", "code": "25000", "detail": "d", "hint": "h"}
        assert len(found["results"]) == 2
        assert door.engine.sessions[0].calls[-2:] == ["fail", "close"]

    with_door(work)


def test_a_commit_that_fails_takes_the_place_of_its_statement() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": "ok; failcommit"})
        assert [next(iter(r)) for r in found["results"]] == ["tag", "error"]
        assert found["results"][1]["error"]["message"] == "commit failed"

    with_door(work)


def test_a_syntax_error_has_its_position_and_nothing_runs() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": "bad"})
        error = found["results"][0]["error"]
        assert (error["code"], error["position"], error["hint"]) == ("42601", 1, "a hint")
        assert door.engine.sessions[0].calls == ["fail", "close"]

    with_door(work)


def test_a_bug_does_not_show_its_inside() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": "bug"})
        assert found["results"][0]["error"]["code"] == "XX000"
        assert "secret" not in json.dumps(found)

    with_door(work)


def test_notices_belong_to_their_statement() -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": "notice; ok"})
        notice = {"message": "look", "severity": "notice", "code": "00000", "hint": "there"}
        assert [r["notices"] for r in found["results"]] == [[notice], []]

    with_door(work)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_copy_is_refused_and_released(direction: str) -> None:
    async def work(door: Door) -> None:
        found = await door.sql({"query": f"copy {direction}"})
        assert found["results"][0]["error"]["code"] == "0A000"
        if direction == "in":
            assert door.engine.sessions[0].sink.failed is not None

    with_door(work)


NOT_OURS = [
    b"",
    b"{",
    b"[]",
    b"1",
    b'{"query": 1}',
    b'{"query": "ok", "x": 1}',
    b'{"queries": {}}',
    b"\xff\xfe",
    b'{"queries": [{"params": []}]}',
    b'{"queries": [{"query": "ok", "params": 1}]}',
    b'{"query": NaN}',
    b'{"query": "a\\u0000b"}',
    b'{"query": "\\ud800"}',
    b"[" * 100_000,
]


def test_a_body_that_is_not_the_apis_is_400() -> None:
    async def work(door: Door) -> None:
        for body in NOT_OURS:
            answer = await door.client.post("/api/sql", content=body, headers=JSON)
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["error"]["message"]
        assert door.engine.sessions == []

    with_door(work)


def test_a_body_of_another_kind_is_415_and_one_too_long_413() -> None:
    async def work(door: Door) -> None:
        text = {"content-type": "text/plain"}
        answer = await door.client.post("/api/sql", content=b'{"query": "ok"}', headers=text)
        assert answer.status_code == 415
        await door.sql({"query": "x" * (limits.MAX_QUERY_BYTES + 1)}, status=413)
        await door.sql({"query": "x" * (limits.MAX_BODY_BYTES + 1)}, status=413)
        await door.sql({"queries": [{"query": "ok"}] * (limits.MAX_QUERIES + 1)}, status=413)
        assert door.engine.sessions == []

    with_door(work)


def test_an_answer_too_large_is_an_error_and_nothing_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_RESULT_BYTES", 3 << 20)

    async def work(door: Door) -> None:
        found = await door.sql({"query": "big 5"})
        assert found["results"][0]["error"]["code"] == "54000"
        assert "batches closed" in door.engine.sessions[0].calls
        assert run.HELD_BYTES._value.get() == 0  # pyright: ignore[reportPrivateUsage]
        found = await door.sql({"query": "big 2"})
        assert len(found["results"][0]["rows"]) == 2048

    with_door(work)


def test_all_answers_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_HELD_BYTES", 3 << 20)

    async def work(door: Door) -> None:
        found = await door.sql({"query": "big 5"})
        assert found["results"][0]["error"]["code"] == "53200"

    with_door(work)


def test_a_client_that_goes_away_takes_its_statement_with_it() -> None:
    async def work(door: Door) -> None:
        body = b'{"query": "hang; ok"}'
        _reader, writer = await asyncio.open_connection(*door.server.address)
        head = "POST /api/sql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await asyncio.wait_for(door.engine.hanging.wait(), 60)
        writer.transport.abort()
        session = door.engine.sessions[0]
        for _ in range(6000):
            if "close" in session.calls:
                break
            await asyncio.sleep(0.01)
        assert session.calls == ["execute hang", "cancel", "fail", "close"]

    with_door(work)


def test_closing_the_door_cancels_what_runs() -> None:
    async def work(door: Door) -> None:
        asking = asyncio.create_task(door.sql({"query": "hang; ok"}))
        await asyncio.wait_for(door.engine.hanging.wait(), 60)
        await door.server.close()
        found = await asking
        assert found["results"][0]["error"]["code"] == "57014"
        assert door.engine.sessions[0].calls == ["execute hang", "cancel", "fail", "close"]
        await door.server.close()

    with_door(work)


def test_health_readiness_metrics_and_the_page() -> None:
    async def work(door: Door) -> None:
        assert (await door.client.get("/healthz")).json() == {"status": "ok"}
        assert (await door.client.get("/readyz")).status_code == 503
        door.engine.ready = True
        assert (await door.client.get("/readyz")).status_code == 200
        page = await door.client.get("/")
        assert "Tidemill" in page.text
        assert "psql -h localhost -p 7001 -U materialize materialize" in page.text
        assert page.headers["x-content-type-options"] == "nosniff"
        metrics = (await door.client.get("/metrics")).text
        assert 'tidemill_http_requests_total{path="/readyz",status="503"}' in metrics
        assert "python_info" in metrics

    with_door(work, sql=Address("0.0.0.0", 7001))


def test_unknown_paths_and_methods_are_errors_in_json() -> None:
    async def work(door: Door) -> None:
        missing = await door.client.get("/x/y?z")
        assert (missing.status_code, missing.json()["error"]["message"]) == (404, "Not Found")
        assert (await door.client.get("/api/sql")).status_code == 405

    with_door(work)


HOSTS = [
    ("localhost", None, 200),
    ("localhost:6876", None, 200),
    ("127.0.0.1:6876", None, 200),
    ("[::1]:6876", None, 200),
    ("192.0.2.7", None, 200),
    ("mill.example:80", None, 200),
    ("LOCALHOST", "http://localhost", 200),
    ("localhost:6876", "http://localhost:6876", 200),
    ("evil.example", None, 403),
    ("evil.example:6876", "http://evil.example:6876", 403),
    ("localhost.evil.example", None, 403),
    ("127.0.0.1.evil.example", None, 403),
    ("localhost@evil.example", None, 403),
    ("", None, 403),
    ("localhost:6876", "http://localhost:9999", 403),
    ("localhost:6876", "https://evil.example", 403),
    ("localhost:6876", "null", 403),
]


def test_host_and_origin_are_checked_before_all_else() -> None:
    async def work(door: Door) -> None:
        for host, origin, status in HOSTS:
            headers = {"host": host} | ({"origin": origin} if origin else {})
            before = len(door.engine.sessions)
            answer = await door.client.get("/healthz", headers=headers)
            assert answer.status_code == status, (host, origin)
            answer = await door.client.post("/api/sql", json={"query": "ok"}, headers=headers)
            assert answer.status_code == status, (host, origin)
            assert len(door.engine.sessions) - before == (1 if status == 200 else 0)
            if status == 403:
                hint = answer.json()["error"]["hint"]
                assert ("--http-hosts" in hint) == (host != "localhost:6876"), (host, origin, hint)

    with_door(work, hosts=["mill.example"])


GARBAGE = [
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    b"Q\x00\x00\x00\x0dSELECT 1\x00",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"hello\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000,
    b"\xff" * 70_000,
]


def test_garbage_is_answered_400_and_the_door_stays_open() -> None:
    async def work(door: Door) -> None:
        for garbage in GARBAGE:
            answer = await door.raw(garbage + b"\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), (garbage[:20], answer[:100])
            assert (await door.client.get("/healthz")).status_code == 200

    with_door(work)


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols_module, "HEAD_SECONDS", 0.2)

    async def work(door: Door) -> None:
        assert await door.raw(b"") == b""
        assert await door.raw(b"GET / HTTP/1.1\r\nhost: local") == b""

    with_door(work)


def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.2)

    async def work(door: Door) -> None:
        head = b"POST /api/sql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        answer = await door.raw(head + b"connection: close\r\ncontent-length: 100\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408"), answer[:100]

    with_door(work)


def test_an_address_in_use_is_told() -> None:
    async def work(door: Door) -> None:
        with pytest.raises(Unavailable, match="cannot listen for HTTP") as caught:
            await serve_http(door.engine, door.server.address)
        assert "--http-addr" in (caught.value.hint or "")

    with_door(work)
