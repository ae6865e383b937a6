"""One `GET /api/subscribe`: a subscription as a stream of server-sent events (`events`).

Created by `app` for each request. An error before the first event sets the HTTP status. A later error is sent
as an `error` event and ends the stream. Promises: one event for each complete time (several for a large one),
at the client's pace. A client that reconnects with Last-Event-ID has no gap and no repeat. If the history is
gone, the stream starts again with a snapshot event, or fails with status 410 if the request excludes the
snapshot. When the client disconnects, all resources are released.
"""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from tidemill.engine.api import ConsumeRequest, HistoryGone, Rows, Session, SubscribeRequest, close_batches
from tidemill.errors import Internal, QueryCanceled, TidemillError
from tidemill.server.http.auth import Caller
from tidemill.server.http.events import Events, RunRows
from tidemill.server.http.forms import error_json, notices, stopping
from tidemill.server.http.limits import HEARTBEAT_SECONDS, RETRY_MS, SHUTDOWN_SECONDS
from tidemill.server.http.live_request import LiveRequest
from tidemill.server.http.metrics import STATEMENTS
from tidemill.server.http.streams import Streams
from tidemill.server.pgwire.rows import pieces

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store, no-transform",
    # A proxy that buffers responses would delay events.
    "X-Accel-Buffering": "no",
}


class LiveQuery(Response):
    """The response; runs the statement when it is called."""

    key: tuple[int, int] | None = None

    def __init__(self, streams: Streams, request: LiveRequest, process_id: int, caller: Caller) -> None:
        super().__init__(headers=HEADERS)
        # The length of the response is unknown.
        del self.headers["content-length"]
        self._streams = streams
        self._request = request
        self._process_id = process_id
        self._caller = caller
        self._session: Session | None = None
        # Whether the client has disconnected, and whether the session or the server is ending.
        self._gone = False
        self._stopping = False
        # Whether the status was sent. After that, an error is an event.
        self._begun = False
        # ASGI's send, and when data was last sent.
        self._sender: Send | None = None
        self._spoke = 0.0

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def stop(self) -> None:
        self._stopping = True
        self.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sender = send
        try:
            with self._streams.entered(self, "events"):
                await self._until_gone(receive)
        except Exception as e:
            if not self._begun and not self._gone:
                await _refusal(self._reason(e))(scope, receive, send)

    def _reason(self, error: Exception) -> Exception:
        """The error to send: the server's stop replaces a cancel that it caused."""
        return stopping() if self._stopping and isinstance(error, QueryCanceled) else error

    async def _until_gone(self, receive: Receive) -> None:
        work = asyncio.create_task(self._work())
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._gone = True
                # Cancel the statement, not the task: a cancelled task could not release its resources.
                self.cancel()
                await asyncio.wait({work}, timeout=SHUTDOWN_SECONDS)
            else:
                work.result()
        finally:
            for task in (leaving, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _work(self) -> None:
        request = self._request
        options = self._caller.options("http-events", request.database)
        session = self._session = self._streams.engine.open_session(options, process_id=self._process_id)
        session.on_terminate(lambda _: self.stop())
        try:
            rows, asked = await self._start(session)
            try:
                await self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                self._begun = True
                # The contents of a durable subscription are changes of an empty relation.
                snapshot = isinstance(asked, SubscribeRequest) and asked.snapshot
                await self._stream(session, rows, Events(snapshot=snapshot, progress=request.progress))
            finally:
                await close_batches(rows.batches)
        finally:
            await session.close()

    async def _start(self, session: Session) -> tuple[Rows, SubscribeRequest | ConsumeRequest]:
        """The rows of the subscription, and the request that succeeded."""
        fresh = self._request.fresh
        try:
            return await self._execute(session, self._request.subscribe), self._request.subscribe
        except HistoryGone:
            if fresh is None:
                raise
        await session.fail()
        return await self._execute(session, fresh), fresh

    async def _execute(self, session: Session, request: SubscribeRequest | ConsumeRequest) -> Rows:
        outcome = await session.execute(await session.prepare_subscribe(request), alone=True)
        if not isinstance(outcome, Rows):
            raise Internal("a subscription without rows")
        return outcome

    async def _stream(self, session: Session, rows: Rows, events: Events) -> None:
        asked = self._request.subscribe
        keys = asked.keys if isinstance(asked, SubscribeRequest) else ()
        await self._speak(events.begin(rows.columns, keys, RETRY_MS))
        encoder = self._streams.encoder(rows, RunRows)
        try:
            while (batch := await self._next(session, rows, events)) is not None:
                for at, count in pieces(batch):
                    encoded = await self._streams.encoded(rows, batch, at, count, encoder)
                    await self._speak(events.rows(batch.slice(at, count), encoded))
        except Exception as e:
            if self._gone:
                return
            STATEMENTS.labels("error").inc()
            await self._speak(events.error(error_json(self._reason(e))))
        else:
            STATEMENTS.labels("ok").inc()
            await self._speak(events.end())
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, session: Session, rows: Rows, events: Events) -> pa.RecordBatch | None:
        """The next rows; None at the end. Sends notices and heartbeats meanwhile."""
        reading = asyncio.ensure_future(anext(rows.batches, None))
        try:
            while True:
                await asyncio.wait({reading}, timeout=self._quiet())
                await self._speak(b"".join(events.notice(notice) for notice in notices(session)))
                if not self._quiet():
                    await self._speak(events.heartbeat())
                if reading.done():
                    return reading.result()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading

    def _quiet(self) -> float:
        """Seconds until the next heartbeat is due."""
        return max(0.0, self._spoke + HEARTBEAT_SECONDS - asyncio.get_running_loop().time())

    async def _speak(self, data: bytes) -> None:
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._spoke = asyncio.get_running_loop().time()

    async def _send(self, message: Message) -> None:
        if self._gone or self._sender is None:
            raise QueryCanceled("canceling statement because the client is gone")
        await self._sender(message)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# SQLSTATEs of status 503: too many streams; the server stops.
_LATER = ("53300", "57P01")


def _refusal(error: Exception) -> Response:
    """Browsers do not reconnect after a status other than 200."""
    headers = {"Cache-Control": "no-store"}
    if not isinstance(error, TidemillError):
        status = 500
    elif isinstance(error, HistoryGone):
        status = 410
    elif error.transient or error.sqlstate in _LATER:
        status = 503
    else:
        status = 400
    return JSONResponse({"error": error_json(error)}, status_code=status, headers=headers)
