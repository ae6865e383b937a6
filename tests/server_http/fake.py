"""An engine for tests of the HTTP door: each query names what it does, and what the door asked of it is
recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from tidemill.engine.api import (
    Bound,
    Complete,
    ConsumeRequest,
    CopyIn,
    CopyOptions,
    CopyOut,
    EmptyQuery,
    Outcome,
    Param,
    ParameterStatus,
    Portals,
    PreparedStatement,
    Rows,
    Session,
    StartupOptions,
    Statements,
    SubscribeRequest,
)
from tidemill.errors import InvalidTransactionState, Notice, QueryCanceled, SyntaxError_
from tidemill.types.model import INT8, TEXT, Column

Answer = Callable[["FakeSession", Sequence[Param]], Outcome]


class FakeSink:
    def __init__(self) -> None:
        self.failed: str | None = None

    async def write(self, batch: pa.RecordBatch) -> None: ...

    async def finish(self) -> str:
        return "COPY 0"

    async def fail(self, reason: str) -> None:
        self.failed = reason


class FakeSession:
    """Statements: `ok`, `rows N`, `big N` (N MB), `echo`, `hang`, `error`, `bug`, `notice`, `copy in`, `copy
    out`, `live`, ``. Everything that the door did is in `calls`. `live` gives the rows that the test puts
    into the engine's `live`, and so does whatever is subscribed to; an error there is raised, None is the
    end."""

    def __init__(self, engine: FakeEngine) -> None:
        self.calls: list[str] = []
        self.sink = FakeSink()
        self._engine = engine
        self.statements = Statements()
        self.portals = Portals()
        self._events: list[Notice | ParameterStatus] = []
        self._cancelled = asyncio.Event()
        self._wake: Callable[[], None] = lambda: None

    transaction_status = "I"
    parameters: Mapping[str, str] = {}

    def setting(self, name: str) -> str | None:
        return self._engine.settings.get(name)

    async def parse(self, sql: str) -> list[PreparedStatement]:
        if sql == "bad":
            raise SyntaxError_('syntax error at or near "bad"', position=1, hint="a hint")
        return [PreparedStatement(part.strip(), part, (), None, part.strip()) for part in sql.split(";")]

    async def prepare(self, sql: str, param_oids: Sequence[int]) -> PreparedStatement:
        self.calls.append(f"prepare {sql}")
        return PreparedStatement(sql, sql, (), None, sql)

    async def prepare_subscribe(self, request: SubscribeRequest | ConsumeRequest) -> PreparedStatement:
        assert isinstance(request, SubscribeRequest)
        self._engine.requests.append(request)
        if request.query == "bad":
            raise SyntaxError_('syntax error at or near "bad"', position=1)
        return PreparedStatement(request.query, "SUBSCRIBE", (), None, request.query)

    async def execute(
        self,
        prepared: PreparedStatement,
        params: Sequence[Param] | Bound = (),
        *,
        alone: bool = False,
        in_block: bool = False,
    ) -> Outcome:
        assert not isinstance(params, Bound)
        self.calls.append(f"execute {prepared.text}")
        verb, _, argument = prepared.text.partition(" ")
        match verb:
            case "":
                return EmptyQuery()
            case "ok" | "failcommit":
                return Complete("INSERT 0 1")
            case "rows":
                return Rows((Column("n", INT8),), self._numbers(int(argument)))
            case "big":
                return Rows((Column("t", TEXT),), self._texts(int(argument)))
            case "echo":
                values = [None if p.data is None else p.data.decode() for p in params]
                columns = tuple(Column(f"p{i}", TEXT) for i in range(len(values)))
                arrays = [pa.array([v], pa.string()) for v in values]
                batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
                return Rows(columns, self._batches([batch]))
            case "live":
                if self._engine.refuse_live:
                    raise self._engine.refuse_live.pop(0)
                return Rows(self._engine.live_columns, self._live(), tag="SUBSCRIBE", endless=True)
            case "hang":
                self._engine.hanging.set()
                await self._cancelled.wait()
                raise QueryCanceled("canceling statement due to user request")
            case "error":
                raise InvalidTransactionState("no", detail="d", hint="h")
            case "bug":
                raise ZeroDivisionError("secret inside")
            case "notice":
                self._events.append(Notice("look", hint="there"))
                self._events.append(ParameterStatus("TimeZone", "UTC"))
                return Complete("SET")
            case "copy":
                if argument == "in":
                    return CopyIn((), CopyOptions(), self.sink)
                return CopyOut((), self._numbers(1), CopyOptions())
            case _:
                raise AssertionError(prepared.text)

    async def _batches(self, batches: list[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield batch
        finally:
            self.calls.append("batches closed")

    async def _live(self) -> AsyncIterator[pa.RecordBatch]:
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            while True:
                item = asyncio.ensure_future(self._engine.live.get())
                await asyncio.wait({item, cancelled}, return_when=asyncio.FIRST_COMPLETED)
                if not item.done():
                    item.cancel()
                    raise QueryCanceled("canceling statement due to user request")
                found = item.result()
                if found is None:
                    return
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            cancelled.cancel()
            self.calls.append("live closed")

    def _numbers(self, count: int) -> AsyncIterator[pa.RecordBatch]:
        half = [list(range(count // 2)), list(range(count // 2, count))]
        return self._batches(
            [pa.RecordBatch.from_arrays([pa.array(h, pa.int64())], names=["n"]) for h in half]
        )

    def _texts(self, megabytes: int) -> AsyncIterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_arrays([pa.array(["x" * 1024] * 1024, pa.string())], names=["t"])
        return self._batches([batch] * megabytes)

    async def sync(self) -> None:
        self.calls.append("sync")
        if self.calls[-2] == "execute failcommit":
            raise InvalidTransactionState("commit failed")

    async def fail(self) -> None:
        self.calls.append("fail")

    async def describe(self, prepared: PreparedStatement) -> None:
        del prepared

    async def bind(self, prepared: PreparedStatement) -> tuple[Column, ...] | None:
        return prepared.columns

    async def fetch(self, name: str, count: int | None) -> Rows:
        raise AssertionError(name, count)

    def resume(self) -> None:
        pass

    async def read_params(self, prepared: PreparedStatement, params: Sequence[Param]) -> Bound:
        raise AssertionError(prepared, params)

    def events(self, *, parameters: bool = True) -> list[Notice | ParameterStatus]:
        events, self._events = self._events, []
        return events

    def on_terminate(self, end: object) -> None:
        self.terminate = end

    def on_event(self, wake: object) -> None:
        self._wake = cast("Callable[[], None]", wake)

    def notify(self, notice: Notice) -> None:
        """A notice while a statement runs."""
        self._events.append(notice)
        self._wake()

    def cancel(self) -> None:
        self.calls.append("cancel")
        self._cancelled.set()

    async def close(self) -> None:
        self.calls.append("close")


class FakeEngine:
    def __init__(self) -> None:
        self.ready = False
        self.sessions: list[FakeSession] = []
        self.options: list[StartupOptions] = []
        self.process_ids: list[int] = []
        # What was asked of `prepare_subscribe`.
        self.requests: list[SubscribeRequest] = []
        # The settings of all sessions.
        self.settings: dict[str, str] = {}
        # The rows of `live` as they come, their columns, and the errors with which it does not even begin.
        self.live: asyncio.Queue[pa.RecordBatch | Exception | None] = asyncio.Queue()
        self.live_columns: tuple[Column, ...] = (Column("n", INT8),)
        self.refuse_live: list[Exception] = []
        # Set when a `hang` has begun.
        self.hanging = asyncio.Event()

    def open_session(self, options: StartupOptions, *, process_id: int) -> Session:
        session = FakeSession(self)
        self.sessions.append(session)
        self.options.append(options)
        self.process_ids.append(process_id)
        return session
