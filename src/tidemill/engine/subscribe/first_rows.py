"""The snapshot of a subscription whose changes can be computed without an initial result.

Called by `subscribe.statement`. The snapshot of a stored relation needs only its parts: it is opened when the
first row is requested (`subscribe.snapshot` reads it). The snapshot of a linear query is opened at once
(`subscribe.query_rows`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.inputs.opened import open_inputs
from tidemill.query.job import Job
from tidemill.query.read import Input
from tidemill.sql.bind import BoundQuery, Branch
from tidemill.subscribe.query_rows import Asked, QueryRows
from tidemill.subscribe.snapshot import LIMITS, SnapshotRows
from tidemill.subscribe.spec import Spec
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession

Collection: TypeAlias = Table | Source | SourceTable | MaterializedView


async def first_rows(
    session: EngineSession, item: Collection, as_of: int, spec: Spec
) -> AsyncIterator[pa.RecordBatch]:
    """Batches whose rows are all of `as_of`, in the order that the spec promises."""
    engine = session.engine
    names = physical_names(item.desc or RelationDesc())

    def small() -> pa.RecordBatch | None:
        snapshot = engine.collections.snapshot(item, as_of)
        if LIMITS.small(snapshot):
            return SnapshotRows(engine.spark, snapshot, names, spec, Job(engine.spark)).next()
        snapshot.close()
        return None

    whole = await asyncio.get_running_loop().run_in_executor(engine.subscriptions.snapshots, small)
    if whole is not None:
        yield whole
        return
    await engine.wait_for_spark(session)
    job = Job(engine.spark, "snapshot")

    def begin() -> SnapshotRows:
        return SnapshotRows(engine.spark, engine.collections.snapshot(item, as_of), names, spec, job)

    starting = engine.workers.submit(begin)
    try:
        rows = await asyncio.wrap_future(starting)
    except BaseException:
        # The thread continues until it notices the cancel, and may still return something to close.
        job.cancel()
        starting.add_done_callback(_abandon)
        raise
    try:
        while (batch := await session.blocking(rows.next)) is not None:
            yield batch
    except BaseException:
        rows.cancel()
        raise
    finally:
        engine.release(rows.close)


async def query_rows(
    session: EngineSession,
    catalog: CatalogState,
    bound: BoundQuery,
    branches: Sequence[Branch],
    as_of: int,
    spec: Spec,
) -> QueryBatches:
    """As `first_rows`, for a linear query with columns. Errors in small inputs are raised here."""
    engine = session.engine
    job = Job(engine.spark, "snapshot")

    def begin() -> QueryRows:
        opened = open_inputs(engine.collections, catalog, bound, as_of)
        inputs = [opened.inputs[branch.placeholder] for branch in branches]
        rows = sum(i.snapshot.rows for i in inputs if isinstance(i, Input))
        asked = Asked(bound.sql(), opened.inputs, rows, opened.close)
        return QueryRows(engine.spark, asked, spec, as_of, job)

    starting = engine.workers.submit(begin)
    try:
        return QueryBatches(session, await asyncio.wrap_future(starting))
    except BaseException:
        job.cancel()
        starting.add_done_callback(_abandon)
        raise


class QueryBatches:
    """The batches of `QueryRows` on the event loop. It can be closed before the first batch was requested."""

    def __init__(self, session: EngineSession, rows: QueryRows) -> None:
        self._session = session
        self._rows: QueryRows | None = rows

    def __aiter__(self) -> QueryBatches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        rows = self._rows
        if rows is None:
            raise StopAsyncIteration
        try:
            batch = await self._session.blocking(rows.next)
        except BaseException:
            rows.cancel()
            await self.aclose()
            raise
        if batch is None:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Idempotent."""
        rows, self._rows = self._rows, None
        if rows is not None:
            self._session.engine.release(rows.close)


def _abandon(starting: Future[SnapshotRows] | Future[QueryRows]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
