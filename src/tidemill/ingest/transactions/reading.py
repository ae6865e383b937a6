"""One pass over a table's topic, which may run beside the tasks that read the rows before it.

Begun by `table_topic`, which takes in what was found. Nothing that a cut changes is touched here, so cuts are
decided and made meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.errors import TidemillError
from tidemill.reclock.transactions.changes import ChangeRuns, changes_of, no_runs, runs_of
from tidemill.reclock.transactions.ids import Origins
from tidemill.sources.kafka.transactions import ChangeScanner

# Records of a partition that are read before it is asked which one is furthest behind.
STEP = 50_000


@dataclass(slots=True)
class PartitionToRead:
    """`at`: everything before was seen. `end`: of what is read. `seen_to`: as of `PartitionChanges`. `room`:
    entries that may still be kept."""

    at: int
    end: int
    seen_to: int
    room: int


@dataclass(frozen=True, slots=True)
class SeenExtent:
    """What a partition has between two offsets."""

    partition: int
    lower: int
    upper: int
    runs: ChangeRuns


class TopicPass:
    """`run` once, in any thread. `extents` in order, and `error`, why there are no more of them; both are
    read when it has run."""

    def __init__(
        self, scanner: ChangeScanner, partitions: Mapping[int, PartitionToRead], records: int
    ) -> None:
        """Of about so many records."""
        self.extents: list[SeenExtent] = []
        self.error: TidemillError | None = None
        self._scanner = scanner
        self._partitions = dict(partitions)
        self._records = records
        self._stopped = threading.Event()

    def stop(self) -> None:
        """What is found is not wanted any more."""
        self._stopped.set()

    def run(self, origins: Origins) -> None:
        """First of the partition that is furthest behind: a transaction may have changes in all of them."""
        left, records = self._partitions, self._records
        try:
            while left and records > 0 and not self._stopped.is_set():
                number = min(left, key=lambda n: left[n].seen_to)
                partition = left[number]
                upper = min(partition.end, partition.at + min(records, STEP))
                records -= upper - partition.at
                self._read(number, partition, upper, origins)
                if partition.at >= partition.end or partition.room <= 0:
                    del left[number]
        except TidemillError as error:
            self.error = error

    def _read(self, number: int, partition: PartitionToRead, upper: int, origins: Origins) -> None:
        for seen in self._scanner.scan(number, partition.at, upper):
            if self._stopped.is_set():
                return
            self._add(number, partition, int(seen.offsets[-1]) + 1, runs_of(changes_of(seen, origins)))
        if partition.at < upper:
            self._add(number, partition, upper, no_runs())

    def _add(self, number: int, partition: PartitionToRead, upper: int, runs: ChangeRuns) -> None:
        self.extents.append(SeenExtent(number, partition.at, upper, runs))
        partition.at = upper
        partition.room -= len(runs)
        if len(runs):
            partition.seen_to = max(partition.seen_to, int(runs.times.max()))
