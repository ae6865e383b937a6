"""The topic of one table of a group: what was seen of it, up to where.

Only the blocks of its changes are read here; its rows are read by tasks, once they are bound.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from tidemill.errors import TidemillError
from tidemill.ingest.transactions.reading import PartitionToRead, TopicPass
from tidemill.reclock.transactions.changes import PartitionChanges
from tidemill.reclock.transactions.cuts import TopicChanges
from tidemill.reclock.transactions.ids import Origins
from tidemill.sources.contract import UpstreamLost
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.kafka.transactions import ChangeScanner
from tidemill.sources.offsets import Offsets

# Entries of changes that wait for their transactions; each partition has its share. More are read when these
# are behind a cut.
MAX_WAITING = 2_000_000


class TableTopic:
    """Not thread-safe. `error` is why the last look or reading failed."""

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
        # What is being read, and its end.
        self._begun: tuple[TopicPass, Future[None]] | None = None
        self._add_partitions(self.offsets)

    def reopen(self, source: KafkaSource) -> None:
        """The same topic through another connection."""
        self._abandon()
        self.source.close()
        self.source, self._scanner = source, ChangeScanner(source.access())

    def close(self) -> None:
        self._abandon()
        self.source.close()

    def _abandon(self) -> None:
        if self._begun is not None:
            self._begun[0].stop()
            self._begun = None

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

    def begin(self, records: int, origins: Origins, pool: Executor) -> None:
        """Begin to read about so many more records, up to where the topic ended at the last look, unless this
        has begun. `take` takes them in."""
        if self.frontier is None or self.error is not None or self._begun is not None:
            return
        limit = MAX_WAITING // max(len(self.changes.partitions), 1)
        wanted: dict[int, PartitionToRead] = {}
        for number, end in self._left().items():
            if not self._full(number):
                known = self.changes.partitions[number]
                room = limit - len(known.runs)
                wanted[number] = PartitionToRead(known.scanned, end, known.seen_to, room)
        if wanted:
            found = TopicPass(self._scanner, wanted, records)
            self._begun = found, pool.submit(found.run, origins)

    def take(self, told_to: int) -> None:
        """Take in what was begun, when it is there. `told_to`: the changes of what was announced before this
        timestamp were visible at the last look."""
        begun, self._begun = self._begun, None
        if begun is not None:
            found, future = begun
            future.result()
            for extent in found.extents:
                self.changes.partitions[extent.partition].extend(extent.runs, extent.upper)
            self.error = self.error or found.error
        if self.frontier is None or self.error is not None:
            return
        for number, partition in self.changes.partitions.items():
            if partition.scanned >= self.frontier[number]:
                partition.seen_all(told_to)
