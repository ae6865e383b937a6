"""Completeness of sources and materialized views as inputs of a query.

A table is complete at every time that the oracle hands out for reading. A source is complete before the upper
that its ticks have reached. A strictly serializable read waits for the source; a serializable read takes the
latest time at which all of its inputs are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.items import MaterializedView
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.waiting import (
    Readiness,
    SourceRelation,
    explain,
    permanent_failure,
    too_late,
    waiting_for,
)
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.errors import QueryCanceled
from tidemill.inputs.timelines import check_timelines
from tidemill.sql.bind import BoundQuery

if TYPE_CHECKING:
    from tidemill.engine.read.reader import Reader

# A statement that waits longer than this for a source sends its client a notice that names the source.
NOTICE_AFTER_SECONDS = 1.0
# The minimum interval between notices with different reasons (the source was catching up and is now stalled).
# A source that changes state often would otherwise fill the client's screen; a snapshot has ten steps.
MAX_NOTICES = 15
# The longest wait for a materialized view, which is late because of its own work only, or cannot be
# maintained at all. (Waits for sources are limited by statement_timeout only: the upstream may recover.)
MAX_VIEW_SECONDS = 300.0
# The polling interval of a wait.
POLL_SECONDS = 0.01


def source_inputs(catalog: CatalogState, bound: BoundQuery) -> list[SourceRelation]:
    """The sources, their tables and progress relations, and the materialized views that the query reads."""
    check_timelines(catalog, bound)
    found = [catalog.relation(i) for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    return [item for item in found if isinstance(item, SourceRelation)]


def latest_complete(ready: Readiness, inputs: Sequence[SourceRelation], now: int) -> int:
    """The latest time, at most `now`, at which all inputs are complete. Returns `now` if an input is not
    readable yet, because the statement must wait for it anyway."""
    uppers = [ready.collections.readable(item) for item in inputs]
    if not uppers or 0 in uppers:
        return now
    return min(now, min(uppers) - 1)


async def until_readable(reader: Reader, inputs: Sequence[SourceRelation]) -> None:
    """Waits until every input is readable. Called before a time is chosen: an input is readable from the time
    at which it first caught up."""
    await until_complete(reader, inputs, 0)


async def until_complete(reader: Reader, inputs: Sequence[SourceRelation], ts: int) -> None:
    """Waits until every input is complete at `ts`. The wait for a materialized view is limited, and a source
    that has failed permanently is not waited for. If the statement is stopped, its error says what it waited
    for."""
    try:
        await reader.execution.interrupt.guard(_until(reader, inputs, ts))
    except QueryCanceled as stopped:
        explain(stopped, reader.readiness, inputs, ts)
        raise


async def _until(reader: Reader, inputs: Sequence[SourceRelation], ts: int) -> None:
    ready = reader.readiness
    loop = asyncio.get_running_loop()
    began = loop.time()
    told: list[str] = []
    for item in inputs:
        if isinstance(item, MaterializedView) and ready.views.readable(item) <= ts:
            ready.views.hurry(item.id)
        while ready.collections.readable(item) <= ts:
            failure = permanent_failure(ready, item, ts)
            if failure is not None:
                raise failure
            waited = loop.time() - began
            if isinstance(item, MaterializedView) and waited >= MAX_VIEW_SECONDS:
                raise too_late(ready, item, ts, MAX_VIEW_SECONDS)
            if len(told) < MAX_NOTICES and waited >= NOTICE_AFTER_SECONDS:
                notice = waiting_for(ready, item, ts)
                if notice.text not in told:
                    told.append(notice.text)
                    reader.execution.notice(notice)
            await asyncio.sleep(POLL_SECONDS)
