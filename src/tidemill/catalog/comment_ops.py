"""COMMENT ON operations: texts for items and their columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from tidemill.catalog.items import Comment, Item, ItemId
from tidemill.catalog.source_ops import SourceDraft
from tidemill.errors import LimitExceeded

# Every server holds the catalog in memory; a comment is limited to a page of text.
MAX_COMMENT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SetComment:
    """IS NULL (or an empty text, as in PostgreSQL) takes it away."""

    on: ItemId
    column: str | None
    text: str | None


class _Draft(SourceDraft, Protocol):
    """The next state in the making."""

    def changeable(self, item_id: ItemId) -> Item: ...


def apply(draft: _Draft, op: SetComment) -> None:
    draft.changeable(op.on)
    found = draft.state.comment(op.on, op.column)
    if not op.text:
        if found is not None:
            del draft.items[found.id]
        return
    if len(op.text.encode()) > MAX_COMMENT_BYTES:
        raise LimitExceeded(f"a comment has at most {MAX_COMMENT_BYTES} bytes")
    if found is not None:
        draft.put(replace(found, text=op.text))
    else:
        draft.put(Comment(draft.new_id(), op.on, op.column, op.text))


def forget(items: dict[ItemId, Item]) -> None:
    """Drops the comments on dropped items too."""
    gone = [i.id for i in items.values() if isinstance(i, Comment) and i.on not in items]
    for item_id in gone:
        del items[item_id]
