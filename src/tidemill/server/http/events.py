"""A subscription as server-sent events: encodes batches as the text of the stream. Pure.

The batches are those of a SUBSCRIBE with PROGRESS. The events, each with `data` in JSON:

| event | id | data |
| --- | --- | --- |
| columns | | the columns of a row, and which of them form the key; first on each connection |
| snapshot | progress | `{"time", "rows"}`: the relation at that time. Replaces all earlier rows |
| changes | progress | `{"time", "rows"}`: the changes at that time |
| progress | progress | `{"time"}`: all times before it are complete; only if requested |
| notice | | as on the SQL port |
| error | | why the stream ends: `{"message", "code", ...}` |
| end | progress | `{"time"}`: UP TO was reached, or nothing can change any more |

Each time is one event, sent when the time is complete. A time larger than a block is sent as several events;
all but the last have `"more": true` and no id. An id p means that all times before p were sent, and no event
carries an id earlier than that. A client that reconnects with p receives the changes from p on, without gaps
or repeats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.server.http.values import MAX_SAFE_INTEGER, joined, rows_of
from tidemill.types.model import Column

# mz_timestamp and mz_progressed: part of the event, not of its rows.
_HEAD = 2


def runs(batch: pa.RecordBatch) -> list[tuple[int, int, int, bool]]:
    """(first row, rows, time, whether they are progress rows): the batch, cut where the time or the kind of
    row changes."""
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
    """Encodes a block of rows: each run is one line `[..],[..]`. The JSON contains no line breaks."""

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
    """One stream. Every method returns text that is ready to send."""

    def __init__(self, *, snapshot: bool, progress: bool) -> None:
        """`snapshot`: the rows of the first time are the relation itself. `progress`: also send progress
        events."""
        self._progress = progress
        self._snapshot = snapshot
        # The AS OF of the subscription; None before its first row, which contains it.
        self._as_of: int | None = None
        # All times before it were sent; None while that is unknown.
        self.frontier: int | None = None
        # Rows of a time that may have more rows.
        self._held: tuple[int, bytes] | None = None

    def begin(self, columns: Sequence[Column], keys: Sequence[str], retry_ms: int) -> bytes:
        described = [{"name": c.name, "type": str(c.type)} for c in columns[_HEAD:]]
        said = _json({"columns": described, "key": list(keys)})
        return b"retry: %d\n" % retry_ms + _event("columns", said)

    def rows(self, batch: pa.RecordBatch, encoded: memoryview) -> bytes:
        """The events for a block and its encoding by `RunRows`."""
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
        """A comment. Also the id for a reconnect, since time advances although nothing changes."""
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
            # Times are ordered: a time is complete when a later one follows.
            yield self._told(*held, None if held[0] == time else held[0] + 1)

    def _complete(self, frontier: int) -> Iterator[bytes]:
        if self._as_of is None:
            # The first progress row of the subscription. Either the snapshot is still to come, or a
            # reconnecting client has already received more than this frontier covers.
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
        """The event with rows of a time; without a frontier more rows of it follow."""
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
    """An integer as everywhere in this JSON: a string if some readers would lose digits."""
    return b"%d" % time if time <= MAX_SAFE_INTEGER else b'"%d"' % time


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
