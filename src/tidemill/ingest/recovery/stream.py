"""The durable state of a CDCv2 relation between ticks: its stash and its tally, two more shards.

One per relation on the driver, stepped by its source's machine. A commit writes stash, tally and data, in
this order, and the data shard's upper is the truth. After a crash between two of them, the binding is read
again from the contents of the shards just before it. It gives the same result, and what is already written is
left unchanged.

Rows that keep the stream's times are in a shard of those times (`line`), whose upper is the reported
frontier. Their data shard is then a clock: it has no rows, is committed last, and records which bindings are
done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from tidemill import failpoints
from tidemill.cdcv2.stalls import Stall
from tidemill.cdcv2.times import Time
from tidemill.errors import Internal
from tidemill.ingest.fact_shard import append_sidecar, read_facts, write_facts
from tidemill.ingest.recovery.values import Recover, Settled, Tallied
from tidemill.ingest.recovery.verdict import DECODE_ERROR, opened
from tidemill.persist.part import Part
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import StreamSpec
from tidemill.time.bounds import MAX_UPPER
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.model import RelationDesc

FP_STASHED = failpoints.register("tick.recovery.stashed", "a stash has the tick, the tally and the data not")
FP_TALLIED = failpoints.register("tick.recovery.tallied", "stash and tally have the tick, the data not")
FP_LINED = failpoints.register(
    "tick.recovery.lined", "rows with times of their own have the tick, its clock not"
)

# The kinds of rows of the tally. (Marks belong to the source: `sources.contract`.)
FRONTIERS, STATEMENT, TIME, MARK = "frontiers", "statement", "time", "mark"
# The number of unreadable records that the status shows.
MAX_UNREADABLE = 5


class StreamState:
    """See the module. The shards are fenced by us."""

    def __init__(self, data: Shard, stash: Shard, tally: Shard, line: Shard | None = None) -> None:
        self._data = data
        self.stash = stash
        self.tally = tally
        # The shard of the rows, if they keep the stream's times.
        self.line = line
        # For such a stream, the problems without a time at which they could be errors: the latest unreadable
        # records since the process was started. They cause no wrong result, because their updates and counts
        # are missed.
        self.unreadable: tuple[str, ...] = ()
        # The state just before the data's upper, and the tally's rows with it; None if it must be read again.
        self._tallied: Tallied | None = None
        self._rows: dict[str, str] = {}
        # The marks of the source's upstream, for everything that was read.
        self.marks: dict[str, str] = {}
        # Whether the tally had the current tick before it was committed.
        self._ahead = False
        # Since when (monotonic seconds) the frontier has had each of its elements.
        self._since: dict[Time, float] = {}
        self._load()

    def recover(self, stream: StreamSpec) -> Recover:
        """The state from which the next unit starts."""
        tallied = self._load()
        tally = opened(tallied, stream)
        poisoned = frozenset(at for at, _, _, wrong in tally.unreported() if wrong)
        return Recover(
            self.stash.id,
            self.stash.desc,
            upper_of(self._data),
            stream,
            tallied,
            tally.reported,
            poisoned,
            self.line is not None,
        )

    def _load(self) -> Tallied:
        if self._tallied is None:
            data, tally = upper_of(self._data), upper_of(self.tally)
            kept = read_facts(self.tally, data)
            self._rows = {item: value for item, value in kept.items() if not _is_mark(item)}
            # Includes those of a tick that reached this point and no further: it is read again, from the same
            # input.
            kept = read_facts(self.tally, tally) if tally > data else kept
            self.marks = {item[len(MARK) + 1 :]: value for item, value in kept.items() if _is_mark(item)}
            tallied = from_rows(self._rows)
            now = time.monotonic()
            known = tallied.known or {"reported": []}
            self._since = {at: self._since.get(at, now) for at in known["reported"]}
            self._tallied = tallied
        return self._tallied

    def append(
        self,
        parts: Sequence[Part],
        settled: Settled,
        at: int,
        job: str,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        """Make the tick's changes of stash and tally durable, with the marks of its records, before the
        data's. Raises the outcomes of a commit."""
        append_sidecar(self.stash, parts, at)
        failpoints.hit(FP_STASHED)
        # A shard that is ahead has them from an attempt that reached this point and no further.
        self._ahead = upper_of(self.tally) > at
        rows = to_rows(settled.tallied) | {f"{MARK} {name}": mark for name, mark in (marks or {}).items()}
        if not self._ahead:
            write_facts(self.tally, self._rows, rows, at, job)
        failpoints.hit(FP_TALLIED)

    def release(self, parts: Sequence[Part], settled: Settled) -> None:
        """Make the released rows durable at their own times, before the clock shard advances. Raises the
        outcomes of a commit."""
        line = self.line
        if line is None:
            raise Internal("the rows of the stream have our times")
        upper = cast("int", settled.after[0]) if settled.after else None
        lower = line.upper
        # A shard that is ahead has them from an attempt that reached this point and no further.
        if lower is not None and (upper is None or lower < upper):
            line.compare_and_append(parts, lower, upper)
        said = [error for error in settled.errors if error.startswith(DECODE_ERROR)]
        self.unreadable = (*self.unreadable, *said)[-MAX_UNREADABLE:]
        failpoints.hit(FP_LINED)

    @property
    def complete(self) -> int:
        """For rows with their own times: they are complete before this time."""
        upper = None if self.line is None else self.line.upper
        return MAX_UPPER if upper is None else upper

    def committed(self, settled: Settled, marks: Mapping[str, str] | None = None) -> None:
        """Called when the data has the tick, too."""
        # The durable state is valid, even if another attempt wrote it.
        if self._ahead:
            self._tallied = None
            self._load()
        else:
            self._tallied, self._rows = settled.tallied, to_rows(settled.tallied)
            self.marks |= marks or {}
        now = time.monotonic()
        self._since = {at: self._since.get(at, now) for at in settled.after}

    def forget(self) -> None:
        """Called after a commit with an unknown outcome."""
        self._tallied = None
        for shard in (self.stash, self.tally, self.line):
            if shard is not None:
                shard.refresh()

    def allow_compaction(self) -> None:
        """Times that no redo needs may be compacted."""
        needed = upper_of(self._data) - 1
        for shard in (self.stash, self.tally):
            if needed > shard.since:
                shard.downgrade_since(needed)

    def retain(self, milliseconds: int, step: int) -> None:
        """Release the history of rows with the stream's times, one of which counts as a millisecond. A stream
        that has ended keeps its history."""
        upper = None if self.line is None else self.line.upper
        if self.line is not None and upper is not None and upper - 1 - milliseconds - self.line.since >= step:
            self.line.downgrade_since(upper - 1 - milliseconds)

    def stalls(self, stream: StreamSpec) -> list[Stall]:
        """The reasons why the stream waits, as of the last commit. From any thread."""
        tallied = self._tallied
        if tallied is None or tallied.known is None:
            return []
        now = time.monotonic()
        return [
            replace(stall, seconds=now - self._since.get(stall.time, now))
            for stall in opened(tallied, stream).stalls()
        ]

    @property
    def frontier(self) -> list[Time] | None:
        """The stream is complete before this frontier, as of the last commit; [] at its end; None before the
        first statement."""
        known = self._load().known
        return None if known is None else list(known["reported"])


def _is_mark(item: str) -> bool:
    return item.startswith(f"{MARK} ")


def to_rows(tallied: Tallied) -> dict[str, str]:
    """One row for each statement and time, so that a tick writes only its changes."""
    known = tallied.known
    if known is None:
        return {}
    rows = {FRONTIERS: _json([known["kind"], known["reported"], known["progress"]])}
    for said in known["statements"]:
        rows[f"{STATEMENT} {_json(said[:2])}"] = _json(said)
    for account in known["times"]:
        content = tallied.contents.get(account["time"], 0)
        rows[f"{TIME} {_json(account['time'])}"] = _json([account, content])
    return rows


def from_rows(rows: dict[str, str]) -> Tallied:
    if not rows:
        return Tallied()
    kind, reported, progress = json.loads(rows[FRONTIERS])
    statements = [json.loads(v) for k, v in rows.items() if k.startswith(STATEMENT)]
    accounts = [json.loads(v) for k, v in rows.items() if k.startswith(f"{TIME} ")]
    statements.sort(key=lambda said: said[:2])
    accounts.sort(key=lambda account: account[0]["time"])
    known: dict[str, Any] = {
        "kind": kind,
        "reported": [_time(t) for t in reported],
        "progress": [_time(t) for t in progress],
        "statements": statements,
        "times": [{**account, "time": _time(account["time"])} for account, _ in accounts],
    }
    return Tallied(known, {_time(account["time"]): content for account, content in accounts if content})


def error_rows(desc: RelationDesc, errors: Sequence[str], at: int) -> pa.Table:
    """Errors as updates of the relation: every read at this time or later fails with them."""
    given: dict[str, list[object]] = {
        TIME_COLUMN: [at] * len(errors),
        DIFF_COLUMN: [1] * len(errors),
        ERROR_COLUMN: list(errors),
    }
    schema = shard_schema(desc)
    return pa.table(
        [pa.array(given.get(f.name, [None] * len(errors)), f.type) for f in schema], schema=schema
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _time(value: Any) -> Time:
    return tuple(cast("list[int]", value)) if isinstance(value, list) else value
