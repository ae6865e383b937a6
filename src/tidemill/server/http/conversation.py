"""One WebSocket at `/api/experimental/sql`: a session that receives statements and sends messages.

One task receives the client's messages (`inbox`). Another runs the statements of one message after another
and sends the results. Every message is `{"type", "payload"}`. Promises: rows are sent as they arrive, at
the client's pace. An invalid message is answered with an Error, and the conversation continues. However
the conversation ends, the session is closed and all resources are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from tidemill.engine.api import (
    Complete,
    CopyIn,
    CopyOut,
    EmptyQuery,
    Outcome,
    Param,
    ParameterStatus,
    PreparedStatement,
    Rows,
    Session,
    StartupOptions,
    close_batches,
)
from tidemill.errors import LimitExceeded, TidemillError, Unsupported
from tidemill.server import limits as server_limits
from tidemill.server.auth import Gate, Method
from tidemill.server.http.auth import Caller, caller, peer
from tidemill.server.http.forms import described, error_json, notice_json, stopping
from tidemill.server.http.frames import RowFrames
from tidemill.server.http.inbox import POLICY, Hearing, Over, Said
from tidemill.server.http.limits import LOGIN_SECONDS, SHUTDOWN_SECONDS
from tidemill.server.http.messages import CancelOther, LoginMessage, Queries
from tidemill.server.http.metrics import STATEMENTS
from tidemill.server.http.request import BadRequest, Script, Single
from tidemill.server.http.streams import Streams
from tidemill.server.pgwire.idle import allowance
from tidemill.server.pgwire.rows import pieces

_log = logging.getLogger("tidemill.server.http")

# Close codes of RFC 6455's registry: try again later; the server restarts.
_TRY_LATER, _RESTART = 1013, 1012


class WebSocketConversation:
    def __init__(self, socket: WebSocket, streams: Streams, process_id: int, gate: Gate) -> None:
        self._gate = gate
        self.key: tuple[int, int] | None = (process_id, secrets.randbits(31))
        self._socket = socket
        self._streams = streams
        self._process_id = process_id
        # None before the login.
        self._session: Session | None = None
        self._hearing = Hearing(socket, streams.pool, self.cancel)
        # Set when the session may have new messages.
        self._news = asyncio.Event()

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def stop(self) -> None:
        self._hearing.finish(stopping(), _RESTART)

    async def run(self) -> None:
        """From the request to the end of the conversation."""
        await self._socket.accept()
        try:
            with self._streams.entered(self, "websocket"):
                await self._both()
        except TidemillError as e:
            await self._last_words(e, _TRY_LATER)
        finally:
            if self._session is not None:
                await self._session.close()

    async def _both(self) -> None:
        hearing = asyncio.create_task(self._hearing.hear())
        working = asyncio.create_task(self._work())
        telling = asyncio.create_task(self._tell_as_it_comes())
        try:
            await asyncio.wait({hearing, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # A statement ends by its own cancellation and the session rolls back; a task killed in
                # between could not.
                self.cancel()
                await asyncio.wait({working}, timeout=SHUTDOWN_SECONDS)
        finally:
            for task in (telling, hearing, working):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    # -- speaking

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            await self._socket.send(message)
        except (WebSocketDisconnect, RuntimeError) as e:
            # A close was sent or came meanwhile.
            self._hearing.lost()
            raise Over from e

    async def _say(self, kind: str, payload: Any) -> None:
        await self._put({"type": "websocket.send", "text": json.dumps({"type": kind, "payload": payload})})

    async def _last_words(self, error: Exception, code: int) -> None:
        if not self._hearing.gone:
            with contextlib.suppress(Over):
                await self._say("Error", error_json(error))
                await self._put({"type": "websocket.close", "code": code})

    async def _tell_as_it_comes(self) -> None:
        """Sends notices while a statement runs."""
        with contextlib.suppress(Over):
            while True:
                await self._news.wait()
                self._news.clear()
                await self._tell()

    async def _tell(self) -> None:
        for event in self._session.events() if self._session is not None else ():
            if isinstance(event, ParameterStatus):
                await self._say("ParameterStatus", {"name": event.name, "value": event.value})
            else:
                await self._say("Notice", notice_json(event))

    # -- working

    async def _work(self) -> None:
        try:
            session = await self._login()
            while True:
                await self._say("ReadyForQuery", session.transaction_status)
                said = await self._next(session)
                if isinstance(said, Queries):
                    await self._run(session, said.items)
                elif isinstance(said, TidemillError):
                    await self._say("Error", error_json(said))
        except Over:
            if self._hearing.end is not None:
                await self._last_words(*self._hearing.end)
        except Exception:
            _log.exception("a WebSocket ended for an unforeseen reason")

    async def _next(self, session: Session) -> Said:
        """The next message of the client. Pings detect a client that has disconnected. A connected client may
        be idle as long as the session's settings allow, as on the SQL port."""
        allowed = allowance(session)
        if allowed is None:
            return await self._hearing.next()
        seconds, error = allowed
        try:
            async with asyncio.timeout(seconds):
                return await self._hearing.next()
        except TimeoutError:
            self._hearing.finish(error, POLICY)
            raise Over from None

    async def _login(self) -> Session:
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                said = await self._hearing.next()
            if isinstance(said, CancelOther):
                self._streams.cancel(said.conn_id, said.secret_key)
                await self._put({"type": "websocket.close", "code": 1000})
                raise Over
            if isinstance(said, TidemillError):
                raise said
            if not isinstance(said, LoginMessage):
                raise BadRequest("the first message must say who connects")
            options = _options(said, caller(self._socket))
            if self._gate.method is not Method.TRUST:
                await self._gate.check_password(options.user, said.password or "", peer(self._socket.scope))
            session = self._streams.engine.open_session(options, process_id=self._process_id)
        except TimeoutError:
            self._hearing.finish(BadRequest(f"no first message within {LOGIN_SECONDS:.0f} s"), POLICY)
            raise Over from None
        except TidemillError as e:
            self._hearing.finish(e, POLICY)
            raise Over from None
        self._session = session
        session.on_event(self._news.set)
        session.on_terminate(lambda error: self._hearing.finish(error, _RESTART))
        for name, value in session.parameters.items():
            await self._say("ParameterStatus", {"name": name, "value": value})
        if self.key is not None:
            await self._say("BackendKeyData", {"conn_id": self.key[0], "secret_key": self.key[1]})
        return session

    async def _run(self, session: Session, queries: Sequence[Script | Single]) -> None:
        """Runs one message: one implicit transaction, which ends at the first failure."""
        try:
            for query in queries:
                statements: list[tuple[PreparedStatement, Sequence[Param]]]
                if isinstance(query, Script):
                    statements = [(p, ()) for p in await session.parse(query.text)]
                else:
                    statements = [(await session.prepare(query.text, []), query.params)]
                alone = len(queries) == 1 and len(statements) == 1
                for prepared, params in statements:
                    self._hearing.check()
                    outcome = await session.execute(prepared, params, alone=alone, in_block=not alone)
                    await self._answer(prepared, outcome)
                    STATEMENTS.labels("ok").inc()
            await session.sync()
            await self._tell()
        except Over:
            await session.fail()
            raise
        except Exception as e:
            STATEMENTS.labels("error").inc()
            await session.fail()
            self._hearing.check()
            await self._tell()
            await self._say("Error", error_json(e))

    async def _answer(self, prepared: PreparedStatement, outcome: Outcome) -> None:
        streaming = prepared.verb == "SUBSCRIBE"
        starting = {"has_rows": isinstance(outcome, Rows), "is_streaming": streaming}
        match outcome:
            case Complete(tag):
                await self._say("CommandStarting", starting)
            case EmptyQuery():
                await self._say("CommandStarting", starting)
                tag = ""
            case Rows():
                try:
                    await self._say("CommandStarting", starting)
                    count = await self._rows(outcome, limited=not streaming)
                finally:
                    await close_batches(outcome.batches)
                tag = f"{outcome.tag} {count}" if outcome.counted else outcome.tag
            case CopyIn():
                await outcome.sink.fail("COPY is not possible over HTTP")
                raise Unsupported("COPY ... FROM STDIN over HTTP is not supported", hint="Use the SQL port.")
            case CopyOut():
                await close_batches(outcome.batches)
                raise Unsupported("COPY ... TO STDOUT over HTTP is not supported", hint="Leave COPY out.")
        await self._tell()
        await self._say("CommandComplete", tag)

    async def _rows(self, outcome: Rows, *, limited: bool) -> int:
        await self._say("Rows", {"columns": [described(c) for c in outcome.columns]})
        await self._tell()
        encoder = self._streams.encoder(outcome, RowFrames)
        count = size = 0
        most = server_limits.result_limit(self._session) if self._session else server_limits.MAX_RESULT_BYTES
        async for batch in outcome.batches:
            for at, rows in pieces(batch):
                self._hearing.check()
                data = await self._streams.encoded(outcome, batch, at, rows, encoder)
                size += len(data)
                if limited and size > most:
                    raise LimitExceeded(
                        f"result exceeds the limit of {most} bytes",
                        hint="Narrow the query, or read it with COPY (...) TO STDOUT on the SQL port.",
                    )
                await self._put({"type": "websocket.send", "frames": data})
                count += rows
        return count


def _options(login: LoginMessage, who: Caller) -> StartupOptions:
    settings = dict(login.options)
    defaults = StartupOptions()
    return StartupOptions(
        user=login.user or defaults.user,
        database=settings.pop("database", defaults.database),
        application_name=settings.pop("application_name", "websocket"),
        client_address=who.address,
        encryption=who.encryption,
        settings=settings,
    )
