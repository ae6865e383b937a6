"""Waiting for a materialized view to have another query: what CREATE OR REPLACE and ALTER ... AS do.

The catalog change begins it, the view service does it in the background (`views.replacing`). The statement
ends when the view has the new query, so that the next statement reads its result. If the statement is
cancelled or its client goes away before, or the new query has no answer, the view keeps its query.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from tidemill.catalog.items import ItemId, MaterializedView
from tidemill.catalog.materialized_ops import EndReplacement, ReplaceQuery
from tidemill.catalog.state import CatalogState
from tidemill.engine.ddl.catalog_changes import CatalogChanges
from tidemill.engine.read.waiting import Readiness
from tidemill.errors import InvalidValue, Notice, QueryCanceled, TidemillError, UndefinedObject

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
# A statement that waits longer than this tells its client so.
NOTICE_AFTER_SECONDS = 1.0


async def replace_query(ddl: CatalogChanges, ready: Readiness, verb: str, op: ReplaceQuery) -> None:
    """Returns when the view has the new query and can be read with it."""
    begun: list[ItemId] = []

    def look(_: CatalogState, new: CatalogState) -> None:
        found = new.get(op.view, MaterializedView).replacement
        begun[:] = [] if found is None else [found.id]

    await ddl.by_itself(verb)
    await ddl.execution.blocking(partial(ddl.transact_now, verb, [op], before=look))
    (new,) = begun
    give_up = partial(_give_up, ddl, op.view, new)
    try:
        await ddl.execution.interrupt.guard(_until_switched(ddl, ready, op.view, new))
    except QueryCanceled as stopped:
        # Unless it was too late for that.
        if await ddl.execution.blocking(give_up):
            stopped.detail = "The view keeps its query."
            raise
        await _until_switched(ddl, ready, op.view, new)
    except asyncio.CancelledError:
        ddl.execution.release(give_up)
        raise


async def _until_switched(ddl: CatalogChanges, ready: Readiness, view_id: ItemId, new: ItemId) -> None:
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    ready.views.hurry(view_id)
    while True:
        # The reason is there before the catalog says that it has ended.
        view = ddl.catalog.state.items.get(view_id)
        if not isinstance(view, MaterializedView):
            raise UndefinedObject(
                "the materialized view was dropped while its query was replaced", sqlstate="42P01"
            )
        if view.replacement is None or view.replacement.id != new:
            break
        if not told and loop.time() - began >= NOTICE_AFTER_SECONDS:
            told = True
            ddl.execution.notice(
                Notice(
                    f'waiting for the new rows of materialized view "{view.name}"',
                    detail="It has those of its old query until then.",
                )
            )
        await asyncio.sleep(POLL_SECONDS)
    if view.switched is not None and view.switched.by == new:
        return
    why = ready.views.why_given_up(new)
    keeps = f'Materialized view "{view.name}" keeps its query.'
    if why is None:
        raise QueryCanceled(
            f'the query of materialized view "{view.name}" was replaced by another statement',
            hint="Run the statement again if its query is the one that you want.",
        )
    raise TidemillError(
        why.primary,
        detail=keeps if why.detail is None else f"{why.detail} {keeps}",
        hint=why.hint,
        sqlstate=why.sqlstate,
    )


def _give_up(ddl: CatalogChanges, view: ItemId, new: ItemId) -> bool:
    """Whether the view keeps its query. Blocks."""
    try:
        ddl.catalog.transact([EndReplacement(view, new, done=False)])
    except (UndefinedObject, InvalidValue):
        found = ddl.catalog.state.items.get(view)
        return not (
            isinstance(found, MaterializedView) and found.switched is not None and found.switched.by == new
        )
    except (TidemillError, OSError) as e:
        log.warning("a replacement that nobody waits for goes on: %s", e)
        return False
    return True
