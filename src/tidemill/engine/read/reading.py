"""Execution of a bound query: choose its time, open every input at that time, stream the rows.

This module and the oracle provide strict serializability. The time of a read is at or after every write that
this server has confirmed. All inputs are read at that time, and nothing at or before it can still change.
Snapshots hold `since` until the rows are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Table, View
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import close_batches
from tidemill.engine.read.completeness import latest_complete, source_inputs, until_complete, until_readable
from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.thread_batches import ThreadBatches
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
    from tidemill.engine.read.reader import Reader

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


async def choose_time(reader: Reader, as_of: AsOfTime | None, sources: Sequence[SourceRelation] = ()) -> int:
    """The time to read at. Waits for an explicit time in the future. The caller checks whether the sources
    are complete at that time."""
    timeline = timeline_of(sources)
    if timeline is not None:
        return choose_on(reader, timeline, as_of, sources)
    transaction = reader.transactions.current
    if as_of is None:
        if transaction.read_ts is None:
            now = await reader.now()
            serializable = transaction.isolation == "serializable"
            transaction.read_ts = latest_complete(reader.readiness, sources, now) if serializable else now
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
    now = await reader.now()
    chosen = max(now, as_of.time) if as_of.at_least else as_of.time
    if chosen > now:
        await until_come(reader, chosen, sources)
    if transaction.explicit:
        transaction.read_ts = chosen
    return chosen


async def until_come(reader: Reader, time: int, sources: Sequence[SourceRelation]) -> None:
    """Waits until `time`, on the server's timeline, has passed. If the statement is stopped, its error says
    what it waited for."""
    try:
        await reader.execution.interrupt.guard(_come(reader, time))
    except QueryCanceled as stopped:
        explain_time(stopped, reader.readiness, sources, _waiting(time, reader.runtime.oracle.now()))
        raise


async def _come(reader: Reader, time: int) -> None:
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    while (now := await reader.now()) < time:
        if not told and loop.time() - began >= NOTICE_AFTER_SECONDS:
            told = True
            reader.execution.notice(_waiting(time, now))
        await asyncio.sleep(min(max((time - now) / 1000, 0.001), POLL_SECONDS))


def _waiting(time: int, now: int) -> Notice:
    return Notice(
        f"waiting for time {show_time(time)}",
        detail=f"It is {show_time(now)} now; the query is answered when the time is complete.",
    )


async def answer(
    reader: Reader,
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
        info = await _moment(reader, bound, as_of) if bound.determinism.found else bound.session
        return await constant(reader, bound, params, info)
    if as_of is not None and any(i in SYSTEM_RELATIONS_BY_ID for i in bound.inputs.values()):
        raise Unsupported(
            "system relations cannot be read AS OF a time", hint="They show what is now; leave AS OF out."
        )
    await reader.wait_for_spark()
    sources = source_inputs(catalog, bound)
    await until_readable(reader, sources)
    ts = await choose_time(reader, as_of, sources)
    if as_of is not None:
        _check_there(reader, catalog, bound)
    await until_complete(reader, sources, ts)
    fixed = _fixed(bound, params, replace(reader.values.info(), mz_now=ts))

    def open_() -> OpenedInputs:
        pending = reader.transactions.current.pending if own_writes else None
        system = reader.system_rows(catalog)
        collections = reader.runtime.collections
        return open_inputs(collections, catalog, bound, ts, system=system, pending=pending)

    return await _start(reader, fixed, open_)


def _check_there(reader: Reader, catalog: CatalogState, bound: BoundQuery) -> None:
    """Checks that no input was dropped while the query waited for a future time. A dropped input has no rows
    at that time."""
    there = reader.readiness.catalog.state.items
    for relation in bound.inputs.values():
        if relation not in there and relation not in SYSTEM_RELATIONS_BY_ID:
            raise relation_dropped(catalog, catalog.relation(relation))


async def constant(
    reader: Reader, bound: BoundQuery, params: Sequence[Value], info: SessionInfo
) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a query without inputs, at the time in `info`."""
    table = await _constant_table(reader, bound, params, info)
    if table is not None:
        return stream(table)
    await reader.wait_for_spark()
    return await _start(reader, _fixed(bound, params, info), OpenedInputs)


async def _moment(reader: Reader, bound: BoundQuery, as_of: AsOfTime | None = None) -> SessionInfo:
    """The session state that a query without inputs may read. A plan is made again when a variable changes,
    so a query that does not read the time may keep the values that it was bound with."""
    if bound.uses_mz_now:
        return replace(reader.values.info(), mz_now=await choose_time(reader, as_of))
    return reader.values.info() if bound.uses_now else bound.session


def _fixed(bound: BoundQuery, params: Sequence[Value], info: SessionInfo) -> Callable[[], BoundQuery]:
    """Returns the query with its parameters' values; may be slow for a long list of rows."""
    if not params:
        return lambda: bound.with_session(info)
    return lambda: substitute(bound, [p.scalar for p in params], info)


async def _constant_table(
    reader: Reader, bound: BoundQuery, params: Sequence[Value], info: SessionInfo
) -> pa.Table | None:
    """The rows of a query that needs neither shards nor Spark; None for any other."""
    if bound.inputs or bound.constants is None:
        return None
    scalars = [p.scalar for p in params]
    if bound.constants.rows <= FEW_ROWS and not bound.constants.calls:
        return constant_rows(bound, info, scalars)
    return await reader.execution.blocking(constant_rows, bound, info, scalars)


async def _start(
    reader: Reader, fixed: Callable[[], BoundQuery], open_: Callable[[], OpenedInputs]
) -> AsyncIterator[pa.RecordBatch]:
    """Runs the query that `fixed` returns, on a worker thread."""
    host = reader.runtime.spark
    job = Job(host)

    def begin() -> tuple[ResultStream, OpenedInputs]:
        bound = fixed()
        opened = open_()
        try:
            return run(host, bound.sql(), opened.inputs, bound.columns, job=job), opened
        except BaseException:
            opened.close()
            raise

    opening = reader.execution.open(begin, _abandon, stop=job.cancel)
    stream, opened = await reader.execution.interrupt.guard(opening)
    next_ = partial(next, stream, None)
    return ThreadBatches(reader.execution, next_, stream.cancel, partial(_abandon, (stream, opened)))


def _abandon(begun: tuple[ResultStream, OpenedInputs]) -> None:
    for part in begun:
        part.close()


async def collect(
    reader: Reader,
    catalog: CatalogState,
    bound: BoundQuery,
    limit: int,
    params: Sequence[Value] = (),
) -> pa.Table:
    """All rows of a query that a statement needs in order to write, including the transaction's own
    writes."""
    if not bound.inputs:
        constant = await _constant_table(reader, bound, params, await _moment(reader, bound))
        if constant is not None:
            return constant
    batches: list[pa.RecordBatch] = []
    size = 0
    rows = await answer(reader, catalog, bound, params=params, own_writes=True)
    try:
        while True:
            try:
                batch = await reader.execution.interrupt.guard(anext(rows))
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
