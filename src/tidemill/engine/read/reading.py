"""Execution of a bound query: choose its time, open every input at that time, stream the rows.

This module and the oracle provide strict serializability. The time of a read is at or after every write that
this server has confirmed. All inputs are read at that time, and nothing at or before it can still change.
Snapshots hold `since` until the rows are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Table, View
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import close_batches
from tidemill.engine.read.completeness import latest_complete, source_inputs, until_complete, until_readable
from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.timelines import choose_on
from tidemill.engine.read.waiting import SourceRelation, explain_time
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.plan import Value
from tidemill.errors import LimitExceeded, Notice, QueryCanceled, TidemillError, Unsupported
from tidemill.inputs.collections import relation_dropped
from tidemill.inputs.opened import OpenedInputs, open_inputs
from tidemill.inputs.timelines import timeline_of
from tidemill.query.job import Job
from tidemill.query.run import ResultStream, run
from tidemill.sql.bind import BoundQuery, SessionInfo, constant_rows, substitute
from tidemill.time.shown import show_time
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import RelationDesc

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession

# A statement that waits longer than this for a time or for Spark sends its client a notice with the reason.
NOTICE_AFTER_SECONDS = 1.0
# Constant rows up to this many are made on the event loop, in microseconds.
FEW_ROWS = 100
# The polling interval of a read AS OF a future time.
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class AsOfTime:
    """AS OF `time`; with `at_least`, that time or any later one."""

    time: int
    at_least: bool


async def choose_time(
    session: EngineSession, as_of: AsOfTime | None, sources: Sequence[SourceRelation] = ()
) -> int:
    """The time to read at. Waits for an explicit time in the future. The caller checks whether the sources
    are complete at that time."""
    timeline = timeline_of(sources)
    if timeline is not None:
        return choose_on(session, timeline, as_of, sources)
    transaction = session.current
    if as_of is None:
        if transaction.read_ts is None:
            now = await session.blocking(session.engine.oracle.read_ts)
            serializable = transaction.isolation == "serializable"
            transaction.read_ts = latest_complete(session, sources, now) if serializable else now
        return transaction.read_ts
    if transaction.read_ts is not None and transaction.explicit:
        if as_of.time > transaction.read_ts or (as_of.time < transaction.read_ts and not as_of.at_least):
            raise TidemillError(
                "AS OF does not match the time of the transaction",
                detail=f"The transaction reads at {show_time(transaction.read_ts)}, "
                f"the statement asks for {show_time(as_of.time)}.",
                hint="All reads of a transaction happen at one time, chosen by its first statement.",
                sqlstate="25000",
            )
        return transaction.read_ts
    now = await session.blocking(session.engine.oracle.read_ts)
    chosen = max(now, as_of.time) if as_of.at_least else as_of.time
    if chosen > now:
        await until_come(session, chosen, sources)
    if transaction.explicit:
        transaction.read_ts = chosen
    return chosen


async def until_come(session: EngineSession, time: int, sources: Sequence[SourceRelation]) -> None:
    """Waits until `time`, on the server's timeline, has passed. If the statement is stopped, its error says
    what it waited for."""
    try:
        await session.interrupt.guard(_come(session, time))
    except QueryCanceled as stopped:
        explain_time(stopped, session.engine, sources, _waiting(time, session.engine.oracle.now()))
        raise


async def _come(session: EngineSession, time: int) -> None:
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    while (now := await session.blocking(session.engine.oracle.read_ts)) < time:
        if not told and loop.time() - began >= NOTICE_AFTER_SECONDS:
            told = True
            session.notice(_waiting(time, now))
        await asyncio.sleep(min(max((time - now) / 1000, 0.001), POLL_SECONDS))


def _waiting(time: int, now: int) -> Notice:
    return Notice(
        f"waiting for time {show_time(time)}",
        detail=f"It is {show_time(now)} now; the query is answered when the time is complete.",
    )


async def answer(
    session: EngineSession,
    catalog: CatalogState,
    bound: BoundQuery,
    as_of: AsOfTime | None = None,
    params: Sequence[Value] = (),
    *,
    own_writes: bool = False,
) -> AsyncIterator[pa.RecordBatch]:
    """The query's rows. Everything that can fail before the first row fails before the iterator is
    returned."""
    if not bound.inputs:
        # Most depend on nothing: a coroutine for the moment would cost a small statement too much.
        info = await _moment(session, bound, as_of) if bound.determinism.found else bound.session
        return await constant(session, bound, params, info)
    if as_of is not None and any(i in SYSTEM_RELATIONS_BY_ID for i in bound.inputs.values()):
        raise Unsupported(
            "system relations cannot be read AS OF a time", hint="They show what is now; leave AS OF out."
        )
    await session.engine.wait_for_spark(session)
    sources = source_inputs(catalog, bound)
    await until_readable(session, sources)
    ts = await choose_time(session, as_of, sources)
    if as_of is not None:
        _check_there(session, catalog, bound)
    await until_complete(session, sources, ts)
    fixed = _fixed(bound, params, replace(session.info(), mz_now=ts))

    def open_() -> OpenedInputs:
        pending = session.current.pending if own_writes else None
        system = session.engine.system_rows(session, catalog)
        collections = session.engine.collections
        return open_inputs(collections, catalog, bound, ts, system=system, pending=pending)

    return await _start(session, fixed, open_)


def _check_there(session: EngineSession, catalog: CatalogState, bound: BoundQuery) -> None:
    """Checks that no input was dropped while the query waited for a future time. A dropped input has no rows
    at that time."""
    there = session.engine.catalog.state.items
    for relation in bound.inputs.values():
        if relation not in there and relation not in SYSTEM_RELATIONS_BY_ID:
            raise relation_dropped(catalog, catalog.relation(relation))


async def constant(
    session: EngineSession, bound: BoundQuery, params: Sequence[Value], info: SessionInfo
) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a query without inputs, at the time in `info`."""
    table = await _constant_table(session, bound, params, info)
    if table is not None:
        return stream(table)
    await session.engine.wait_for_spark(session)
    return await _start(session, _fixed(bound, params, info), OpenedInputs)


async def _moment(session: EngineSession, bound: BoundQuery, as_of: AsOfTime | None = None) -> SessionInfo:
    """The session state that a query without inputs may read. A plan is made again when a variable changes,
    so a query that does not read the time may keep the values that it was bound with."""
    if bound.uses_mz_now:
        return replace(session.info(), mz_now=await choose_time(session, as_of))
    return session.info() if bound.uses_now else bound.session


def _fixed(bound: BoundQuery, params: Sequence[Value], info: SessionInfo) -> Callable[[], BoundQuery]:
    """Returns the query with its parameters' values; may be slow for a long list of rows."""
    if not params:
        return lambda: bound.with_session(info)
    return lambda: substitute(bound, [p.scalar for p in params], info)


async def _constant_table(
    session: EngineSession, bound: BoundQuery, params: Sequence[Value], info: SessionInfo
) -> pa.Table | None:
    """The rows of a query that needs neither shards nor Spark; None for any other."""
    if bound.inputs or bound.constants is None:
        return None
    scalars = [p.scalar for p in params]
    if bound.constants.rows <= FEW_ROWS:
        return constant_rows(bound, info, scalars)
    return await session.blocking(constant_rows, bound, info, scalars)


async def _start(
    session: EngineSession, fixed: Callable[[], BoundQuery], open_: Callable[[], OpenedInputs]
) -> AsyncIterator[pa.RecordBatch]:
    """Runs the query that `fixed` returns, on a worker thread."""
    host = session.engine.spark
    job = Job(host)

    def begin() -> tuple[ResultStream, OpenedInputs]:
        bound = fixed()
        opened = open_()
        try:
            return run(host, bound.sql(), opened.inputs, bound.columns, job=job), opened
        except BaseException:
            opened.close()
            raise

    starting = session.engine.workers.submit(begin)
    try:
        return _Batches(
            session, *await session.interrupt.guard(asyncio.wrap_future(starting), stop=job.cancel)
        )
    except BaseException:
        # A cancel does not stop the thread at once. The thread continues until it notices the cancel, and may
        # still return rows that have no reader.
        starting.add_done_callback(_abandon)
        raise


def _abandon(starting: Future[tuple[ResultStream, OpenedInputs]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        stream, opened = starting.result()
        stream.close()
        opened.close()


class _Batches:
    """The rows as they arrive, and the holds on them until they are read or abandoned. (A generator that is
    never started would never release its holds.)"""

    def __init__(self, session: EngineSession, stream: ResultStream, opened: OpenedInputs) -> None:
        self._session = session
        self._stream = stream
        self._opened = opened
        self._released = False

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._released:
            raise StopAsyncIteration
        try:
            batch = await self._session.blocking(next, self._stream, None)
        except BaseException:
            self._stream.cancel()
            await self.aclose()
            raise
        if batch is None:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Returns at once; closing may wait for the JVM. Idempotent."""
        if not self._released:
            self._released = True
            self._session.engine.release(self._close)

    def _close(self) -> None:
        self._stream.close()
        self._opened.close()


async def collect(
    session: EngineSession,
    catalog: CatalogState,
    bound: BoundQuery,
    limit: int,
    params: Sequence[Value] = (),
) -> pa.Table:
    """All rows of a query that a statement needs in order to write, including the transaction's own
    writes."""
    if not bound.inputs:
        constant = await _constant_table(session, bound, params, await _moment(session, bound))
        if constant is not None:
            return constant
    batches: list[pa.RecordBatch] = []
    size = 0
    rows = await answer(session, catalog, bound, params=params, own_writes=True)
    try:
        while True:
            try:
                batch = await session.interrupt.guard(anext(rows))
            except StopAsyncIteration:
                break
            size += batch.nbytes
            if size > limit:
                raise LimitExceeded(
                    f"the rows that the statement reads exceed max_transaction_size ({limit} bytes)",
                    hint="Write in several statements, each over a part of the rows.",
                    sqlstate="54000",
                )
            batches.append(batch)
    finally:
        await close_batches(rows)
    # By position: a query's column names may repeat, and constants have generated names.
    schema = arrow_schema(RelationDesc(tuple(replace(c, name=f"c{n}") for n, c in enumerate(bound.columns))))
    return pa.Table.from_batches(
        [b.rename_columns(schema.names).cast(schema) for b in batches], schema=schema
    )


def tables_under(catalog: CatalogState, bound: BoundQuery) -> Sequence[Table]:
    """The tables that the query's rows depend on: those that it reads, and those under materialized views."""
    found: dict[str, Table] = {}
    todo = [i for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    while todo:
        item = catalog.relation(todo.pop())
        if isinstance(item, Table):
            found[item.id] = item
        elif isinstance(item, View | MaterializedView):
            todo += item.depends_on
    return list(found.values())


def view_inputs(catalog: CatalogState, bound: BoundQuery) -> Sequence[MaterializedView]:
    """The materialized views that the query reads."""
    found = [catalog.relation(i) for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    return [v for v in found if isinstance(v, MaterializedView)]


def table_inputs(catalog: CatalogState, bound: BoundQuery) -> Sequence[Table]:
    """The tables that the query reads."""
    found = [catalog.relation(i) for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    return [t for t in found if isinstance(t, Table)]
