"""Runs the statements of one request in its own session, and holds the results until they are complete.

A request is one implicit transaction, as a query message on the SQL port: it commits at the end, and the
first failure ends it. If the last result is not an error, the transaction has committed. A result is never
partial. Called by `app`. Everything runs on the event loop, except the encoding of rows, which runs in
worker threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa

from tidemill.engine.api import (
    Complete,
    CopyIn,
    CopyOut,
    EmptyQuery,
    Engine,
    Outcome,
    Rows,
    Session,
    close_batches,
)
from tidemill.errors import LimitExceeded, QueryCanceled, TidemillError, Unsupported
from tidemill.server.http.auth import Caller
from tidemill.server.http.forms import described, error_json, notices
from tidemill.server.http.limits import MAX_HELD_BYTES, MAX_RESULT_BYTES
from tidemill.server.http.metrics import HELD_BYTES, STATEMENTS
from tidemill.server.http.request import Script, Single
from tidemill.server.http.values import rows_json
from tidemill.types.model import Column


class Held:
    """The bytes of all results in memory, checked against the total limit and the limit per request."""

    def __init__(self) -> None:
        self.total = 0

    def take(self, size: int, own: int) -> None:
        """`own` is the number of bytes that the request holds already."""
        if own + size > MAX_RESULT_BYTES:
            raise LimitExceeded(
                f"the answer is larger than the HTTP limit of {MAX_RESULT_BYTES >> 20} MB",
                hint="Use the SQL port, which streams, or LIMIT.",
            )
        if self.total + size > MAX_HELD_BYTES:
            raise LimitExceeded(
                f"the answers being sent over HTTP hold more than {MAX_HELD_BYTES >> 20} MB together",
                hint="Try again later, or use the SQL port.",
                sqlstate="53200",
            )
        self.total += size
        HELD_BYTES.set(self.total)

    def give_back(self, size: int) -> None:
        self.total -= size
        HELD_BYTES.set(self.total)


class RequestRun:
    """One request. `results` are JSON objects, one per statement, in order; an error is always the last."""

    def __init__(
        self,
        engine: Engine,
        queries: Sequence[Script | Single],
        held: Held,
        process_id: int,
        caller: Caller,
    ) -> None:
        self.results: list[bytes] = []
        self._engine = engine
        self._queries = queries
        self._held = held
        self._process_id = process_id
        self._caller = caller
        # What this request has taken from `held`; given back by `release`.
        self._own = 0
        # None before the session exists and after it is closed.
        self._session: Session | None = None
        # Set when no caller waits for the result any more: no further statement may start.
        self._stopped = False

    def stop(self) -> None:
        """Cancels the running statement and starts no more: the client disconnected, or the server shuts
        down."""
        self._stopped = True
        if self._session is not None:
            self._session.cancel()

    def release(self) -> None:
        """Releases the results after the response was sent or abandoned."""
        self._held.give_back(self._own)
        self._own = 0
        self.results.clear()

    async def execute(self) -> None:
        """Fills `results`. An error of a statement is a result; it does not raise."""
        try:
            options = self._caller.options("http", lasting=False)
            self._session = self._engine.open_session(options, process_id=self._process_id)
            self._session.on_terminate(lambda _: self.stop())
        except TidemillError as e:
            self._append_error(e, [])
            return
        try:
            await self._statements(self._session)
        finally:
            session, self._session = self._session, None
            await session.close()

    async def _statements(self, session: Session) -> None:
        # The result of the statement that ran last. It counts only when the commit after it went well.
        last: bytes | None = None
        try:
            for query in self._queries:
                if isinstance(query, Script):
                    prepared = [(p, ()) for p in await session.parse(query.text)]
                else:
                    prepared = [(await session.prepare(query.text, []), query.params)]
                alone = len(self._queries) == 1 and len(prepared) == 1
                for statement, params in prepared:
                    self._still_wanted()
                    if last is not None:
                        self._keep(last)
                    outcome = await session.execute(statement, params, alone=alone, in_block=not alone)
                    last = await self._result(session, outcome)
            self._still_wanted()
            await session.sync()
        except Exception as e:
            told = notices(session)
            await session.fail()
            self._append_error(e, told)
            return
        if last is not None:
            self._keep(last)

    def _still_wanted(self) -> None:
        if self._stopped:
            raise QueryCanceled("canceling statement because the client is gone or the server stops")

    def _keep(self, result: bytes) -> None:
        STATEMENTS.labels("ok").inc()
        self.results.append(result)

    async def _result(self, session: Session, outcome: Outcome) -> bytes:
        match outcome:
            case Complete(tag):
                body: dict[str, Any] = {"tag": tag}
                rows = b""
            case EmptyQuery():
                body, rows = {"tag": ""}, b""
            case Rows(endless=True):
                await close_batches(outcome.batches)
                raise Unsupported(
                    "a SUBSCRIBE without UP TO never ends, and its answer would never be sent",
                    hint="Use GET /api/subscribe, the WebSocket, or the SQL port.",
                )
            case Rows():
                rows, count = await self._rows(outcome.batches, outcome.columns)
                body = {
                    "tag": f"{outcome.tag} {count}" if outcome.counted else outcome.tag,
                    "desc": {"columns": [described(c) for c in outcome.columns]},
                }
            case CopyIn():
                await outcome.sink.fail("COPY is not possible over HTTP")
                raise Unsupported(
                    "COPY ... FROM STDIN over HTTP is not supported", hint="Use the SQL port, or INSERT."
                )
            case CopyOut():
                await close_batches(outcome.batches)
                raise Unsupported(
                    "COPY ... TO STDOUT over HTTP is not supported", hint="Use the SQL port, or SELECT."
                )
        body["notices"] = notices(session)
        head = json.dumps(body).encode()
        if isinstance(outcome, Rows):
            head = head[:-1] + b', "rows": [' + rows + b"]}"
        else:
            self._take(len(head))
        return head

    async def _rows(
        self, batches: AsyncIterator[pa.RecordBatch], columns: Sequence[Column]
    ) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        count = 0
        try:
            async for batch in batches:
                self._still_wanted()
                text, rows = await asyncio.to_thread(rows_json, batch, columns)
                if rows == 0:
                    continue
                piece = text.encode()
                self._take(len(piece) + 1)
                pieces.append(piece)
                count += rows
        finally:
            await close_batches(batches)
        return b",".join(pieces), count

    def _take(self, size: int) -> None:
        self._held.take(size, self._own)
        self._own += size

    def _append_error(self, error: Exception, told: list[dict[str, Any]]) -> None:
        STATEMENTS.labels("error").inc()
        self.results.append(json.dumps({"error": error_json(error), "notices": told}).encode())
