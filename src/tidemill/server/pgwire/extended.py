"""The extended query protocol: Parse, Bind, Describe, Execute, Close.

Owned by `message_loop`, which handles Sync, Flush and errors. Promises: each message gets its own
reply. A portal with a row limit suspends and continues where it stopped. Formats and parameter counts
are checked before the statement runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidemill.engine.api import (
    NO_PARAMS,
    Complete,
    CopyIn,
    CopyOut,
    EmptyQuery,
    Param,
    Rows,
    Session,
    cannot_run,
    same_result,
)
from tidemill.errors import Internal, InvalidValue, ResultChanged
from tidemill.server.limits import result_limit
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.client_line import ClientLine
from tidemill.server.pgwire.copying import receive_copy
from tidemill.server.pgwire.error_reports import transaction_aborted
from tidemill.server.pgwire.execution import Execution
from tidemill.server.pgwire.portals import SessionPortals, WirePortal, no_such_portal
from tidemill.server.pgwire.protocol import Conversation
from tidemill.server.pgwire.results import RowStream, send_copy
from tidemill.server.pgwire.rows import BINARY, TEXT, result_formats
from tidemill.types.model import Column


class Extended:
    """The extended messages of one session."""

    def __init__(
        self,
        session: Session,
        line: ClientLine,
        conversation: Conversation,
        kept: SessionPortals,
        execution: Execution,
    ) -> None:
        self._session = session
        self._line = line
        self._conversation = conversation
        self._kept = kept
        self._execution = execution

    async def parse(self, message: m.Parse) -> None:
        if not message.name:
            self._kept.drop_statement("")
        # A duplicate name is reported after errors of the statement, as in PostgreSQL.
        prepared = await self._session.prepare(message.text, message.param_oids)
        if self._session.transaction_status == "E" and not prepared.allowed_when_failed:
            raise transaction_aborted()
        self._kept.add_statement(message.name, prepared)
        self._line.outbox.put(replies.PARSE_COMPLETE)

    async def bind(self, message: m.Bind) -> None:
        prepared = self._kept.statement(message.statement)
        expected = len(prepared.param_types)
        if len(message.params) != expected:
            raise m.MalformedMessage(
                f"bind message supplies {len(message.params)} parameters, "
                f'but prepared statement "{message.statement}" requires {expected}'
            )
        formats = _param_formats(message.param_formats, expected)
        if self._session.transaction_status == "E" and (
            not prepared.allowed_when_failed or not prepared.verb or message.params
        ):
            raise transaction_aborted()
        for code in (*message.param_formats, *message.result_formats):
            if code not in (TEXT, BINARY):
                raise InvalidValue(f"unsupported format code: {code}", sqlstate="22023")
        size = sum([len(data) for data in message.params if data is not None]) if expected else 0
        self._kept.check_new_portal(message.portal, size)
        params = NO_PARAMS
        if expected:
            given = [Param(data, f) for data, f in zip(message.params, formats, strict=True)]
            params = await self._session.read_params(prepared, given)
        columns = await self._session.bind(prepared)
        if columns is not None:
            result_formats(message.result_formats, len(columns))
        portal = WirePortal(prepared, columns, params, size, message.result_formats, self._kept.releasing)
        self._session.portals.add(message.portal, portal)
        self._line.outbox.put(replies.BIND_COMPLETE)

    async def describe(self, message: m.Describe) -> None:
        if message.kind == "S":
            prepared = self._kept.statement(message.name)
            self._check_describable(prepared.columns)
            self._line.outbox.put(replies.parameter_description(prepared.param_types))
            await self._session.describe(prepared)
            wanted: tuple[int, ...] = ()
            columns = prepared.columns
            prepared.described = columns or ()
        else:
            portal = self._session.portals.find(message.name)
            if portal is None:
                raise no_such_portal(message.name)
            # A cursor of DECLARE is a portal too: psycopg describes it.
            columns, wanted = portal.columns, portal.result_formats if isinstance(portal, WirePortal) else ()
            self._check_describable(columns)
            portal.described = True
        if columns is None:
            self._line.outbox.put(replies.NO_DATA)
            return
        formats = result_formats(wanted, len(columns))
        self._line.outbox.put(self._line.shapes.of(columns, formats, self._line.timezone).description)

    def _check_describable(self, columns: Sequence[Column] | None) -> None:
        """In a failed block statements that return rows are not described, because relations cannot be looked
        up."""
        if columns is not None and self._session.transaction_status == "E":
            raise transaction_aborted()

    async def execute(self, message: m.ExecuteMessage, *, alone: bool, in_block: bool) -> str | None:
        """Run or resume a portal; `alone` and `in_block` as in `Session.execute`. Returns the tag for
        CommandComplete; None if another message was sent instead."""
        portal = self._session.portals.find(message.portal)
        if portal is None:
            raise no_such_portal(message.portal)
        if not isinstance(portal, WirePortal):
            with self._execution.reading():
                return await self._fetch(message)
        if not portal.prepared.verb:
            # As in PostgreSQL, the empty statement can be executed again and again, in a failed block too.
            self._line.outbox.put(replies.EMPTY_QUERY)
            return None
        with self._execution.running(portal.prepared):
            if portal.failed:
                failed_block = self._session.transaction_status == "E"
                raise transaction_aborted() if failed_block else cannot_run(message.portal)
            portal.active = True
            try:
                if portal.cursor is not None:
                    return await self._fetch(message, portal.result_formats)
                if portal.stream is not None:
                    self._session.resume()
                    return await self._send(portal, portal.stream, message.max_rows)
                if portal.started:
                    if portal.tag_when_empty is None:
                        raise cannot_run(message.portal)
                    return portal.tag_when_empty
                return await self._first(portal, message.max_rows, alone=alone, in_block=in_block)
            except BaseException:
                portal.failed = True
                raise
            finally:
                portal.active = False

    async def _first(self, portal: WirePortal, max_rows: int, *, alone: bool, in_block: bool) -> str | None:
        portal.started = True
        outcome = await self._execution.start(portal.prepared, portal.params, alone=alone, in_block=in_block)
        match outcome:
            case Complete():
                return outcome.tag
            case EmptyQuery():
                raise Internal("an empty statement was started")
            case Rows():
                # The portal owns the rows before anything can fail: dropping the portal releases them.
                limit = partial(result_limit, self._session)
                portal.tag, portal.counted = outcome.tag, outcome.counted
                portal.stream = RowStream(outcome, portal.result_formats, limit)
                _check_described(portal, outcome.columns)
                return await self._send(portal, portal.stream, max_rows)
            case CopyOut():
                return await send_copy(self._line, outcome)
            case CopyIn():
                return await receive_copy(self._line, self._conversation, outcome)

    async def _send(self, portal: WirePortal, stream: RowStream, max_rows: int) -> str | None:
        # An error here ends the transaction's portals, and with them the stream.
        count, ended = await stream.send(self._line, max_rows)
        if not ended:
            self._line.outbox.put(replies.PORTAL_SUSPENDED)
            return None
        portal.stream = None  # it has ended, and needs no close
        portal.tag_when_empty = stream.tag(0)
        return stream.tag(count)

    async def _fetch(self, message: m.ExecuteMessage, formats: Sequence[int] = ()) -> str | None:
        """Read from a portal that SQL fetches from as well."""
        rows = await self._session.fetch(message.portal, message.max_rows or None)
        stream = RowStream(rows, formats, partial(result_limit, self._session))
        try:
            count, _ = await stream.send(self._line)
        finally:
            await stream.close()
        if message.max_rows and count == message.max_rows:
            self._line.outbox.put(replies.PORTAL_SUSPENDED)
            return None
        return stream.tag(count)

    async def close(self, message: m.CloseMessage) -> None:
        if message.kind == "S":
            self._kept.drop_statement(message.name)
        else:
            self._kept.drop_portal(message.name)
            await self._kept.released()
        self._line.outbox.put(replies.CLOSE_COMPLETE)


def _check_described(portal: WirePortal, columns: Sequence[Column]) -> None:
    """Check that the client knows these columns. Between Bind and Execute a cursor may be declared again. A
    client that describes only the statement does not learn the present target of EXECUTE and FETCH.
    (PostgreSQL sends such a client rows that it cannot read.)"""
    if not same_result(portal.columns, columns):
        raise InvalidValue("portal must not change result type", sqlstate="42804")
    told = portal.prepared.described
    if not portal.described and told is not None and not same_result(told, columns):
        raise ResultChanged


def _param_formats(wanted: Sequence[int], params: int) -> tuple[int, ...]:
    if len(wanted) == 0:
        return (TEXT,) * params
    if len(wanted) == 1:
        return (wanted[0],) * params
    if len(wanted) != params:
        raise m.MalformedMessage(f"bind message has {len(wanted)} parameter formats but {params} parameters")
    return tuple(wanted)
