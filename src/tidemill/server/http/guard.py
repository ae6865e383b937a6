"""Who may speak to the HTTP port from inside a browser: nobody but pages of this very server.

A page of another site can make a browser send requests to 127.0.0.1. It can do so directly (then the
browser tells the page's Origin), or under a name of its own that it re-binds to 127.0.0.1 (then the Host is
that name, and Origin agrees with it). So both are checked, before anything else looks at the request:
- Host must be an IP address, localhost or a name from `--http-hosts`: an address cannot be re-bound.
- Origin, where there is one, must be http(s)://<Host>.
Programs send no Origin and a plain Host, and notice nothing.
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
        """Why the request is refused, and what to do; None if it is not."""
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
