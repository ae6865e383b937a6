"""Authentication of HTTP requests, by the rules of `server.auth`.

`LoginMiddleware` runs before the routes and reads `Authorization: Basic`. A WebSocket client authenticates
in its first message, because a web page cannot set the header (`conversation`). If the server requires no
password, the header only names the role. Health and readiness need no login: they reveal nothing about the
data.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.engine.api import Encryption, StartupOptions
from tidemill.errors import TidemillError
from tidemill.server.auth import Gate, LoginRefused, Method, Peer
from tidemill.server.http.forms import error_json

# What needs no password.
OPEN = ("/healthz", "/readyz")
# Longer headers are refused by the parser already; this is for what they decode to.
_MAX_USER_BYTES = 255
_KEY = "tidemill.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `user` is None if the request names no role."""

    user: str | None = None
    address: str = ""
    tls: bool = False

    @property
    def encryption(self) -> Encryption | None:
        return Encryption() if self.tls else None

    def options(
        self, application_name: str, database: str | None = None, *, lasting: bool = True
    ) -> StartupOptions:
        defaults = StartupOptions()
        return StartupOptions(
            user=self.user or defaults.user,
            database=database or defaults.database,
            application_name=application_name,
            client_address=self.address,
            encryption=self.encryption,
            lasting=lasting,
        )


def caller(connection: HTTPConnection) -> Caller:
    """The caller that `LoginMiddleware` stored."""
    return connection.scope.get(_KEY, Caller())


def peer(scope: Scope) -> Peer:
    client = scope.get("client")
    return Peer(client[0] if client else "", tls=scope.get("scheme") in ("https", "wss"))


class LoginMiddleware:
    """ASGI middleware. Answers 401 if the password is missing or wrong, 429 after too many wrong ones."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[_KEY] = await self._caller(scope)
            except TidemillError as e:
                wrong = isinstance(e, LoginRefused)
                headers = {"WWW-Authenticate": 'Basic realm="tidemill", charset="UTF-8"'} if wrong else None
                answer = JSONResponse({"error": error_json(e)}, 401 if wrong else 429, headers)
                await answer(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            who = peer(scope)
            scope[_KEY] = Caller(None, who.address, who.tls)
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller:
        who = peer(scope)
        said = _basic(Headers(scope=scope))
        if self._gate.method is Method.TRUST or scope["path"] in OPEN:
            return Caller(said[0] if said else None, who.address, who.tls)
        if said is None:
            raise LoginRefused(
                "this server asks for a role and its password", hint="Send Authorization: Basic."
            )
        user, password = said
        await self._gate.check_password(user, password, who)
        return Caller(user, who.address, who.tls)


def _basic(headers: Headers) -> tuple[str, str] | None:
    """The user and password of the header; None if there is no valid header, or more than one."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(token.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    if not colon or not user or len(user.encode()) > _MAX_USER_BYTES:
        return None
    return user, password
