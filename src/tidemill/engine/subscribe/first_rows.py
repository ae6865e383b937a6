"""The snapshot of a subscription whose changes can be computed without an initial result.

Called by `subscribe.statement`. The snapshot of a stored relation needs only its parts: it is opened when the
first row is requested (`subscribe.snapshot` reads it). The snapshot of a linear query is opened at once
(`subscribe.query_rows`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.thread_batches import ThreadBatches
from tidemill.inputs.opened import open_inputs
from tidemill.query.job import Job
from tidemill.query.read import Input
from tidemill.sql.bind import BoundQuery
from tidemill.sql.plan.linear import linear_parts
from tidemill.subscribe.query_rows import Asked, QueryRows
from tidemill.subscribe.snapshot import LIMITS, SnapshotRows
from tidemill.subscribe.spec import Spec
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

Collection: TypeAlias = Table | Source | SourceTable | MaterializedView


async def first_rows(
    reader: Reader, item: Collection, as_of: int, spec: Spec
) -> AsyncIterator[pa.RecordBatch]:
    """Batches whose rows are all of `as_of`, in the order that the spec promises."""
    execution, runtime = reader.execution, reader.runtime
    names = physical_names(item.desc or RelationDesc())

    def small() -> pa.RecordBatch | None:
        snapshot = runtime.collections.snapshot(item, as_of)
        if LIMITS.small(snapshot):
            return SnapshotRows(runtime.spark, snapshot, names, spec, Job(runtime.spark)).next()
        snapshot.close()
        return None

    whole = await asyncio.get_running_loop().run_in_executor(reader.subscriptions.snapshots, small)
    if whole is not None:
        yield whole
        return
    await reader.wait_for_spark()
    job = Job(runtime.spark, "snapshot")

    def begin() -> SnapshotRows:
        return SnapshotRows(runtime.spark, runtime.collections.snapshot(item, as_of), names, spec, job)

    rows = await execution.open(begin, SnapshotRows.close, stop=job.cancel)
    batches = ThreadBatches(execution, rows.next, rows.cancel, rows.close)
    try:
        async for batch in batches:
            yield batch
    except BaseException:
        rows.cancel()
        raise
    finally:
        await batches.aclose()


async def query_rows(
    reader: Reader,
    catalog: CatalogState,
    bound: BoundQuery,
    as_of: int,
    spec: Spec,
) -> ThreadBatches:
    """As `first_rows`, for a linear query with columns. Errors in small inputs are raised here."""
    runtime = reader.runtime
    job = Job(runtime.spark, "snapshot")

    def begin() -> QueryRows:
        opened = open_inputs(runtime.collections, catalog, bound, as_of)
        inputs = [opened.inputs[part.placeholder] for part in linear_parts(bound.plan)]
        rows = sum(i.snapshot.rows for i in inputs if isinstance(i, Input))
        timed = bound.with_session(replace(bound.session, mz_now=as_of))
        asked = Asked(timed.sql(), opened.inputs, rows, opened.close)
        return QueryRows(runtime.spark, asked, spec, as_of, job)

    rows = await reader.execution.open(begin, QueryRows.close, job.cancel)
    return ThreadBatches(reader.execution, rows.next, rows.cancel, rows.close)
