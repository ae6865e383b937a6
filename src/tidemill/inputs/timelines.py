"""The timeline of a relation.

Nearly all relations are on the server's timeline. A source WITH (TIMELINE 'name') keeps the times of the
stream that it reads. It can be read together with sources of the same timeline, and with system relations,
which have no times.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.catalog.items import Item, Source, is_system
from tidemill.catalog.state import CatalogState
from tidemill.errors import Unsupported
from tidemill.sql.bind import BoundQuery
from tidemill.time.shown import show_time


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
        if not is_system(relation_id):
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
    """Raises if `what` would be made from rows on another timeline."""
    for item in items:
        if isinstance(item, Source) and item.timeline is not None:
            raise Unsupported(
                f'{what} cannot be made from source "{item.name}"',
                detail=f"It {_told(item.timeline)}, and not those of the server.",
                hint="Make another source from the same stream, without WITH (TIMELINE ...).",
            )


def _told(timeline: str | None) -> str:
    return "has the server's times" if timeline is None else f'has the times of "{timeline}"'
