"""The transaction topic: its announcements, in order, which are also read beside the tasks that read rows.

Called by `group`. Announcements that were read ahead are the same that would be read later, so it makes no
difference to decisions when they were.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.reclock.transactions.announced import Announcements
from tidemill.reclock.transactions.log import MAX_OPEN, TransactionLog
from tidemill.sources.kafka.transactions import AnnouncementScanner, SeenAnnouncements, TopicAccess

# Announcements that are taken in together, and that are read ahead at most.
FEED_RECORDS = 100_000
AHEAD_RECORDS = 500_000


@dataclass(slots=True)
class _Ahead:
    """The records [lower, upper), once `done` says so."""

    lower: int
    upper: int
    stopped: threading.Event = field(default_factory=threading.Event)
    found: list[SeenAnnouncements] = field(default_factory=list[SeenAnnouncements])
    done: Future[None] | None = None

    def run(self, scanner: AnnouncementScanner) -> None:
        for seen in scanner.scan(self.lower, self.upper):
            if self.stopped.is_set():
                return
            self.found.append(seen)


class AnnouncementTopic:
    """Not thread-safe. `close` it."""

    def __init__(self, access: TopicAccess) -> None:
        self._scanner = AnnouncementScanner(access)
        # The end of the topic at the last look, and what is being read.
        self._end = 0
        self._ahead: _Ahead | None = None

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.stopped.set()
            self._ahead = None

    def begin(self, log: TransactionLog, pool: Executor) -> None:
        """Begin to read further, up to where the topic ended at the last look, unless this has begun."""
        upper = min(self._limit(log), log.read + AHEAD_RECORDS)
        if self._ahead is None and upper > log.read:
            ahead = self._ahead = _Ahead(log.read, upper)
            ahead.done = pool.submit(ahead.run, self._scanner)

    def read(self, log: TransactionLog, end: int) -> bool:
        """Take in what there is before `end`, where the topic ends. Whether that is all; else there is no
        room for more. Raises UpstreamError and TransactionConflict."""
        self._end = end
        upper = self._limit(log)
        waiting: list[SeenAnnouncements] = []
        for seen in self._seen(log.read, upper):
            waiting.append(seen)
            if sum(len(each.offsets) for each in waiting) >= FEED_RECORDS:
                _feed(log, waiting)
                waiting = []
        _feed(log, waiting)
        log.skip(upper)
        return upper == end

    def _limit(self, log: TransactionLog) -> int:
        return min(self._end, log.read + MAX_OPEN - len(log.announced))

    def _seen(self, lower: int, upper: int) -> Iterator[SeenAnnouncements]:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.done is None:
            return self._scanner.scan(lower, upper)
        # Since it began, nothing was taken in: it begins at `lower`.
        ahead.done.result()
        return itertools.chain(ahead.found, self._scanner.scan(ahead.upper, upper))


def _feed(log: TransactionLog, found: Sequence[SeenAnnouncements]) -> None:
    if found:
        offsets = np.concatenate([each.offsets for each in found])
        announcements = Announcements(
            offsets,
            np.concatenate([each.ends for each in found]),
            pa.concat_arrays([each.ids for each in found]),
            np.concatenate([each.times for each in found]),
            pa.concat_arrays([each.counts for each in found]),
        )
        log.feed(announcements, int(offsets[-1]) + 1)
