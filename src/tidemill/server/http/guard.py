"""Protection of the HTTP port against web pages of other sites: only pages of this server may use it.

A page of another site can make a browser send requests to 127.0.0.1. It can do so directly; the browser
then sends the page's Origin. Or it uses its own hostname and re-binds it to 127.0.0.1 (DNS rebinding);
then Host is that name, and Origin matches it. So both are checked before the request is processed:

- Host must be an IP address, localhost or a name from `--http-hosts`: an address cannot be re-bound.
- Origin, if present, must be http(s)://<Host>.

Programs send no Origin and a plain Host, so the check does not affect them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::[0-9]{1,5})?", re.ASCII)


class Guard:
    """ASGI middleware that refuses with 403."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = frozenset({"localhost", *(name.lower() for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refusal = self.refusal(Headers(scope=scope))
            if refusal is not None:
                reason, hint = refusal
                error = {"error": {"message": reason, "code": "28000", "hint": hint}}
                await JSONResponse(error, status_code=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def refusal(self, headers: Headers) -> tuple[str, str] | None:
        """The reason for a refusal and a hint; None if the request is allowed."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return "the request must name one Host", _HOST_HINT
        host = hosts[0].strip().lower()
        match = _HOST.fullmatch(host)
        if match is None or not self._known(match["name"]):
            return "the request's Host is not a name of this server", _HOST_HINT
        for origin in headers.getlist("origin"):
            if origin.lower() not in (f"http://{host}", f"https://{host}"):
                return "the request comes from a page of another origin", _ORIGIN_HINT
        return None

    def _known(self, name: str) -> bool:
        if name.removesuffix(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


_HOST_HINT = "Use localhost or an IP address, or name the host with --http-hosts."
_ORIGIN_HINT = "Let the page's own server ask, or send the page from this one's address, behind a proxy."
