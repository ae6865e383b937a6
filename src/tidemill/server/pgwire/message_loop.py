"""The message loop: runs the messages of one client in order against its session.

One `Conductor` per logged-in connection, driven by the connection's task. Promises: replies have the
order of the messages. An error ends its statement (in the extended protocol everything up to Sync),
never the server. The tag of a statement whose commit fails is never sent. Notices are sent while a
statement runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

from tidemill.engine.api import (
    Complete,
    CopyIn,
    CopyOut,
    EmptyQuery,
    ParameterStatus,
    PreparedStatement,
    Rows,
    Session,
)
from tidemill.errors import Notice, QueryCanceled, Unsupported
from tidemill.server.limits import result_limit
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.client_line import ClientLine, ConnectionEnds
from tidemill.server.pgwire.copying import admitted, receive_copy
from tidemill.server.pgwire.error_reports import client_error
from tidemill.server.pgwire.execution import Execution
from tidemill.server.pgwire.extended import Extended
from tidemill.server.pgwire.idle import IdleTimeout, allowance
from tidemill.server.pgwire.portals import SessionPortals
from tidemill.server.pgwire.protocol import Conversation
from tidemill.server.pgwire.results import RowStream, send_copy
from tidemill.server.pgwire.rows import BINARY, TEXT

# Tags after which a new transaction begins. (ROLLBACK TO also has the second one, but only in a block.)
_ENDS_TRANSACTION = frozenset({"COMMIT", "ROLLBACK", "DISCARD ALL"})

# Clients of the simple protocol, such as psql, mostly buffer a whole result before they show it.
_AS_THEY_COME = Notice(
    "rows are sent as they come, and there is no end to them",
    hint="A client that gathers all rows first shows none: use COPY (SUBSCRIBE ...) TO STDOUT, "
    "or DECLARE and FETCH.",
)


class Conductor:
    """The conversation with one client after its login."""

    def __init__(self, session: Session, line: ClientLine, conversation: Conversation) -> None:
        self._session = session
        self._line = line
        self._conversation = conversation
        self._kept = SessionPortals(session.statements, session.portals)
        self._execution = Execution(session, line)
        self._extended = Extended(session, line, conversation, self._kept, self._execution)
        # A message is being processed; a cancel at another time has no effect.
        self._busy = False
        # The tag of the last Execute. It waits for the next message: if that is Sync and the commit fails,
        # the client must get the error instead.
        self._held: str | None = None
        # Something was executed since the last Sync: an implicit transaction may contain more than one
        # statement.
        self._chained = False

    async def run(self) -> None:
        """Run until the client leaves (returns) or the connection must end (raises ConnectionEnds)."""
        self._session.on_event(self._news)
        try:
            self._ready()
            while True:
                if self._line.inbox.empty:
                    await self._rest()
                message = admitted(self._line.inbox.take(), self._conversation)
                if isinstance(message, m.Terminate):
                    return
                if message is not None:
                    await self._act(message)
        finally:
            self._session.portals.clear()
            await self._kept.released()

    def cancel(self) -> None:
        """Cancel the running statement, if there is one."""
        if self._busy:
            self._session.cancel()
            self._line.cancel()

    def client_left(self) -> None:
        """The client sent Terminate or closed its side: it needs no more rows."""
        if self._busy and self._execution.reads_only:
            self.cancel()

    def _rest(self) -> Awaitable[None]:
        """Wait for the client, for as long as the idle timeouts allow."""
        allowed = allowance(self._session)
        return self._line.inbox.wait() if allowed is None else self._rest_within(*allowed)

    async def _rest_within(self, seconds: float, error: IdleTimeout) -> None:
        inbox = self._line.inbox
        timer = asyncio.get_running_loop().call_later(seconds, lambda: inbox.interrupt(ConnectionEnds(error)))
        try:
            await inbox.wait()
        finally:
            timer.cancel()

    async def _act(self, message: m.Message) -> None:
        self._line.begin()
        self._busy = True
        try:
            if self._held is not None and not isinstance(message, m.Sync):
                self._release()
            await self._dispatch(message)
        except ConnectionEnds:
            raise
        except Exception as e:
            await self._failed(message, e)
        finally:
            self._busy = False
        if self._line.outbox.stopped:
            await self._line.outbox.drain()

    def _dispatch(self, message: m.Message) -> Awaitable[None]:
        # The messages of prepared statements first: cases are tried in order.
        match message:
            case m.Bind():
                return self._extended.bind(message)
            case m.Describe():
                return self._extended.describe(message)
            case m.ExecuteMessage():
                return self._execute(message)
            case m.Sync():
                return self._sync()
            case m.Parse():
                return self._extended.parse(message)
            case m.QueryMessage():
                return self._query(message.text)
            case m.Flush():
                return self._flush()
            case m.CloseMessage():
                return self._extended.close(message)
            case m.MessageRefused():
                raise message.error
            case m.FunctionCallMessage():
                raise Unsupported(
                    "function calls by message are not supported", hint="Call the function in a SELECT."
                )
            case _:
                raise m.MalformedMessage(f"unexpected message {type(message).__name__}")

    async def _execute(self, message: m.ExecuteMessage) -> None:
        in_block, self._chained = self._chained, True
        alone = not in_block and self._line.inbox.next_is(m.Sync)
        self._held = await self._extended.execute(message, alone=alone, in_block=in_block)
        if self._held in _ENDS_TRANSACTION:
            self._chained = False

    async def _flush(self) -> None:
        self._deliver_events()
        self._line.outbox.flush()

    async def _failed(self, message: m.Message, error: Exception) -> None:
        ending = self._line.inbox.ending
        if ending is not None:
            # A shutdown cancelled the statement: its own error is not reported.
            raise ending
        if self._line.inbox.departed and isinstance(error, QueryCanceled):
            raise ConnectionEnds(None) from None
        told = client_error(error, f"handling a {type(message).__name__} message")
        self._held = None
        try:
            await self._session.fail()
            await self._kept.released()
        except Exception as e:
            # The state of the session is unknown now.
            raise ConnectionEnds(client_error(e, "rolling back")) from e
        self._conversation.failed(message)
        self._deliver_events()
        self._line.outbox.put(replies.error_response(told))
        # Flush at once: a client that sent Flush instead of Sync waits for it, and its Flush is skipped now.
        self._line.outbox.flush()
        if isinstance(message, m.QueryMessage | m.Sync | m.FunctionCallMessage) or (
            isinstance(message, m.MessageRefused) and message.tag in "QF"
        ):
            self._ready()

    # -- the simple protocol

    async def _query(self, text: str) -> None:
        # A simple query closes the unnamed statement and, if it contains any statement, the unnamed portal.
        self._kept.drop_statement("")
        statements = await self._session.parse(text)
        chained = self._chained or len(statements) > 1
        if not statements:
            self._line.outbox.put(replies.EMPTY_QUERY)
        tag: str | None = None
        for statement in statements:
            if tag is not None:
                self._line.outbox.put(replies.command_complete(tag))
            self._kept.drop_portal("")
            tag = await self._statement(statement, in_block=chained)
        # The last tag means that the implicit transaction is committed.
        self._chained = False
        await self._session.sync()
        if tag is not None:
            self._line.outbox.put(replies.command_complete(tag))
        if self._kept.releasing:
            await self._kept.released()
        self._ready()

    async def _statement(self, statement: PreparedStatement, *, in_block: bool) -> str | None:
        """Run one statement of a simple query, `in_block` if its transaction has others. Returns its tag
        (None: no tag to send)."""
        with self._execution.running(statement):
            outcome = await self._execution.start(statement, alone=not in_block, in_block=in_block)
            match outcome:
                case Complete():
                    return outcome.tag
                case EmptyQuery():
                    self._line.outbox.put(replies.EMPTY_QUERY)
                    return None
                case Rows():
                    formats = (BINARY if outcome.binary else TEXT,) * len(outcome.columns)
                    shape = self._line.shapes.of(outcome.columns, formats, self._line.timezone)
                    stream = RowStream(outcome, formats, partial(result_limit, self._session))
                    try:
                        if outcome.endless and self._hears_notices():
                            self._line.outbox.put(replies.notice_response(_AS_THEY_COME))
                        self._line.outbox.put(shape.description)
                        count, _ = await stream.send(self._line)
                    finally:
                        await stream.close()
                    return stream.tag(count)
                case CopyOut():
                    return await send_copy(self._line, outcome)
                case CopyIn():
                    return await receive_copy(self._line, self._conversation, outcome)

    def _hears_notices(self) -> bool:
        setting = getattr(self._session, "setting", None)
        return setting is None or setting("client_min_messages") not in ("warning", "error")

    # -- ends of a chain

    async def _sync(self) -> None:
        self._chained = False
        await self._session.sync()
        self._release()
        if self._kept.releasing:
            await self._kept.released()
        self._ready()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._line.outbox.put(replies.command_complete(held))

    def _ready(self) -> None:
        # As in PostgreSQL: a value that a statement sets and resets is not reported.
        self._deliver_events(parameters=True)
        self._line.outbox.put(replies.ready_for_query(self._session.transaction_status))
        self._line.outbox.flush()

    def _news(self) -> None:
        """Called by the session, possibly during a statement: notices may be sent between any two messages.
        If the client does not read, the session keeps them until the statement ends."""
        if not self._line.outbox.paused:
            self._deliver_events()

    def _deliver_events(self, *, parameters: bool = False) -> None:
        events = self._session.events(parameters=parameters)
        for event in events:
            if isinstance(event, ParameterStatus):
                self._line.outbox.put(replies.parameter_status(event.name, event.value))
            else:
                self._line.outbox.put(replies.notice_response(event))
        if events:
            self._line.outbox.flush()
