"""The HTTP routes. Each endpoint converts a request into a call of `run` or of the engine, and the result
into a response."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from tidemill.config import Address
from tidemill.engine.api import Engine
from tidemill.errors import LimitExceeded, TidemillError
from tidemill.server.auth import TRUSTING, Gate
from tidemill.server.http.auth import LoginMiddleware, caller
from tidemill.server.http.console.files import ConsoleFiles
from tidemill.server.http.conversation import WebSocketConversation
from tidemill.server.http.forms import error_json
from tidemill.server.http.guard import Guard
from tidemill.server.http.limits import BODY_SECONDS, MAX_BODY_BYTES, SHUTDOWN_SECONDS
from tidemill.server.http.live import HEADERS, LiveQuery
from tidemill.server.http.live_request import parse_live
from tidemill.server.http.metrics import REQUESTS
from tidemill.server.http.request import BadRequest, parse_body
from tidemill.server.http.run import Held, RequestRun
from tidemill.server.http.streams import Streams

# Sessions of the HTTP port are numbered from here, the SQL port's from 1: a process id names one session.
FIRST_PROCESS_ID = 1 << 30

# Threads that encode rows for streams. Arrow releases the interpreter's lock in its kernels, so two serve
# more than one core.
ENCODING_THREADS = 2


class Api:
    """The endpoints and what they share."""

    def __init__(self, engine: Engine, sql: Address | None = None, gate: Gate = TRUSTING) -> None:
        """`sql` is the address of the SQL port, which the console shows; `gate` authenticates clients."""
        self.gate = gate
        self.console = ConsoleFiles(sql)
        self._engine = engine
        self._held = Held()
        self._process_ids = itertools.count(FIRST_PROCESS_ID)
        # Requests whose statements run now, so that a shutdown can cancel them.
        self._running: set[RequestRun] = set()
        self._pool = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="http-encode")
        self._streams = Streams(engine, self._pool)

    def stop(self) -> None:
        """Cancels all running statements."""
        for run in list(self._running):
            run.stop()
        self._streams.stop()

    async def stopped(self) -> None:
        """Waits until the streams have ended."""
        await self._streams.stopped()

    def close(self) -> None:
        """When nothing runs any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def sql(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A form or text/plain is what a page may send to another site without asking first; JSON is not.
            raise HTTPException(415, "the body must be application/json")
        try:
            queries = parse_body(await _body(request))
        except BadRequest as e:
            return JSONResponse({"error": error_json(e)}, status_code=400)
        except LimitExceeded as e:
            return JSONResponse({"error": error_json(e)}, status_code=413)
        run = RequestRun(self._engine, queries, self._held, next(self._process_ids), caller(request))
        self._running.add(run)
        try:
            await _unless_gone(request, run)
        except BaseException:
            run.release()
            raise
        finally:
            self._running.discard(run)
        return _Answer(run)

    async def subscribe(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        try:
            items = request.query_params.multi_items()
            live = parse_live(items, request.headers.get("last-event-id"))
        except (BadRequest, LimitExceeded) as e:
            return JSONResponse({"error": error_json(e)}, status_code=400)
        if live.over:
            # Status 204 prevents the browser from reconnecting.
            return Response(status_code=204)
        return LiveQuery(self._streams, live, next(self._process_ids), caller(request))

    async def websocket(self, socket: WebSocket) -> None:
        await WebSocketConversation(socket, self._streams, next(self._process_ids), self.gate).run()

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        ready = self._engine.ready
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def metrics(self, _request: Request) -> Response:
        # Collecting walks every metric of the process: off the loop, for there may be many.
        text = await asyncio.to_thread(generate_latest, REGISTRY)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _body(request: Request) -> bytes:
    """Reads the whole body, within the limits of size and time."""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise LimitExceeded(f"the request's body is longer than {MAX_BODY_BYTES} bytes")
                pieces.append(piece)
    except TimeoutError:
        raise HTTPException(408, f"the request's body did not arrive within {BODY_SECONDS:.0f} s") from None
    return b"".join(pieces)


async def _unless_gone(request: Request, run: RequestRun) -> None:
    """Runs the statements. If the client closes its connection meanwhile, cancels them and raises
    ClientDisconnect."""
    work = asyncio.create_task(run.execute())
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            run.stop()
            # The statement ends by its own cancellation and the session rolls back; a task killed in
            # between could not.
            await asyncio.wait({work}, timeout=SHUTDOWN_SECONDS)
            raise ClientDisconnect
        await work
    finally:
        for task in (gone, work):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _disconnected(request: Request) -> None:
    while True:
        message: Message = await request.receive()
        if message["type"] == "http.disconnect":
            return


class _Answer(Response):
    """The results as one JSON object. Releases them even if sending fails."""

    media_type = "application/json"

    def __init__(self, run: RequestRun) -> None:
        super().__init__()
        self._run = run
        results = run.results
        size = len(_BEFORE) + sum(map(len, results)) + 2 * max(0, len(results) - 1) + len(_AFTER)
        self.headers["content-length"] = str(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": _BEFORE, "more_body": True})
            for number, result in enumerate(self._run.results):
                body = b", " + result if number else result
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": _AFTER})
        finally:
            self._run.release()


_BEFORE = b'{"results": ['
_AFTER = b"]}\n"


class _Counted:
    """Counts requests by route and status. All unknown paths share one label, because a client may send any
    path."""

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        self._app = app
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                REQUESTS.labels(path, str(message["status"])).inc()
                message["headers"] = [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]
            await send(message)

        await self._app(scope, receive, counted)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {"error": {"message": error.detail, "code": "08P01"}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _tidemill_error(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": error_json(error)}, status_code=500)


async def _gone(_request: Request, _error: Exception) -> Response:
    # The client is gone. This only ends the request without a trace in the log.
    return Response(status_code=499)


def build_app(api: Api, hosts: Iterable[str] = ()) -> Starlette:
    """The whole application around `api`."""
    routes = [
        Route("/", api.console.page, methods=["GET"]),
        Route("/console/{path:path}", api.console.file, methods=["GET"]),
        Route("/api/sql", api.sql, methods=["POST"]),
        Route("/api/subscribe", api.subscribe, methods=["GET"]),
        WebSocketRoute("/api/experimental/sql", api.websocket),
        Route("/healthz", api.health, methods=["GET"]),
        Route("/readyz", api.ready, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
    ]
    paths = [route.path for route in routes if isinstance(route, Route)]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_Counted, paths=paths),
            Middleware(Guard, names=list(hosts)),
            Middleware(LoginMiddleware, gate=api.gate),
        ],
        exception_handlers={
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            TidemillError: _tidemill_error,
        },
    )
