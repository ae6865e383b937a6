"""The history of a data directory: which of its past and future are one.

A directory that was restored from a backup goes on from an earlier moment, and what its server did after that
moment is gone: but not the caches of workers, nor what sinks have written and readers have acknowledged. The
properties of the clock shard therefore have the id of the history, and what is older than it. Caches are kept
under the id; sinks and subscriptions that are older do not go on by themselves, because what they have passed
on may never have been.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard

_ID, _BEGAN, _FIRST_ITEM = "history", "historyBegan", "historyFirstItem"


@dataclass(frozen=True, slots=True)
class History:
    """`began`: no earlier time was used in it, and none at or after it in the one before. Items of the
    catalog with numbers below `first_item` are of the one before. Both are 0 for the first history."""

    id: str
    began: int = 0
    first_item: int = 0

    def before(self, item_id: str) -> bool:
        """Whether the item was there when the directory was restored."""
        return int(item_id[1:]) < self.first_item


def history_of(clock: Shard) -> History:
    told = clock.properties
    first = History(clock.state.metadata.table_id)
    return History(told.get(_ID, first.id), int(told.get(_BEGAN, 0)), int(told.get(_FIRST_ITEM, 0)))


def begin_history(clock: Shard, first_item: int) -> None:
    """From here on there is another history. The shard is a restored one that no server has opened yet, here
    opened for reading. `first_item` is the next number of the catalog."""
    clock.fence(clock.epoch + 1, new=True)
    told = {_ID: uuid.uuid4().hex, _BEGAN: str(upper_of(clock)), _FIRST_ITEM: str(first_item)}
    clock.set_properties(told)
