"""A small engine for tests of the wire: `engine.api` over Arrow tables in memory, with a grammar of a dozen
regular expressions.

It drives the protocol with real clients; what the real engine does with SQL is tested elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa

from tidemill.engine import api
from tidemill.errors import Notice, QueryCanceled, SyntaxError_, TidemillError, UndefinedObject, Unsupported
from tidemill.types import model, wire
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, SqlType

TYPES: dict[str, SqlType] = {
    "int4": model.INT4,
    "int8": model.INT8,
    "text": model.TEXT,
    "bool": model.BOOL,
    "float8": model.FLOAT8,
    "numeric": model.NUMERIC,
    "bytea": model.BYTEA,
    "timestamptz": model.TIMESTAMPTZ,
    "date": model.DATE,
    "jsonb": model.JSONB,
    "uuid": model.UUID,
}

Step = Callable[["TabletSession", re.Match[str], Sequence[api.Param]], object]


@dataclass
class Tablets:
    """The engine: tables by name."""

    tables: dict[str, tuple[tuple[Column, ...], list[pa.RecordBatch]]] = field(default_factory=dict)
    sessions: list[TabletSession] = field(default_factory=list)
    ready: bool = True

    def open_session(self, options: api.StartupOptions, *, process_id: int) -> TabletSession:
        if options.user == "nobody":
            raise UndefinedObject('role "nobody" does not exist', sqlstate="28000")
        session = TabletSession(self, options)
        self.sessions.append(session)
        return session

    def rows(self, name: str) -> list[tuple[object, ...]]:
        _, batches = self.tables[name]
        return [tuple(row.values()) for b in batches for row in b.to_pylist()]


class _Sink:
    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches
        self._new: list[pa.RecordBatch] = []
        self.failed: str | None = None

    async def write(self, batch: pa.RecordBatch) -> None:
        self._new.append(batch)

    async def finish(self) -> str:
        self._batches += self._new
        return f"COPY {sum(b.num_rows for b in self._new)}"

    async def fail(self, reason: str) -> None:
        self.failed = reason


class TabletSession:
    def __init__(self, engine: Tablets, options: api.StartupOptions) -> None:
        self.engine = engine
        self.options = options
        self.transaction_status = "I"
        # Without standard_conforming_strings libpq doubles backslashes in bytea.
        self._parameters = {
            "server_version": "17.0",
            "standard_conforming_strings": "on",
            "TimeZone": "UTC",
        }
        self.settings = dict(options.settings)
        self._events: list[Notice | api.ParameterStatus] = []
        self._wake: Callable[[], None] = lambda: None
        self.cancelled = asyncio.Event()
        # Statements that run or whose rows are not yet read to the end.
        self.open_streams = 0
        # For each execution: was it said to be alone in its transaction?
        self.alone: list[bool] = []
        self.commit_fails = False
        self.commits = 0
        self.closed = 0
        self.statements = api.Statements()
        self.portals = api.Portals()
        self.sinks: list[_Sink] = []
        # Batches that were pulled by the server.
        self.pulled = 0

    @property
    def parameters(self) -> Mapping[str, str]:
        return self._parameters

    def setting(self, name: str) -> str | None:
        return self.settings.get(name)

    async def parse(self, sql: str) -> list[api.PreparedStatement]:
        texts = [t.strip() for t in sql.split(";") if t.strip()]
        return [self._prepared(t, ()) for t in texts]

    async def prepare(self, sql: str, param_oids: Sequence[int]) -> api.PreparedStatement:
        return self._prepared(sql.strip().rstrip(";"), param_oids)

    def _prepared(self, text: str, oids: Sequence[int]) -> api.PreparedStatement:
        verb = text.split()[0].upper() if text else "EMPTY"
        if verb == "WRONG":
            raise SyntaxError_('syntax error at or near "WRONG"', position=1, hint="Do not.", detail="It is.")
        names = re.findall(r"\$\d+::(\w+)", text)
        given = [wire.type_of_oid(oid) for oid in oids] + [None] * len(names)
        params = tuple(g or TYPES[n] for n, g in zip(names, given, strict=False))
        columns = self._columns(text, params)
        return api.PreparedStatement(
            text, verb, params, columns, text, allowed_when_failed=verb in ("COMMIT", "ROLLBACK", "END")
        )

    def _columns(self, text: str, params: tuple[SqlType, ...]) -> tuple[Column, ...] | None:
        if not re.match(r"(?i)select|subscribe", text):
            return None
        if found := re.match(r"(?i)select \* from (\w+)", text):
            if found[1] not in self.engine.tables:
                raise UndefinedObject(f'relation "{found[1]}" does not exist', sqlstate="42P01", position=15)
            return self.engine.tables[found[1]][0]
        if params:
            return tuple(Column(f"c{i}", t) for i, t in enumerate(params))
        return (Column("n", model.INT8),)

    async def prepare_subscribe(
        self, request: api.SubscribeRequest | api.ConsumeRequest
    ) -> api.PreparedStatement:
        raise Unsupported(f"there is nothing to subscribe to here: {request}")

    async def execute(
        self,
        prepared: api.PreparedStatement,
        params: Sequence[api.Param] | api.Bound = (),
        *,
        alone: bool = False,
        in_block: bool = False,
    ) -> api.Outcome:
        if isinstance(params, api.Bound):
            params = cast("Sequence[api.Param]", params.values)
        self.cancelled.clear()
        self.alone.append(alone)
        text = prepared.text
        for pattern, step in STEPS:
            if found := re.fullmatch(pattern, text, re.I | re.S):
                result = step(self, found, params)
                if asyncio.iscoroutine(result):
                    result = await result
                return self._outcome(prepared, result)
        if params:
            return self._echo(prepared, params)
        raise SyntaxError_(f"what is {text}?")

    def _outcome(self, prepared: api.PreparedStatement, result: object) -> api.Outcome:
        match result:
            case str():
                return api.Complete(result)
            case AsyncIterator():
                columns = prepared.columns or ()
                batches = self._tracked(result)
                return api.Rows(columns, batches, prepared.verb, counted=prepared.verb == "SELECT")
            case api.Complete() | api.EmptyQuery() | api.Rows() | api.CopyOut() | api.CopyIn():
                return result
            case _:
                raise AssertionError(result)

    async def _tracked(self, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        self.open_streams += 1
        try:
            async for batch in batches:
                if self.cancelled.is_set():
                    raise QueryCanceled("canceling statement due to user request")
                self.pulled += 1
                yield batch
        finally:
            self.open_streams -= 1

    def _echo(self, prepared: api.PreparedStatement, params: Sequence[api.Param]) -> api.Outcome:
        """SELECT $1::t, ...: the parameters as they came."""
        arrays: list[pa.Array] = []
        for t, p in zip(prepared.param_types, params, strict=True):
            raw = pa.array([p.data], pa.binary())
            arrays.append(wire.decode_binary(raw, t) if p.format else wire.decode_text(raw, t))
        batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
        return api.Rows(prepared.columns or (), several([batch]))

    async def sync(self) -> None:
        if self.commit_fails:
            self.commit_fails = False
            raise TidemillError("could not commit", sqlstate="40001")
        self.commits += 1
        if self.transaction_status == "I":
            self.portals.end(committed=True)

    async def fail(self) -> None:
        if self.transaction_status == "T":
            self.transaction_status = "E"
            self.portals.fail(frozenset())
        elif self.transaction_status == "I":
            self.portals.end(committed=False)

    async def describe(self, prepared: api.PreparedStatement) -> None:
        del prepared

    async def bind(self, prepared: api.PreparedStatement) -> tuple[Column, ...] | None:
        return prepared.columns

    async def fetch(self, name: str, count: int | None) -> api.Rows:
        raise AssertionError(name, count)

    def resume(self) -> None:
        pass

    async def read_params(self, prepared: api.PreparedStatement, params: Sequence[api.Param]) -> api.Bound:
        return api.Bound(params)

    def events(self, *, parameters: bool = True) -> list[Notice | api.ParameterStatus]:
        events, self._events = self._events, []
        return events

    def on_terminate(self, end: object) -> None:
        self.terminate = end

    def on_event(self, wake: object) -> None:
        self._wake = cast("Callable[[], None]", wake)

    def tell(self, event: Notice | api.ParameterStatus) -> None:
        self._events.append(event)
        self._wake()

    def cancel(self) -> None:
        self.cancelled.set()

    async def close(self) -> None:
        self.closed += 1

    async def wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.cancelled.wait(), seconds)
        except TimeoutError:
            return
        raise QueryCanceled("canceling statement due to user request")

    def begin(self) -> str:
        self.transaction_status = "T"
        return "BEGIN"

    def end(self, tag: str) -> str:
        tag = "ROLLBACK" if self.transaction_status == "E" else tag
        self.transaction_status = "I"
        self.portals.end(committed=True)
        return tag

    def set(self, name: str, value: str) -> str:
        self.settings[name] = value
        self._parameters[name] = value
        self.tell(api.ParameterStatus(name, value))
        return "SET"

    async def slow(self, seconds: float) -> AsyncIterator[pa.RecordBatch]:
        await self.wait(seconds)
        yield numbers(0, 1)

    async def noticed(self, text: str) -> AsyncIterator[pa.RecordBatch]:
        self.tell(Notice(text, detail="as asked", hint="read it"))
        await self.wait(0.2)
        yield numbers(0, 1)

    async def insert(self, seconds: float) -> str:
        """A write that takes its time and does not look at cancels."""
        await asyncio.sleep(seconds)
        self.engine.tables["written"] = ((), [])
        return "INSERT 0 1"

    def copy_in(self, name: str, options: str) -> api.CopyIn:
        columns, batches = self.engine.tables[name]
        sink = _Sink(batches)
        self.sinks.append(sink)
        return api.CopyIn(columns, copy_options(options), sink, name)

    def copy_out(self, name: str, options: str) -> api.CopyOut:
        columns, batches = self.engine.tables[name]
        return api.CopyOut(columns, self._tracked(several(batches)), copy_options(options))


def copy_options(text: str) -> api.CopyOptions:
    options = api.CopyOptions()
    if "csv" in text.lower():
        options = api.CopyOptions(format="csv", delimiter=",", null="")
    if "binary" in text.lower():
        options = api.CopyOptions(format="binary")
    return replace(options, header="header" in text.lower())


def numbers(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(start, stop), pa.int64())], names=["n"])


async def several(batches: Sequence[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        yield batch


async def generated(count: int, *, fail: bool = False) -> AsyncIterator[pa.RecordBatch]:
    for at in range(0, count, 1000):
        yield numbers(at, min(at + 1000, count))
    if fail:
        raise TidemillError("it broke in the middle", sqlstate="22012")


async def wide(count: int) -> AsyncIterator[pa.RecordBatch]:
    """Rows of about 100 kB: what a slow reader must not make pile up. One column n would not fit, so these
    are numbers repeated: 12,500 rows a batch."""
    batch = numbers(0, 12_500)
    for _ in range(count):
        yield batch


def _crash() -> object:
    raise RuntimeError("a secret of the inside")


STEPS: list[tuple[str, Step]] = [
    (r"", lambda s, m, p: api.EmptyQuery()),
    (r"select 1", lambda s, m, p: several([numbers(1, 2)])),
    (r"select \* from (\w+)", lambda s, m, p: several(s.engine.tables[m[1]][1])),
    (r"select generate\((\d+)\)", lambda s, m, p: generated(int(m[1]))),
    (r"select broken\((\d+)\)", lambda s, m, p: generated(int(m[1]), fail=True)),
    (r"select wide\((\d+)\)", lambda s, m, p: wide(int(m[1]))),
    (r"subscribe (\d+)", lambda s, m, p: wide(int(m[1]))),
    (r"select sleep\(([\d.]+)\)", lambda s, m, p: s.slow(float(m[1]))),
    (r"select notice\((\w+)\)", lambda s, m, p: s.noticed(m[1])),
    (r"select crash", lambda s, m, p: _crash()),
    (r"insert slowly ([\d.]+)", lambda s, m, p: s.insert(float(m[1]))),
    (r"insert", lambda s, m, p: "INSERT 0 1"),
    (r"insert unlucky", lambda s, m, p: setattr(s, "commit_fails", True) or "INSERT 0 1"),
    (r"begin.*", lambda s, m, p: s.begin()),
    (r"(commit|end)", lambda s, m, p: s.end("COMMIT")),
    (r"rollback", lambda s, m, p: s.end("ROLLBACK")),
    (r"set (\w+) (?:=|to) '?([^']*)'?", lambda s, m, p: s.set(m[1], m[2])),
    (r"deallocate all", lambda s, m, p: s.statements.clear() or "DEALLOCATE ALL"),
    (r'copy "?(\w+)"? (?:\([^)]*\) )?from stdin\b(.*)', lambda s, m, p: s.copy_in(m[1], m[2])),
    (r'copy "?(\w+)"? to stdout\b(.*)', lambda s, m, p: s.copy_out(m[1], m[2])),
]


Table = tuple[tuple[Column, ...], list[pa.RecordBatch]]


def table(*columns: tuple[str, SqlType], rows: Sequence[Sequence[object]] = ()) -> Table:
    described = tuple(Column(n, t) for n, t in columns)
    if not rows:
        return described, []
    arrays = [pa.array([r[i] for r in rows], arrow_type(c.type)) for i, c in enumerate(described)]
    return described, [pa.RecordBatch.from_arrays(arrays, names=[c.name for c in described])]
