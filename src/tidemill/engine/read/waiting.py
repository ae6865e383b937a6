"""The notices and errors of statements that wait for their inputs.

Called by `completeness`, which waits. A source may wait for its upstream without end, so the client
must learn which source it is and what is wrong. It gets a notice while it waits. Most programs read
only errors, so the detail of the error that ends the wait (time-out or cancel) has the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tidemill.catalog.items import MaterializedView, Source, SourceProgress, SourceTable, View
from tidemill.errors import Notice, QueryCanceled, TidemillError, Unavailable, UndefinedObject
from tidemill.ingest.status import RunState
from tidemill.inputs.timelines import show_time_of
from tidemill.sources.contract import SnapshotProgress

if TYPE_CHECKING:
    from tidemill.catalog.store import Catalog
    from tidemill.ingest.service import Ingestion
    from tidemill.inputs.collections import Collections
    from tidemill.views.service import Views

# Kinds of relations whose upper depends on a source's progress: they may be incomplete at a readable time.
SourceRelation: TypeAlias = Source | SourceTable | SourceProgress | MaterializedView

# A query may read hundreds of relations, and all of them may be late for one reason.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Readiness:
    """The parts that know up to when relations are complete, and why they are late. One per engine."""

    collections: Collections
    ingestion: Ingestion
    views: Views
    catalog: Catalog


_STATUSES = "SELECT * FROM mz_internal.mz_source_statuses tells how the sources are."
_VIEW_STATUSES = "SELECT * FROM mz_internal.mz_materialized_view_statuses tells how they are."
_LATEST = "SET transaction_isolation = 'serializable' reads at the latest time that is complete."


def waiting_for(ready: Readiness, item: SourceRelation, ts: int) -> Notice:
    """The reason why a relation is not complete at `ts`, as far as it is known."""
    if isinstance(item, MaterializedView):
        return _for_view(ready, item, ts)
    stalled = _stalled(ready, item)
    if stalled is not None:
        return stalled
    machine, until = ready.ingestion.machine(item), ready.ingestion.readable(item)
    if machine is None or not machine.hydrated or (machine.begins_table and _begins(item, until)):
        snapshot = None if machine is None else machine.source.snapshot_progress()
        if snapshot is not None and snapshot.bytes_known:
            return _reads_snapshot(item, snapshot)
        behind = None if machine is None or machine.source.counts != "records" else machine.behind
        left = "" if behind is None else f" {behind} records are still to be read."
        return Notice(
            f'waiting for "{item.name}" to catch up with its upstream for the first time',
            detail=f"It can be read from then on.{left}",
        )
    adding = " A table that was added to its source is read meanwhile." if machine.begins_table else ""
    return Notice(
        f'waiting for "{item.name}" to be complete at {show_time_of(item, ts)}',
        detail=f"It is complete before {show_time_of(item, until)} now.{adding}",
        hint=_LATEST,
    )


def _begins(item: SourceRelation, until: int) -> bool:
    """Whether it is a table of which nothing is there yet."""
    return isinstance(item, SourceTable) and until <= item.created


def _reads_snapshot(item: SourceRelation, found: SnapshotProgress) -> Notice:
    """In steps of a tenth: each is a notice of its own while a statement waits."""
    tenths = min(10 * found.bytes_read // found.bytes_known, 9)
    mega = 1 << 20
    rows = "" if found.rows_known is None else f", of about {found.rows_known}"
    return Notice(
        f'waiting for "{item.name}" to be read for the first time: {10 * tenths} % of the snapshot is there',
        detail=f"{found.rows_read} rows are read{rows}; "
        f"{found.bytes_read / mega:.1f} MB, of about {found.bytes_known / mega:.1f} MB.",
    )


class SourceFailed(TidemillError):
    """The statement reads from a source that cannot continue without manual action."""

    sqlstate = "58000"


def permanent_failure(ready: Readiness, item: SourceRelation, ts: int) -> SourceFailed | None:
    """The error of a statement that would wait in vain for the relation to be complete at `ts`; None if
    waiting may help."""
    sources = _below(ready, item) if isinstance(item, MaterializedView) else (item,)
    for source in sources:
        status = ready.ingestion.report(source).status
        if (
            status.state is not RunState.STALLED
            or not status.permanent
            or ready.collections.readable(source) > ts
        ):
            continue
        whose = f'source "{source.name}"' if isinstance(source, Source) else f'the source of "{source.name}"'
        what = f"{whose} has failed"
        if item is not source:
            what = f'materialized view "{item.name}" is not complete: {what}'
        hints = [status.hint or _STATUSES, *([_LATEST] if ready.collections.readable(item) else [])]
        return SourceFailed(
            f"{what}: {status.error}",
            detail=status.detail,
            hint=" ".join(hints),
            sqlstate=status.sqlstate,
        )
    return None


def explain(error: QueryCanceled, ready: Readiness, inputs: Sequence[SourceRelation], ts: int) -> None:
    """Adds to the error which of its inputs the statement was waiting for."""
    with suppress(UndefinedObject):  # dropped during the wait: the statement is stopped in any case
        late = [item for item in inputs if ready.collections.readable(item) <= ts]
        _told(error, [waiting_for(ready, item, ts) for item in late[:MAX_NAMED]], len(late) - MAX_NAMED)


def explain_time(
    error: QueryCanceled, ready: Readiness, inputs: Sequence[SourceRelation], waiting: Notice
) -> None:
    """Does the same for a statement that was `waiting` for a future time: reports the inputs that would not
    be complete at that time either."""
    stalled: list[Notice] = []
    with suppress(UndefinedObject):
        notices = [waiting_for(ready, item, ready.collections.readable(item)) for item in inputs]
        stalled += [notice for notice in notices if notice.severity == "WARNING"]
    _told(error, [waiting, *stalled[:MAX_NAMED]], len(stalled) - MAX_NAMED)


def _told(error: QueryCanceled, notices: Sequence[Notice], more: int) -> None:
    if not notices:
        return
    said = [f"It was {n.text}." + ("" if n.detail is None else f" {n.detail}") for n in notices]
    if more > 0:
        said.append(f"And for {more} more.")
    error.detail = "\n".join(said)
    # A stalled source needs manual action; for the others, waiting is enough.
    worst = sorted(notices, key=lambda n: n.severity != "WARNING")
    error.hint = next((n.hint for n in worst if n.hint is not None), None)


def too_late(ready: Readiness, item: MaterializedView, ts: int, seconds: float) -> Unavailable:
    """The error of a statement whose wait for a materialized view has reached its limit."""
    why = waiting_for(ready, item, ts)
    until = ready.views.readable(item)
    complete = f"It is complete before {show_time_of(item, until)}."
    state = complete if until else "It has not got its first rows yet."
    return Unavailable(
        f'materialized view "{item.name}" is not complete at {show_time_of(item, ts)} after {seconds:g} s',
        detail=f"The statement was {why.text}." if why.severity == "WARNING" else state,
        hint=f"{_VIEW_STATUSES} {_LATEST}",
    )


def _stalled(ready: Readiness, item: Source | SourceTable | SourceProgress) -> Notice | None:
    """The error of the relation's source, if the source is stalled."""
    status = ready.ingestion.report(item).status
    if status.state is not RunState.STALLED:
        return None
    whose = "which" if isinstance(item, Source) else "whose source"
    hint = status.hint or _STATUSES
    return Notice(
        f'waiting for "{item.name}", {whose} is stalled: {status.error}',
        "WARNING",
        detail=status.detail,
        hint=f"{hint} {_LATEST}" if ready.ingestion.readable(item) else hint,
    )


def _for_view(ready: Readiness, item: MaterializedView, ts: int) -> Notice:
    status, until = ready.views.status(item), ready.views.readable(item)
    waiting = f'waiting for materialized view "{item.name}"'
    if status.state is RunState.STALLED:
        return Notice(
            f"{waiting}, which is stalled: {status.error}",
            "WARNING",
            detail=status.detail,
            hint=status.hint or _VIEW_STATUSES,
        )
    for source in _below(ready, item):
        stalled = _stalled(ready, source) if ready.ingestion.readable(source) <= ts else None
        if stalled is not None:
            said = stalled.text.removeprefix("waiting for ")
            return Notice(
                f"{waiting}, which reads {said}", "WARNING", detail=stalled.detail, hint=stalled.hint
            )
    if not until:
        return Notice(f"{waiting} to get its first rows")
    return Notice(
        f"{waiting} to be complete at {show_time_of(item, ts)}",
        detail=f"It is complete before {show_time_of(item, until)} now.",
        hint=_LATEST,
    )


def _below(ready: Readiness, view: MaterializedView) -> Iterator[Source | SourceTable | SourceProgress]:
    """The relations of sources that the view reads, also through other views."""
    items = ready.catalog.state.items
    todo, seen = list(view.depends_on), set[str]()
    while todo:
        item_id = todo.pop()
        item = items.get(item_id)
        if item is None or item_id in seen:
            continue
        seen.add(item_id)
        if isinstance(item, View | MaterializedView):
            todo += item.depends_on
        elif isinstance(item, Source | SourceTable | SourceProgress):
            yield item
