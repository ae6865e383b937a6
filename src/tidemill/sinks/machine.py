"""Sink machine: continuously writes one collection through its writer.

The only state is in the target: its last durable statement shows up to which time the stream is complete, and
the next process resumes there. What was sent after that statement is sent again: the same updates, because a
collection is definite. Nothing is stored here, so nothing can disagree with the target.

The order of a round: updates, then the statement that they are complete up to a time, which is durable not
before them (`writer`). Only then is the history released that a restart would need (`Shard.hold`). Not
thread-safe except for `frontier`, `holding` and `cancel`: the caller steps each sink from one thread at a
time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.items import Sink
from tidemill.errors import QueryCanceled
from tidemill.persist.holds import Hold
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.sinks.feed import SinkFeed
from tidemill.sinks.target import SinkError
from tidemill.sinks.writer import EndsAt, SinkWriter
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.time.shown import show_time
from tidemill.types.arrow import TIME_COLUMN, error_parts

FP_SNAPSHOT = failpoints.register(
    "sink.snapshot_sent", "a part of a sink's snapshot is sent, none is counted"
)
FP_STATED = failpoints.register("sink.stated", "a sink's statement is durable, nobody knows yet")

# Changes are collected for this time, or up to this number of bytes, before a statement counts them. So a
# sink that catches up makes few statements, and the delay of one that keeps up is limited.
GATHER_SECONDS = 0.1
GATHER_BYTES = 32 << 20
# Times that one statement counts: in JSON each takes some 40 bytes of a message.
MAX_COUNTS = 10_000


class SinkMachine:
    def __init__(self, item: Sink, feed: SinkFeed, writer: SinkWriter) -> None:
        self.item = item
        self._feed = feed
        self._writer = writer
        # Reads the updates of the current round; None before the target was read.
        self._follower: Follower | None = None
        # The hold for the history that the next process would need.
        self._hold: Hold | None = None
        # Everything before it is durable at the target; 0 while it is unknown.
        self.frontier = 0
        # The upper of the last statement.
        self._durable = 0
        # Everything before it was read from the collection.
        self._told = 0
        self._dirty = False
        # When (monotonic) the last statement was made.
        self._stated = 0.0
        self._cancelled = False

    @property
    def holding(self) -> bool:
        """Whether the history that a restart would need is held."""
        return self._hold is not None

    @property
    def begun(self) -> bool:
        """Whether the initial contents are written, and changes follow."""
        return self._follower is not None

    def cancel(self) -> None:
        """Ends the current step soon, with an error. May be called from any thread."""
        self._cancelled = True
        self._feed.cancel()

    def check(self) -> None:
        """For targets that wait."""
        if self._cancelled:
            raise QueryCanceled("the sink is being stopped")

    # -- steps

    def step(self) -> bool:
        """Continues for a limited time, as far as the collection is complete. Returns whether more may be
        available at once. After an error, the next step starts from the contents of the target."""
        try:
            follower = self._follower or self._begin()
            return False if follower is None else self._go_on(follower)
        except BaseException:
            self._let_go()
            raise

    def _begin(self) -> Follower | None:
        """Starts from the last statement; without one, from the beginning. Returns None while the collection
        cannot be read at that time."""
        complete = self._feed.complete()
        if not complete:
            return None
        reached = self._writer.resume()
        if reached is None:
            at = max(self.item.as_of, self._feed.shard.since)
            if complete <= at:
                return None
            self._keep(at)
            lower = 0 if self.item.snapshot else at + 1
        else:
            at, lower = reached - 1, reached
            self._keep(at)
        self._writer.begin(lower)
        self._stated, self._dirty, self._durable = time.monotonic(), False, lower
        if reached is None and self.item.snapshot:
            self._read_snapshot(at, self._write_initial)
            self._state(at + 1)
        elif self._writer.recalls:
            self._read_snapshot(at, self._writer.recall)
        self.frontier = self._told = self._durable = at + 1
        self._follower = self._feed.follow(at + 1)
        return self._follower

    def _keep(self, at: int) -> None:
        """Holds the collection at the time, or at an earlier one if it is already held there."""
        if self._hold is not None and self._hold.at <= at:
            return
        try:
            hold = self._feed.shard.hold(at)
        except InvalidAsOf as e:
            raise SinkError(
                f"what changed after {show_time(at)} is forgotten, and the sink has not written it",
                detail=f"The relation's history begins at {show_time(e.since)}.",
                hint="DROP the sink, and CREATE it anew into another place.",
            ) from e
        before, self._hold = self._hold, hold
        if before is not None:
            before.release()

    def _read_snapshot(self, at: int, take: Callable[[pa.Table], None]) -> None:
        pieces = self._feed.snapshot(at)
        try:
            for piece in pieces:
                self.check()
                take(piece)
        finally:
            pieces.close()

    def _write_initial(self, piece: pa.Table) -> None:
        self._writer.send(piece, initial=True)
        failpoints.hit(FP_SNAPSHOT)

    def _go_on(self, follower: Follower) -> bool:
        began, size, more = time.monotonic(), 0, False
        while (changes := follower.advance()) is not None:
            self.check()
            self._take(changes)
            if changes.idle:
                break
            size += changes.bytes
            if size >= GATHER_BYTES or time.monotonic() - began >= GATHER_SECONDS:
                more = True
                break
        since = time.monotonic() - self._stated
        pace = self._writer.pace
        if since >= (pace.round_seconds if self._dirty else pace.idle_seconds) and self._told > self._durable:
            self._state(self._told)
        elif self._writer.silent and not self._dirty:
            self.frontier = self._told
        return more

    def _take(self, changes: CollectionChanges) -> None:
        """Sends the changes. If they have more times than one statement should count, makes statements in
        between."""
        for piece, upper in _by_times(changes.updates, changes.upper):
            if piece.num_rows:
                try:
                    self._writer.send(piece, initial=False)
                except EndsAt as e:
                    self._end(e.at)
                    raise e.error from None
                self._dirty = True
            self._told = upper
            if upper < changes.upper:
                self._state(upper)
        if changes.error is not None:
            at, text = changes.error
            self._end(at)
            primary, detail = error_parts(text)
            raise SinkError(
                f"the relation has an error from {at} on: {primary}",
                detail=detail,
                hint="An error cannot be written. When it is gone, DROP the sink, and CREATE it anew into "
                "another place.",
            )

    def _end(self, at: int) -> None:
        """States what was sent before the time from which on nothing can be written."""
        self._told = at
        if at > self._durable:
            self._state(at)

    def _state(self, upper: int) -> None:
        self._writer.state(upper)
        failpoints.hit(FP_STATED)
        self.frontier = self._durable = upper
        self._dirty, self._stated = False, time.monotonic()
        if self._hold is not None:
            self._hold.advance(max(self._hold.at, upper - 1))

    def _let_go(self) -> None:
        """Closes the follower and the writer; the next step starts from the target. The hold stays."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
        self._writer.close()

    def take_over(self, other: SinkMachine) -> None:
        """Takes the hold of the other machine, which is then closed. Called before the first step."""
        self._hold, other._hold = other._hold, None
        self.frontier = other.frontier
        other.close()

    def close(self) -> None:
        """Idempotent."""
        self._let_go()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()


def _by_times(updates: pa.Table, upper: int) -> Iterator[tuple[pa.Table, int]]:
    """The updates, which are in order of time, in pieces of at most `MAX_COUNTS` times each; each with the
    time before which everything is included."""
    times = updates.column(TIME_COLUMN).to_numpy()
    starts = np.flatnonzero(np.diff(times, prepend=-1))[::MAX_COUNTS]
    bounds = [*starts.tolist(), len(times)]
    if len(bounds) < 3:
        yield updates, upper
        return
    for first, last in itertools.pairwise(bounds):
        yield updates.slice(first, last - first), upper if last == len(times) else int(times[last])
