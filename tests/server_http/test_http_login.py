"""Who speaks HTTP: passwords in the header and in a WebSocket's first message, over a fake engine."""

from __future__ import annotations

import base64
import json

import pytest
from websockets.asyncio.client import connect

from tidemill.access.attempts import FREE_FAILURES
from tidemill.access.scram import make_verifier
from tidemill.server.auth import Gate, Method

from .door import Door, with_door

QUERY = {"query": "one"}


class Roles:
    login_key = b"k" * 32

    def __init__(self) -> None:
        self.verifier = make_verifier("s\u00e9same:x").text()
        self.refused: list[tuple[str, str, str]] = []

    def stored_password(self, role: str) -> str | None:
        return self.verifier if role == "app" else None

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self.refused.append((role, address, reason))


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


@pytest.fixture
def roles() -> Roles:
    return Roles()


def test_without_passwords_the_header_names_the_role() -> None:
    async def work(door: Door) -> None:
        await door.client.post("/api/sql", json=QUERY)
        await door.client.post("/api/sql", json=QUERY, headers=basic("ann", ""))
        assert [(o.user, o.client_address) for o in door.engine.options] == [
            ("materialize", "127.0.0.1"),
            ("ann", "127.0.0.1"),
        ]
        assert not door.engine.options[0].lasting

    with_door(work)


def test_the_password_is_asked_for(roles: Roles) -> None:
    async def work(door: Door) -> None:
        for headers in (
            {},
            basic("app", "wrong"),
            basic("nobody", "s\u00e9same:x"),
            {"Authorization": "Basic !!!"},
            {"Authorization": "Basic " + base64.b64encode(b"no colon").decode()},
            {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
            {"Authorization": "Bearer x"},
        ):
            for path in ("/api/subscribe?query=live", "/metrics", "/"):
                assert (await door.client.get(path, headers=headers)).status_code in (401, 429), headers
            if not headers:
                answer = await door.client.post("/api/sql", json=QUERY)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Basic ")
        assert door.engine.sessions == []
        assert (await door.client.get("/healthz")).status_code == 200

    with_door(work, gate=Gate(Method.PASSWORD, roles))


def test_the_right_password_opens(roles: Roles) -> None:
    async def work(door: Door) -> None:
        answer = await door.client.post("/api/sql", json=QUERY, headers=basic("app", "s\u00e9same:x"))
        assert answer.status_code == 200
        assert door.engine.options[0].user == "app"

    with_door(work, gate=Gate(Method.PASSWORD, roles))


def test_guessing_is_slowed_down(roles: Roles) -> None:
    async def work(door: Door) -> None:
        for _ in range(FREE_FAILURES):
            assert (await door.client.get("/", headers=basic("app", "x"))).status_code == 401
        answer = await door.client.get("/", headers=basic("app", "s\u00e9same:x"))
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "28000"

    with_door(work, gate=Gate(Method.PASSWORD, roles))
    assert roles.refused[-1] == ("app", "127.0.0.1", "too many failures")


def test_a_long_password_is_refused_unhashed(roles: Roles) -> None:
    async def work(door: Door) -> None:
        assert (await door.client.get("/", headers=basic("app", "x" * 20_000))).status_code == 401

    with_door(work, gate=Gate(Method.PASSWORD, roles))


def test_a_page_of_another_origin_is_refused_before_its_password_is_seen(roles: Roles) -> None:
    async def work(door: Door) -> None:
        headers = {**basic("app", "s\u00e9same:x"), "Origin": "http://elsewhere.example"}
        assert (await door.client.post("/api/sql", json=QUERY, headers=headers)).status_code == 403

    with_door(work, gate=Gate(Method.PASSWORD, roles))
    assert roles.refused == []


@pytest.mark.parametrize(
    ("first", "opened"),
    [
        ({"user": "app", "password": "s\u00e9same:x"}, True),
        ({"user": "app", "password": "wrong"}, False),
        ({"user": "app"}, False),
        ({}, False),
    ],
)
def test_a_websocket_says_it_first(roles: Roles, first: dict[str, str], opened: bool) -> None:
    async def work(door: Door) -> None:
        host, port = door.server.address
        async with connect(f"ws://{host}:{port}/api/experimental/sql") as socket:
            await socket.send(json.dumps(first))
            said = json.loads(await socket.recv())
            assert (said["type"] != "Error") is opened
            if not opened:
                assert said["payload"]["code"] == "28P01"
        assert len(door.engine.sessions) == int(opened)

    with_door(work, gate=Gate(Method.PASSWORD, roles))
