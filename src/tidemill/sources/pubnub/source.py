"""PubNub source: what was received is in the inbox, and gets its positions from there.

Created by `sources.definition` from the catalog's definition. A tick takes what the receiver has, appends it
to the inbox, and reports how far the inbox is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemill.errors import Internal
from tidemill.persist.shard import Shard
from tidemill.sources.contract import (
    Jobs,
    Lag,
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets
from tidemill.sources.pubnub.catch_up import CatchUp
from tidemill.sources.pubnub.inbox import Inbox
from tidemill.sources.pubnub.layout import GAUGE, output_of
from tidemill.sources.pubnub.messages import TICKS_PER_SECOND, Cursor
from tidemill.sources.pubnub.reader import InboxReader
from tidemill.sources.pubnub.receiver import Receiver
from tidemill.sources.pubnub.service import Service

# How long the first tick waits for what the service has.
FIRST_SECONDS = 8.0
# An idle source writes its cursor so often: the service's cache is asked from there after a crash.
IDLE_TICKS = 60 * TICKS_PER_SECOND


class PubNubSource(UpstreamSource):
    """Raises KeyError, TypeError or ValueError for an invalid definition."""

    gauge = GAUGE
    counts = "timetokens"
    offsets_per_record = TICKS_PER_SECOND

    def __init__(self, definition: Mapping[str, Any]) -> None:
        specs = definition["outputs"]
        self.outputs = tuple(output_of(spec) for spec in specs)
        self._outputs = json.dumps(specs, sort_keys=True)
        self._connection: Mapping[str, Any] = definition["connection"]
        self._channels = [str(name) for name in definition["channels"]]
        self._groups = [str(name) for name in definition["groups"]]
        token, region = definition["cursor"]
        self._begin = Cursor(int(token), None if region is None else int(region))
        self._history = int(definition["history_seconds"]) * TICKS_PER_SECOND
        self._inbox_: Inbox | None = None
        self._receiver: Receiver | None = None
        self._closed = False
        # Nothing was bound before: it is not there before it has caught up.
        self._new = True

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:
        self._new = not bound.items()

    def attach(self, inbox: Shard, jobs: Jobs) -> None:
        self._inbox_ = Inbox(inbox, jobs)

    @property
    def _inbox(self) -> Inbox:
        if self._inbox_ is None:
            raise Internal("a PubNub source was opened without an inbox")
        return self._inbox_

    # -- receiving

    def frontier(self, now: int) -> Offsets:
        first = self._receiver is None
        receiver = self._receiver or self._subscribed()
        settled = receiver.wait_settled(FIRST_SECONDS) if first or self._new else True
        batches, error = receiver.take(), receiver.error
        if batches:
            state = self._inbox.state
            cursor = batches[-1].cursor
            idle = not any(batch.messages or batch.gaps for batch in batches)
            stale = state is None or cursor.token - state.cursor.token >= IDLE_TICKS
            if not idle or stale:
                try:
                    self._inbox.append(batches, now)
                except Exception:
                    # They are received again.
                    self._stop()
                    raise
        if error is not None:
            raise error
        if not settled and self._new:
            slow = UpstreamError(
                "the source is catching up with PubNub's history", hint="It goes on by itself."
            )
            slow.transient = True
            raise slow
        self._new = False
        return self._inbox.frontier

    def _subscribed(self) -> Receiver:
        if self._closed:
            raise Internal("the source is closed")
        state = self._inbox.state
        cursor = self._begin if state is None else state.cursor
        service = Service(self._connection)
        catch_up = CatchUp(service, self._channels, self._groups, self._begin.token, self._history)
        self._receiver = Receiver(
            service, self._channels, self._groups, catch_up, cursor, self._inbox.known()
        )
        self._receiver.start()
        return self._receiver

    def _stop(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()

    def close(self) -> None:
        self._closed = True
        self._stop()

    # -- ranges

    def reader(self) -> SourceReader:
        return self._reader(Offsets(), None)

    def plan(
        self, lower: Offsets, upper: Offsets, ways: int, outputs: frozenset[int]
    ) -> tuple[SourceReader, list[SourcePiece]]:
        return self._reader(lower, outputs), self.split(lower, upper, ways)

    def _reader(self, lower: Offsets, wanted: frozenset[int] | None) -> InboxReader:
        inbox = self._inbox
        return InboxReader(inbox.blobs, inbox.shard_id, inbox.parts(lower), self._outputs, wanted)

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """A tick has taken no more than the receiver keeps."""
        return upper

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        """A region is one piece: positions do not say how many messages there are."""
        return [SourcePiece(p, lower[p], lower[p] + n) for p, n in upper.increments(lower).items()]

    def lag(self, ingested: Offsets) -> Lag | None:
        """Timetokens count no messages."""
        return Lag(None, None)
