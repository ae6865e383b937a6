"""Places in shards: which sequence number a count of records ends with.

The gauge counts the records of a shard. What is bound stands under the sequence number of its last record (a
stamp of the binding), from which it can be read again.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.sources.offsets import Offsets, PartitionKey


@dataclass(frozen=True, slots=True)
class Place:
    """Behind `count` records of a shard, the last of which has the number `after`; None: at the start."""

    count: int = 0
    after: str | None = None


START = Place()


class Places:
    """The known places of all shards."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, str]] = {}

    def note(self, shard: str, count: int, sequence: str) -> None:
        self._known.setdefault(shard, {})[count] = sequence

    def recall(self, found: Mapping[PartitionKey, Sequence[tuple[int, str]]]) -> None:
        for shard, places in found.items():
            self._known.setdefault(str(shard), {}).update(places)

    def at(self, shard: str, count: int) -> str | None:
        """The number of the last of so many records, if it is known."""
        return self._known.get(shard, {}).get(count)

    def before(self, shard: str, count: int) -> Place:
        """The last known place that is not behind so many records."""
        known = self._known.get(shard, {})
        counts = sorted(known)
        at = bisect.bisect_right(counts, count)
        return Place(counts[at - 1], known[counts[at - 1]]) if at else START

    def forget(self, frontier: Offsets) -> None:
        """All before it, but the last ones."""
        for shard, known in self._known.items():
            kept = self.before(shard, frontier[shard]).count
            self._known[shard] = {count: number for count, number in known.items() if count >= kept}
