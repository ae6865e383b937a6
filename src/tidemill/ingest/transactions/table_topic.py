"""The topic of one table of a group: what was seen of it, up to where.

Only the blocks of its changes are read here; its rows are read by tasks, once they are bound.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.reclock.transactions.changes import PartitionChanges, changes_of, no_runs, runs_of
from tidemill.reclock.transactions.cuts import TopicChanges
from tidemill.reclock.transactions.ids import Origins
from tidemill.sources.contract import UpstreamLost
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.kafka.transactions import ChangeScanner
from tidemill.sources.offsets import Offsets

# Entries of changes that wait for their transactions; each partition has its share. More are read when these
# are behind a cut.
MAX_WAITING = 2_000_000
# Records of a partition that are read before it is asked which one is furthest behind.
STEP = 50_000


class TableTopic:
    """Not thread-safe. `error` is why the last look or scan failed."""

    def __init__(
        self, source: KafkaSource, collection: str, offsets: Offsets | None, *, joined: bool
    ) -> None:
        """`offsets`: everything before is behind the last cut; None for a table that never was in one."""
        self.source = source
        # What is behind the last cut.
        self.offsets = source.start if offsets is None else offsets
        self.changes = TopicChanges(source.topic, collection, {}, joined)
        self.frontier: Offsets | None = None
        self.error: TidemillError | None = None
        self._scanner = ChangeScanner(source.access())
        self._add_partitions(self.offsets)

    def reopen(self, source: KafkaSource) -> None:
        """The same topic through another connection."""
        self.source.close()
        self.source, self._scanner = source, ChangeScanner(source.access())

    def close(self) -> None:
        self.source.close()

    def look(self, now: int) -> None:
        """Ask where the topic ends."""
        self.error = None
        try:
            frontier = self.source.frontier(now)
            if not self.offsets <= frontier:
                raise UpstreamLost(
                    "the source's progress went back",
                    detail=f"It was bound up to {self.offsets}; now it ends at {frontier}.",
                    hint="The upstream was truncated or made anew: drop the source and create it again.",
                )
            self.frontier = frontier
            self._add_partitions(frontier)
        except TidemillError as error:
            self.error = error

    def _add_partitions(self, offsets: Offsets) -> None:
        for partition, _ in offsets.items():
            assert isinstance(partition, int)
            if partition not in self.changes.partitions:
                self.changes.partitions[partition] = PartitionChanges(self.offsets[partition])

    @property
    def to_end(self) -> bool:
        """Whether everything that the topic had at the last look is seen."""
        return self.frontier is not None and not self._left()

    @property
    def full(self) -> bool:
        """Whether nothing more is read before something is behind a cut."""
        return all(self._full(number) for number in self._left())

    def _full(self, number: int) -> bool:
        partitions = self.changes.partitions
        return len(partitions[number].runs) >= MAX_WAITING // len(partitions)

    def _left(self) -> dict[int, int]:
        """By partition the offset up to which it was not seen."""
        assert self.frontier is not None
        found = {number: self.frontier[number] for number in self.changes.partitions}
        return {n: end for n, end in found.items() if self.changes.partitions[n].scanned < end}

    def scan(self, records: int, origins: Origins, told_to: int) -> None:
        """See about so many more records, first of the partition that is furthest behind: a transaction may
        have changes in all of them. `told_to`: the changes of what was announced before this timestamp were
        visible at the last look."""
        if self.frontier is None or self.error is not None:
            return
        try:
            left = {number: end for number, end in self._left().items() if not self._full(number)}
            while left and records > 0:
                number = min(left, key=lambda n: self.changes.partitions[n].seen_to)
                partition = self.changes.partitions[number]
                first = partition.scanned
                upper = min(left[number], first + min(records, STEP))
                for seen in self._scanner.scan(number, first, upper):
                    partition.extend(runs_of(changes_of(seen, origins)), int(seen.offsets[-1]) + 1)
                partition.extend(no_runs(), upper)
                records -= upper - first
                if upper == left[number] or self._full(number):
                    del left[number]
        except TidemillError as error:
            self.error = error
            return
        for number, partition in self.changes.partitions.items():
            if partition.scanned >= self.frontier[number]:
                partition.seen_all(told_to)
