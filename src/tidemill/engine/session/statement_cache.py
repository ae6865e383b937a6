"""Texts that a client sends again and again, by the simple protocol or to be prepared: `SELECT 1` of a pool,
the query of a dashboard.

A session keeps what became of the last few, parsed and planned, once it has seen them twice: thousands of
sessions that ask one thing each keep nothing. Whether a plan is still good is the session's to check.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.engine.api import Prepared

# Texts that are kept with their plans, some 20 kB each, and hashes of those seen last.
MAX_KEPT = 8
MAX_SEEN = 8


class Repeated:
    """The texts of one session."""

    __slots__ = ("_kept", "_seen")

    def __init__(self) -> None:
        # The one used last is last. Made with the first text that comes twice.
        self._kept: OrderedDict[Hashable, list[Prepared]] | None = None
        self._seen: deque[int] | None = None

    def get(self, text: Hashable) -> list[Prepared] | None:
        if self._kept is None:
            return None
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
        return found

    def seen(self, text: Hashable, statements: list[Prepared]) -> None:
        """It was parsed. `text` may say more than the text: the types of its parameters."""
        mark = hash(text)
        if self._seen is None:
            self._seen = deque(maxlen=MAX_SEEN)
        if mark not in self._seen:
            self._seen.append(mark)
            return
        if self._kept is None:
            self._kept = OrderedDict()
        self._kept[text] = statements
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept = self._seen = None
