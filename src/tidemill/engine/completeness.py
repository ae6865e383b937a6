"""Sources and materialized views as inputs of a query: when they are complete.

A table is complete at every time that the oracle hands out for reading. A source is complete where its ticks
have come: a strictly serializable read waits for that, a serializable one takes the latest time at which all
of its inputs are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from tidemill.catalog.items import MaterializedView, Source, SourceProgress, SourceTable
from tidemill.catalog.state import CatalogState
from tidemill.engine.system_relations import SYSTEM_RELATIONS_BY_ID
from tidemill.errors import Notice, Unavailable
from tidemill.ingest.status import State
from tidemill.sql.bind import BoundQuery

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine
    from tidemill.engine.session import EngineSession

# What is complete where somebody has brought it, and not at every time that can be read at.
SourceRelation: TypeAlias = Source | SourceTable | SourceProgress | MaterializedView

# A statement that waits longer than this for a source tells its client which.
NOTICE_AFTER_SECONDS = 1.0
# So long a statement waits for a materialized view: it is late by its own work alone, or cannot be kept up to
# date at all. (A source is waited for until statement_timeout: its upstream may come back.)
MAX_VIEW_SECONDS = 300.0
# How often what is waited for is looked at.
POLL_SECONDS = 0.01


def source_inputs(catalog: CatalogState, bound: BoundQuery) -> list[SourceRelation]:
    """The sources, their tables and progress relations, and the materialized views that the query reads."""
    found = [catalog.relation(i) for i in bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
    return [item for item in found if isinstance(item, SourceRelation)]


def latest_complete(session: EngineSession, inputs: Sequence[SourceRelation], now: int) -> int:
    """The latest time, at most `now`, at which all inputs are complete; `now` where one cannot be read at
    all yet, for then it must be waited for anyway."""
    uppers = [readable(session.engine, item) for item in inputs]
    if not uppers or 0 in uppers:
        return now
    return min(now, min(uppers) - 1)


async def until_readable(session: EngineSession, inputs: Sequence[SourceRelation]) -> None:
    """Waits until every input can be read at all. Before a time is chosen: it will be readable from the
    moment on at which it has first caught up."""
    await until_complete(session, inputs, 0)


async def until_complete(session: EngineSession, inputs: Sequence[SourceRelation], ts: int) -> None:
    """Waits until every input is complete at `ts`; for a materialized view not for ever."""
    engine = session.engine
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    for item in inputs:
        if isinstance(item, MaterializedView) and engine.views.readable(item) <= ts:
            engine.views.hurry(item.id)
        while readable(engine, item) <= ts:
            waited = loop.time() - began
            if isinstance(item, MaterializedView) and waited >= MAX_VIEW_SECONDS:
                raise _too_late(engine, item, ts)
            if not told and waited >= NOTICE_AFTER_SECONDS:
                told = True
                session.notice(_waiting(session, item, ts))
            await asyncio.sleep(POLL_SECONDS)


def readable(engine: TidemillEngine, item: SourceRelation) -> int:
    """The relation is complete before it; 0 when it cannot be read at all yet."""
    if isinstance(item, MaterializedView):
        return engine.views.readable(item)
    return engine.ingestion.readable(item)


def _too_late(engine: TidemillEngine, item: MaterializedView, ts: int) -> Unavailable:
    status, until = engine.views.report(item).status, engine.views.readable(item)
    return Unavailable(
        f'materialized view "{item.name}" is not complete at {ts} after {MAX_VIEW_SECONDS:g} s',
        detail=status.error
        or (f"It is complete before {until}." if until else "It has not got its first rows yet."),
        hint="SELECT * FROM mz_internal.mz_materialized_view_statuses tells how it is; SET "
        "transaction_isolation = 'serializable' reads at the latest time that is complete.",
    )


def _waiting_for_view(engine: TidemillEngine, item: MaterializedView, ts: int) -> Notice:
    status, until = engine.views.report(item).status, engine.views.readable(item)
    if status.state is State.STALLED:
        return Notice(
            f'waiting for materialized view "{item.name}", which is stalled: {status.error}',
            "WARNING",
            detail=status.detail,
            hint=status.hint or "SELECT * FROM mz_internal.mz_materialized_view_statuses tells how they are.",
        )
    if not until:
        return Notice(f'waiting for materialized view "{item.name}" to get its first rows')
    return Notice(
        f'waiting for materialized view "{item.name}" to be complete at {ts}',
        detail=f"It is complete before {until} now.",
        hint="SET transaction_isolation = 'serializable' reads at the latest time that is complete.",
    )


def _waiting(session: EngineSession, item: SourceRelation, ts: int) -> Notice:
    if isinstance(item, MaterializedView):
        return _waiting_for_view(session.engine, item, ts)
    ingestion = session.engine.ingestion
    status, machine = ingestion.report(item).status, ingestion.machine(item)
    if status.state is State.STALLED:
        return Notice(
            f'waiting for "{item.name}", whose source is stalled: {status.error}',
            "WARNING",
            detail=status.detail,
            hint=status.hint or "SELECT * FROM mz_internal.mz_source_statuses tells how the sources are.",
        )
    if machine is None or not machine.hydrated:
        behind = None if machine is None else machine.behind
        left = "" if behind is None else f" {behind} records are still to be read."
        return Notice(
            f'waiting for "{item.name}" to catch up with its upstream for the first time',
            detail=f"It can be read from then on.{left}",
        )
    return Notice(
        f'waiting for "{item.name}" to be complete at {ts}',
        detail=f"It is complete before {ingestion.readable(item)} now.",
        hint="SET transaction_isolation = 'serializable' reads at the latest time that is complete.",
    )
