"""Inbox: a shard with everything that a source received from PubNub, in order, and where the subscription
stands.

The service cannot be asked for a range again. So what was received is appended here, with the cursor behind
it in the same entry, before the source reports a position that covers it. The position of a message is its
timetoken; of one that comes after a later one of its region, the next position behind. Ranges of positions
are read from here, as often as needed, by the tasks.

Nothing is removed, and `since` stays where it was: so a table that is made later reads everything.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.sidecars import INBOX_DESC
from tidemill.errors import DataCorrupted
from tidemill.persist.part import Part
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import Jobs
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.sources.pubnub.catch_up import OVERLAP_TICKS, Known
from tidemill.sources.pubnub.messages import (
    HISTORY_REGION,
    TICKS_PER_SECOND,
    Batch,
    Cursor,
    Gap,
    Received,
)
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, storage_schema
from tidemill.types.kernels import pc

FP_BEFORE_INBOX = failpoints.register("pubnub.before_inbox", "messages were received, the inbox has none")
FP_INBOX_PUT = failpoints.register("pubnub.inbox_put", "the inbox has messages, its writer does not know")
FP_INBOX = failpoints.register("pubnub.inbox", "the inbox has messages, they have no time")

# Appends whose place is remembered, so that a range is looked for in the latest parts only.
_REMEMBERED = 1000
# A message whose timetoken is so far behind the service's time is an error: all later messages would stand
# behind it.
FUTURE_TICKS = 600 * TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class InboxState:
    """After an append: where the subscription goes on, and the positions of the regions."""

    cursor: Cursor
    frontier: Offsets

    def to_text(self) -> str:
        regions = {str(region): position for region, position in self.frontier.items()}
        stands = {"token": self.cursor.token, "region": self.cursor.region, "regions": regions}
        return json.dumps(stands, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def of(text: str) -> InboxState:
        try:
            stands: dict[str, Any] = json.loads(text)
            regions: dict[PartitionKey, int] = {int(r): int(at) for r, at in stands["regions"].items()}
            return InboxState(Cursor(int(stands["token"]), stands["region"]), Offsets(regions))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise DataCorrupted("an inbox cannot be read", detail=text[:200]) from e


class Inbox:
    """Not thread-safe: the ticks of a source call it."""

    def __init__(self, shard: Shard, jobs: Jobs) -> None:
        self._shard = shard
        self._jobs = jobs
        self.blobs = shard.blobs
        self.shard_id = shard.id
        # The latest appends: their times, and the states behind them. None before it is read.
        self._appends: deque[tuple[int, InboxState]] | None = None

    @property
    def state(self) -> InboxState | None:
        """None if nothing was ever appended."""
        appends = self._loaded()
        return appends[-1][1] if appends else None

    @property
    def frontier(self) -> Offsets:
        state = self.state
        return Offsets() if state is None else state.frontier

    def _loaded(self) -> deque[tuple[int, InboxState]]:
        if self._appends is None:
            newest = max(self._shard.parts, key=lambda part: part.max_time, default=None)
            found: list[tuple[int, InboxState]] = []
            if newest is not None:
                table = self._shard.reader.read(newest, self._shard.desc, ["state"])
                table = table.filter(table.column("state").is_valid()).sort_by(TIME_COLUMN)
                table = table.slice(max(0, table.num_rows - _REMEMBERED))
                times, states = table.column(TIME_COLUMN).to_pylist(), table.column("state").to_pylist()
                found = [(at, InboxState.of(text)) for at, text in zip(times, states, strict=True)]
            self._appends = deque(found, _REMEMBERED)
        return self._appends

    def known(self) -> Known:
        """The messages that could be received once more."""
        known, state = Known(), self.state
        if state is None:
            return known
        oldest = state.cursor.token - 2 * OVERLAP_TICKS
        tables: list[pa.Table] = []
        for part in sorted(self._shard.parts, key=lambda part: part.max_time, reverse=True):
            table = self._shard.reader.read(part, self._shard.desc, ["channel", "timetoken"])
            late = table.filter(pc.greater_equal(table.column("timetoken"), oldest))
            tables.append(late)
            if not late.num_rows and table.column("timetoken").null_count < table.num_rows:
                break
        for table in reversed(tables):
            table = table.sort_by([(TIME_COLUMN, "ascending"), ("timetoken", "ascending")])
            for channel, token in zip(
                table.column("channel").to_pylist(), table.column("timetoken").to_pylist(), strict=True
            ):
                if channel is not None:
                    known.remember(channel, token)
        return known

    def parts(self, lower: Offsets) -> tuple[Part, ...]:
        """The parts that can have something at or behind a frontier."""
        done = max((at for at, state in self._loaded() if state.frontier <= lower), default=-1)
        return tuple(part for part in self._shard.parts if part.max_time > done)

    def append(self, batches: Sequence[Batch], now: int) -> None:
        """Make them durable, with the cursor of the last one. Raises a commit's outcomes; when it raises,
        nothing was appended."""
        at = max(upper_of(self._shard), now)
        frontier = self.frontier.as_dict()
        rows: list[dict[str, Any]] = []
        for batch in batches:
            rows += _placed(batch, frontier)
        state = InboxState(batches[-1].cursor, Offsets(frontier))
        rows.append({"state": state.to_text()})
        schema = pa.schema([f.with_nullable(True) for f in storage_schema(INBOX_DESC)])
        table = pa.Table.from_pylist(rows, schema=schema)
        table = table.append_column(TIME_COLUMN, pa.array([at] * len(rows), pa.int64()))
        table = table.append_column(DIFF_COLUMN, pa.array([1] * len(rows), pa.int64()))
        failpoints.hit(FP_BEFORE_INBOX)
        job = self._jobs.begin_job()
        try:
            part = self._shard.write_part(table, job=job)
            append_settled(self._shard, part, upper_of(self._shard), at + 1, after_put=FP_INBOX_PUT)
        finally:
            self._jobs.end_job(job)
        self._loaded().append((at, state))
        failpoints.hit(FP_INBOX)


def _placed(batch: Batch, frontier: dict[PartitionKey, int]) -> list[dict[str, Any]]:
    """The rows of a batch, with positions behind the frontier, which moves."""
    rows: list[dict[str, Any]] = []
    reached = dict(frontier)

    def place(region: int, token: int) -> int:
        position = max(reached.get(region, 0), token)
        frontier[region] = max(frontier.get(region, 0), position + 1)
        return position

    latest = batch.cursor.token + FUTURE_TICKS
    for message in sorted(batch.messages, key=lambda m: (m.token, m.channel)):
        future = message.token > latest
        row = _message_row(message)
        row["position"] = place(message.region, 0 if future else message.token)
        if future:
            row["error"] = (
                f"the timetoken {message.token} is in the future: the service is at {batch.cursor.token}"
            )
        rows.append(row)
    for gap in batch.gaps:
        rows.append(_gap_row(gap) | {"position": place(HISTORY_REGION, gap.after)})
    return rows


def _message_row(message: Received) -> dict[str, Any]:
    return {
        "region": message.region,
        "timetoken": message.token,
        "channel": message.channel,
        "subscription": message.subscription,
        "publisher": message.publisher,
        "payload": message.payload,
        "quoted": message.quoted,
    }


def _gap_row(gap: Gap) -> dict[str, Any]:
    # It has no timetoken: no message has the name of a gap.
    return {"region": HISTORY_REGION, "channel": gap.channel, "error": gap.text}
