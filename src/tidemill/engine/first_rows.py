"""The snapshot of a subscription to a stored relation, opened when its first row is asked for.

Called by `subscribing` for relations whose parts are all that is needed; how it is read is in
`subscribe.snapshot`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table
from tidemill.engine.inputs import snapshot_of
from tidemill.query.job import Job
from tidemill.subscribe.snapshot import LIMITS, SnapshotRows
from tidemill.subscribe.spec import Spec
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession

Collection: TypeAlias = Table | Source | SourceTable | MaterializedView


async def first_rows(
    session: EngineSession, item: Collection, as_of: int, spec: Spec
) -> AsyncIterator[pa.RecordBatch]:
    """Batches whose rows are all of `as_of`, in the order that the spec promises."""
    engine = session.engine
    names = physical_names(item.desc or RelationDesc())

    def small() -> pa.RecordBatch | None:
        snapshot = snapshot_of(engine, item, as_of)
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
        return SnapshotRows(engine.spark, snapshot_of(engine, item, as_of), names, spec, job)

    starting = engine.workers.submit(begin)
    try:
        rows = await asyncio.wrap_future(starting)
    except BaseException:
        # The thread goes on until it notices, and may still come back with something to close.
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


def _abandon(starting: Future[SnapshotRows]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
