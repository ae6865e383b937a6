"""A subscription as server-sent events: pure, from batches to the text of the stream.

The batches are those of a SUBSCRIBE with PROGRESS. Events, each with `data` in JSON:

| event | id | data |
| --- | --- | --- |
| columns | | what a row's values are, and which of them the key; first on each connection |
| snapshot | progress | `{"time", "rows"}`: the relation as it was then. Replaces all that was told before |
| changes | progress | `{"time", "rows"}`: what changed at that time |
| progress | progress | `{"time"}`: all times before it are complete; only where it was asked for |
| notice | | as on the SQL port |
| error | | the reason of the end: `{"message", "code", ...}` |
| end | progress | `{"time"}`: UP TO was reached, or nothing will ever change |

A time is one event, sent when it is complete. One that is larger than a block comes in several, all but the
last with `"more": true` and without an id. An id p says that all times before p were told, and is never given
for less: whoever comes back with it and is told the changes from p on has no gap and no repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.server.http.values import MAX_SAFE_INTEGER, joined, rows_of
from tidemill.types.model import Column

# mz_timestamp and mz_progressed: in the event, not in its rows.
_HEAD = 2


def runs(batch: pa.RecordBatch) -> list[tuple[int, int, int, bool]]:
    """(first row, rows, time, whether they are progress rows): the batch cut where one of the two changes."""
    if not batch.num_rows:
        return []
    times: Any = batch.column(0).to_numpy()
    progressed: Any = batch.column(1).to_numpy(zero_copy_only=False)
    cuts = np.flatnonzero((np.diff(times) != 0) | (progressed[1:] != progressed[:-1])) + 1
    starts = [0, *cuts.tolist()]
    ends = [*cuts.tolist(), batch.num_rows]
    return [
        (start, end - start, int(times[start]), bool(progressed[start]))
        for start, end in zip(starts, ends, strict=True)
    ]


class RunRows:
    """Encodes a block of rows: those of each run as `[..],[..]`, a line for each run. JSON has no line breaks
    within."""

    __slots__ = ("__weakref__", "_columns")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)[_HEAD:]

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        rows = rows_of(batch.columns[_HEAD:], self._columns, batch.num_rows)
        lines = [
            "" if progressed else joined(rows.slice(start, count))
            for start, count, _, progressed in runs(batch)
        ]
        return memoryview("\n".join(lines).encode())


class Events:
    """One stream. Every method returns text that is ready to be sent."""

    def __init__(self, *, snapshot: bool, progress: bool) -> None:
        """`snapshot`: the first time's rows are the relation itself. `progress`: tell of it as events."""
        self._progress = progress
        self._snapshot = snapshot
        # The subscription's AS OF; None before its first row, which tells it.
        self._as_of: int | None = None
        # All times before it were told; None before that can be said.
        self.frontier: int | None = None
        # Rows of a time of which it is not known yet whether there are more.
        self._held: tuple[int, bytes] | None = None

    def begin(self, columns: Sequence[Column], keys: Sequence[str], retry_ms: int) -> bytes:
        described = [{"name": c.name, "type": str(c.type)} for c in columns[_HEAD:]]
        said = _json({"columns": described, "key": list(keys)})
        return b"retry: %d\n" % retry_ms + _event("columns", said)

    def rows(self, batch: pa.RecordBatch, encoded: memoryview) -> bytes:
        """What a block and its `RunRows` make known."""
        pieces: list[bytes] = []
        lines = bytes(encoded).split(b"\n")
        for (_, count, time, progressed), line in zip(runs(batch), lines, strict=True):
            if progressed:
                for _ in range(count):
                    pieces += self._complete(time)
            else:
                pieces += self._changes(time, line)
        return b"".join(pieces)

    def heartbeat(self) -> bytes:
        """A comment; and what a client that is lost now should come back with, for time goes on although
        nothing changes."""
        if self.frontier is None or self._held is not None:
            return b": alive\n\n"
        return b": alive\nid: %d\n\n" % self.frontier

    def end(self) -> bytes:
        if self.frontier is None:
            return _event("end", b"{}")
        return _event("end", _timed(self.frontier), self.frontier)

    @staticmethod
    def notice(notice: dict[str, Any]) -> bytes:
        return _event("notice", _json(notice))

    @staticmethod
    def error(error: dict[str, Any]) -> bytes:
        return _event("error", _json(error))

    def _changes(self, time: int, rows: bytes) -> Iterator[bytes]:
        held = self._held
        self._held = (time, rows)
        if held is not None:
            # Times come in order: what is followed by a later one is complete.
            yield self._told(*held, None if held[0] == time else held[0] + 1)

    def _complete(self, frontier: int) -> Iterator[bytes]:
        if self._as_of is None:
            # The subscription's beginning: the snapshot is still to come, or what was told to whoever comes
            # back reaches further already.
            self._as_of = frontier
            return
        held, self._held = self._held, None
        if held is not None:
            yield self._told(*held, frontier)
        elif self._snapshot and self.frontier is None:
            yield self._told(self._as_of, b"", frontier)
        self.frontier = frontier
        if self._progress:
            yield _event("progress", _timed(frontier), frontier)

    def _told(self, time: int, rows: bytes, frontier: int | None) -> bytes:
        """The rows of a time; without a frontier there are more of them."""
        kind = "snapshot" if self._snapshot and time == self._as_of else "changes"
        more = b',"more":true' if frontier is None else b""
        data = b'{"time":%s%s,"rows":[%s]}' % (_number(time), more, rows)
        if frontier is not None:
            self.frontier = frontier
        return _event(kind, data, frontier)


def _event(kind: str, data: bytes, id_: int | None = None) -> bytes:
    head = b"" if id_ is None else b"id: %d\n" % id_
    return b"%sevent: %s\ndata: %s\n\n" % (head, kind.encode(), data)


def _timed(time: int) -> bytes:
    return b'{"time":%s}' % _number(time)


def _number(time: int) -> bytes:
    """As all integers in JSON here: a string where not every reader keeps all digits."""
    return b"%d" % time if time <= MAX_SAFE_INTEGER else b'"%d"' % time


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
