"""mz_comments: the comments of COMMENT ON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.catalog.items import RELATIONS, SCHEMA_ITEMS, Item, kind_name
from tidemill.engine.relations.kinds import object_type
from tidemill.engine.relations.pg.spec import Record, spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def column_number(item: Item, column: str) -> int | None:
    """The column's number, from 1; None if the column no longer exists."""
    names = item.desc.names if isinstance(item, RELATIONS) and item.desc is not None else []
    return names.index(column) + 1 if column in names else None


def _rows(s: Situation) -> Iterable[Record]:
    for comment in s.catalog.comments():
        item = s.catalog.items[comment.on]
        kind = object_type(item) if isinstance(item, SCHEMA_ITEMS) else kind_name(item)
        number = None if comment.column is None else column_number(item, comment.column)
        yield {"id": item.id, "object_type": kind, "object_sub_id": number, "comment": comment.text}


COMMENTS_SPEC = spec(
    "mz_internal",
    "mz_comments",
    "id text, object_type text, object_sub_id int4, comment text",
    _rows,
    nulls=True,
)
