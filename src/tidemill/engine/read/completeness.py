"""Sources and materialized views as inputs of a query: when they are complete.

A table is complete at every time that the oracle hands out for reading. A source is complete where its ticks
have come: a strictly serializable read waits for that, a serializable one takes the latest time at which all
of its inputs are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.items import MaterializedView
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.waiting import (
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
    from tidemill.engine.session.session import EngineSession

# A statement that waits longer than this for a source tells its client which.
NOTICE_AFTER_SECONDS = 1.0
# So often it tells it of something else (the source was catching up and is now stalled): one that comes and
# goes would otherwise fill the client's screen.
MAX_NOTICES = 5
# So long a statement waits for a materialized view: it is late by its own work alone, or cannot be kept up to
# date at all. (A source is waited for until statement_timeout: its upstream may come back.)
MAX_VIEW_SECONDS = 300.0
# How often what is waited for is looked at.
POLL_SECONDS = 0.01


def source_inputs(catalog: CatalogState, bound: BoundQuery) -> list[SourceRelation]:
    """The sources, their tables and progress relations, and the materialized views that the query reads."""
    check_timelines(catalog, bound)
    found = [catalog.relation(i) for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    return [item for item in found if isinstance(item, SourceRelation)]


def latest_complete(session: EngineSession, inputs: Sequence[SourceRelation], now: int) -> int:
    """The latest time, at most `now`, at which all inputs are complete; `now` where one cannot be read at
    all yet, for then it must be waited for anyway."""
    uppers = [session.engine.collections.readable(item) for item in inputs]
    if not uppers or 0 in uppers:
        return now
    return min(now, min(uppers) - 1)


async def until_readable(session: EngineSession, inputs: Sequence[SourceRelation]) -> None:
    """Waits until every input can be read at all. Before a time is chosen: it will be readable from the
    moment on at which it has first caught up."""
    await until_complete(session, inputs, 0)


async def until_complete(session: EngineSession, inputs: Sequence[SourceRelation], ts: int) -> None:
    """Waits until every input is complete at `ts`; for a materialized view not for ever, and not at all for a
    source that has failed permanently. A statement that is stopped meanwhile is told what it waited for."""
    try:
        await session.interrupt.guard(_until(session, inputs, ts))
    except QueryCanceled as stopped:
        explain(stopped, session.engine, inputs, ts)
        raise


async def _until(session: EngineSession, inputs: Sequence[SourceRelation], ts: int) -> None:
    engine = session.engine
    loop = asyncio.get_running_loop()
    began = loop.time()
    told: list[str] = []
    for item in inputs:
        if isinstance(item, MaterializedView) and engine.views.readable(item) <= ts:
            engine.views.hurry(item.id)
        while engine.collections.readable(item) <= ts:
            failure = permanent_failure(engine, item, ts)
            if failure is not None:
                raise failure
            waited = loop.time() - began
            if isinstance(item, MaterializedView) and waited >= MAX_VIEW_SECONDS:
                raise too_late(engine, item, ts, MAX_VIEW_SECONDS)
            if len(told) < MAX_NOTICES and waited >= NOTICE_AFTER_SECONDS:
                notice = waiting_for(engine, item, ts)
                if notice.text not in told:
                    told.append(notice.text)
                    session.notice(notice)
            await asyncio.sleep(POLL_SECONDS)
