"""The console's files as HTTP responses.

All are read once, when the server starts: some 200 kB. A browser keeps them, and asks with the ETag whether
they are still the same. The policy lets the pages load scripts and styles from this server alone, so that
nothing that a relation holds can run as a script.
"""

from __future__ import annotations

import hashlib
import html
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidemill.config import Address

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    etag: str


# Addresses to listen on that are none to connect to.
_EVERYWHERE = ("0.0.0.0", "::")
# Stands in index.html for the command that connects to the SQL port.
_CONNECT = b"@CONNECT@"


class ConsoleFiles:
    """Serves `/` and `/console/...`. The page shows how to connect to the SQL port at `sql`."""

    def __init__(self, sql: Address | None) -> None:
        static = files("tidemill.server.http.console") / "static"
        connect = html.escape(_connect(sql)).encode()
        self._files = dict(_found(static, connect))

    async def page(self, request: Request) -> Response:
        return self._answer(request, "index.html")

    async def file(self, request: Request) -> Response:
        return self._answer(request, request.path_params["path"])

    def _answer(self, request: Request, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            raise HTTPException(404, "the console has no such file")
        headers = {
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-cache",
            "ETag": found.etag,
            "Referrer-Policy": "no-referrer",
        }
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)


def _connect(sql: Address | None) -> str:
    where = ""
    if sql is not None:
        host = "localhost" if sql.host in _EVERYWHERE else sql.host
        where = f"-h {shlex.quote(host)} -p {sql.port} "
    return f"psql {where}-U materialize materialize"


def _found(folder: Traversable, connect: bytes, prefix: str = "") -> Iterator[tuple[str, _File]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _found(entry, connect, f"{prefix}{entry.name}/")
            continue
        media_type = _TYPES.get(entry.name[entry.name.rfind(".") :])
        if media_type is not None:
            body = entry.read_bytes().replace(_CONNECT, connect)
            digest = hashlib.blake2b(body, digest_size=12).hexdigest()
            yield prefix + entry.name, _File(body, media_type, f'"{digest}"')
