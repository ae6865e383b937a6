"""Timelines: whose times a relation has.

Nearly all relations have ours. A source WITH (TIMELINE 'name') keeps the times of the stream that it reads;
it can be read together with sources of the same timeline, and with system relations, which have no times. A
statement reads such sources at the latest time at which all of them are complete, or AS OF a time of theirs.
Called by whoever plans a query, and by whoever chooses the time of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.items import Item, Source
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.bind import BoundQuery
from tidemill.time.shown import show_time

if TYPE_CHECKING:
    from tidemill.engine.read.reading import AsOfTime
    from tidemill.engine.session.session import EngineSession


def timeline_of(items: Iterable[Item]) -> str | None:
    """The timeline of relations that were checked to have one; None for ours."""
    return next((i.timeline for i in items if isinstance(i, Source) and i.timeline is not None), None)


def show_time_of(item: Item, ts: int) -> str:
    """A time of the relation's timeline, as messages show it."""
    return show_time(ts, timeline_of([item]))


def not_readable(item: Item, since: int, asked: int) -> str:
    """The detail of the error that a relation's history begins after the AS OF time."""
    begins, wanted = show_time_of(item, since), show_time_of(item, asked)
    return f'"{item.name}" is readable from {begins} on; {wanted} was asked for.'


def check_timelines(catalog: CatalogState, bound: BoundQuery) -> None:
    """Raises where relations of several timelines would meet."""
    found: dict[str | None, Item] = {}
    for relation_id in bound.inputs.values():
        if relation_id not in SYSTEM_RELATIONS_BY_ID:
            item = catalog.relation(relation_id)
            found.setdefault(item.timeline if isinstance(item, Source) else None, item)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise Unsupported(
            "relations of several timelines cannot be read in one query",
            detail=f'"{first.name}" {_told(one)}; "{second.name}" {_told(other)}.',
            hint="A source without WITH (TIMELINE ...) has the server's times, and meets all relations that "
            "have them.",
        )


def check_ours(items: Iterable[Item], what: str) -> None:
    """Raises where `what` would be made from rows whose times are not ours."""
    for item in items:
        if isinstance(item, Source) and item.timeline is not None:
            raise Unsupported(
                f'{what} cannot be made from source "{item.name}"',
                detail=f"It {_told(item.timeline)}, and not those of the server.",
                hint="Make another source from the same stream, without WITH (TIMELINE ...).",
            )


def _told(timeline: str | None) -> str:
    return "has the server's times" if timeline is None else f'has the times of "{timeline}"'


def latest_on(session: EngineSession, items: Sequence[Item]) -> int:
    """The latest time at which all of these sources, of one timeline, are complete; they can be read."""
    ingestion = session.engine.ingestion
    return min(ingestion.readable(item) for item in items if isinstance(item, Source)) - 1


def choose_on(session: EngineSession, timeline: str, as_of: AsOfTime | None, sources: Sequence[Item]) -> int:
    """The time to read at, one for all reads of a transaction. Whether the sources are complete there is the
    caller's to see to."""
    transaction = session.current
    before = transaction.on_timelines.get(timeline)
    if as_of is None:
        chosen = latest_on(session, sources) if before is None else before
    elif before is not None and transaction.explicit:
        if as_of.time != before and not (as_of.at_least and as_of.time <= before):
            raise TidemillError(
                "AS OF does not match the time of the transaction",
                detail=f'It reads "{timeline}" at {before}, the statement asks for {as_of.time}.',
                hint="All reads of a transaction happen at one time, chosen by its first statement.",
                sqlstate="25000",
            )
        chosen = before
    else:
        chosen = max(latest_on(session, sources), as_of.time) if as_of.at_least else as_of.time
    if as_of is None or transaction.explicit:
        transaction.on_timelines[timeline] = chosen
    return chosen
