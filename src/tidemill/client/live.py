"""The content of a live table: the shared state of `LiveTable` and `AsyncLiveTable`.

One thread applies complete times in order. Any number of other threads may read meanwhile; they see the
table at one complete time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.client.assemble import CompleteTime
from tidemill.client.course import News
from tidemill.client.forms import ClientField, key_array, python_rows, shown, unique
from tidemill.client.frames import Changes, to_pandas, to_polars
from tidemill.client.state import Counted, RelationState
from tidemill.errors import InvalidValue, UndefinedObject
from tidemill.types.columns import contiguous, numbers

if TYPE_CHECKING:
    import polars as pl


class LiveState:
    """Methods without an underscore read, except those of the feeder below."""

    def __init__(self, key: Sequence[str]) -> None:
        self._names = tuple(key)
        self._lock = threading.Lock()
        self._state: RelationState | None = None
        self._fields: tuple[ClientField, ...] = ()
        self._key: tuple[int, ...] = ()
        self._time: int | None = None
        # The last result of `arrow`; None after a change.
        self._shown: pa.Table | None = None
        # Complete times that are not applied yet, and the time that is complete once they are.
        self._waiting: deque[CompleteTime] = deque()
        self._after: int | None = None

    @property
    def time(self) -> int | None:
        """The table is complete as of this time; None before the first snapshot is complete. Advances while
        nothing changes."""
        return self._time

    @property
    def lag(self) -> float | None:
        """Seconds between `time` and this machine's clock; about one second while nothing changes."""
        return None if self._time is None else max(0.0, time.time() - self._time / 1000)

    @property
    def columns(self) -> list[str]:
        """The names of the columns; none before the first snapshot."""
        return unique([f.name for f in self._fields])

    @property
    def key(self) -> list[str]:
        return list(self._names)

    def __len__(self) -> int:
        with self._lock:
            return 0 if self._state is None else self._state.size

    @property
    def arrow(self) -> pa.Table:
        """All rows, in no particular order."""
        with self._lock:
            if self._state is None:
                return pa.table({})
            if self._shown is None:
                self._shown = shown(self._state.rows(), self._fields)
            return self._shown

    def rows(self) -> list[dict[str, Any]]:
        arrow = self.arrow
        return python_rows(arrow, self._fields) if arrow.num_columns else []

    def to_polars(self) -> pl.DataFrame:
        return to_polars(self.arrow)

    def to_pandas(self) -> Any:
        arrow = self.arrow
        return to_pandas(arrow, self._fields if arrow.num_columns else ())

    def get(self, *key: object) -> dict[str, Any] | None:
        """The row with this key, the first one if there are several, or None. Does not scan the
        other rows."""
        if not self._names:
            raise InvalidValue("get() needs a key", hint='Name its columns: live_table(..., key=["id"]).')
        if len(key) != len(self._names):
            raise InvalidValue(f"the key has {len(self._names)} columns: {', '.join(self._names)}")
        with self._lock:
            if self._state is None:
                return None
            pairs = zip(key, (self._fields[i] for i in self._key), strict=True)
            try:
                wanted = [key_array(value, field.type) for value, field in pairs]
            except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
                raise InvalidValue(f"{key} cannot be a key of this table", detail=str(e)) from None
            table = shown(self._state.find(wanted).slice(0, 1), self._fields)
            found = python_rows(table, self._fields)
            return found[0] if found else None

    # -- the feeder's

    def _put(self, news: News) -> None:
        self._waiting.extend(news.complete)
        self._after = news.after

    def _take_next(self, fields: Sequence[ClientField]) -> Changes | None:
        """Return the changes of the next time with changes; None when all waiting times are applied."""
        while self._waiting:
            changes = self.take(self._waiting.popleft(), fields)
            # A new snapshot with the same rows, after an outage, is no change.
            if len(changes) or changes.snapshot:
                return changes
        if self._after is not None:
            self.advance(self._after)
        return None

    def take(self, complete: CompleteTime, fields: Sequence[ClientField]) -> Changes:
        """Apply one complete time; `fields` start with mz_diff."""
        diffs = numbers(contiguous(complete.rows.column(0)), np.int64)
        rows = Counted(complete.rows.drop_columns(complete.rows.column_names[:1]), diffs)
        first = self._state is None
        with self._lock:
            if self._state is None:
                self._fields = tuple(fields[1:])
                self._key = _places(self._names, self.columns)
                self._state = RelationState(rows.rows.slice(0, 0), self._key)
            if complete.snapshot:
                rows = self._state.replace(rows)
            else:
                self._state.apply(rows)
            self._shown = None
            self._time = complete.time
        table = rows.rows.add_column(0, complete.rows.schema.field(0), pa.array(rows.counts))
        return Changes(
            table,
            fields,
            self._key,
            complete.time,
            snapshot=first,
            renewed=complete.snapshot and not first,
        )

    def advance(self, after: int) -> None:
        """Record that nothing changed up to this time."""
        if self._time is not None and after > self._time:
            self._time = after


def _places(names: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
    for name in names:
        if name not in columns:
            raise UndefinedObject(
                f'column "{name}" does not exist', detail=f"There are {', '.join(columns)}.", sqlstate="42703"
            )
    return tuple(columns.index(name) for name in names)
