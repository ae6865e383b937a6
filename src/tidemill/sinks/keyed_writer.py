"""Writer of rows by their key, for UPSERT and DEBEZIUM: a message for each change of a key, exactly once.

The changes of all times between two statements, and the statement, are one transaction of the target. Only
complete times are stated, so readers see the collection as it was at some time, never between two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.sinks.encoding import check_nulls
from tidemill.sinks.kafka_transactions import TransactionalTopic
from tidemill.sinks.keyed_changes import KeyedChanges, NotOne
from tidemill.sinks.rows.messages import Changes, RowMessages
from tidemill.sinks.target import SinkError, SinkPace, Written
from tidemill.sinks.writer import EndsAt
from tidemill.time.shown import show_time
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.columns import contiguous
from tidemill.types.model import RelationDesc
from tidemill.types.wire.text import encode_text

# Rows, and their bytes, that are encoded together.
ROWS_AT_ONCE = 1 << 15
BYTES_AT_ONCE = 16 << 20


class KeyedWriter:
    """`writer.SinkWriter`. `key` are positions of columns of `desc`, `names` the physical names of all.
    `tombstones`: a message without a value follows each deletion."""

    silent = True

    def __init__(
        self,
        desc: RelationDesc,
        key: Sequence[int],
        names: Sequence[str],
        messages: RowMessages,
        target: TransactionalTopic,
        written: Written,
        *,
        tombstones: bool,
    ) -> None:
        self._desc = desc
        self._schema = arrow_schema(desc)
        self._key = list(key)
        self._columns = [*names, TIME_COLUMN, DIFF_COLUMN]
        self._messages = messages
        self._target = target
        self._written = written
        self._tombstones = tombstones
        self._changes = KeyedChanges(messages.keys)
        # The time before which the known keys are those of the collection; None if they are not.
        self._known_at: int | None = None
        # The time at which it began, until something is sent: all that is known was recalled then.
        self._begun: int | None = None
        self.recalls = True

    @property
    def pace(self) -> SinkPace:
        return self._target.pace

    def resume(self) -> int | None:
        return self._target.resume()

    def begin(self, lower: int) -> None:
        # An attempt that failed need not read all keys again if it sent nothing.
        self.recalls = self._known_at != lower
        if self.recalls:
            self._changes, self._known_at = KeyedChanges(self._messages.keys), None
        self._begun = lower

    def recall(self, piece: pa.Table) -> None:
        self._take(piece.select(self._columns), initial=True)

    def send(self, table: pa.Table, *, initial: bool) -> None:
        table = table.select(self._columns)
        if self._begun is not None:
            self._known_at, self._begun = None if initial else self._begun, None
        try:
            self._send(table, initial=initial)
        except EndsAt as e:
            before = table.filter(pa.array(table.column(TIME_COLUMN).to_numpy() < e.at))
            if before.num_rows:
                self._send(before, initial=False)
            raise

    def state(self, upper: int) -> None:
        self._target.state(upper)
        self._known_at = upper

    def close(self) -> None:
        self._target.close()

    def _send(self, table: pa.Table, *, initial: bool) -> None:
        taken = self._take(table, initial=initial)
        for changes, keys in _pieces(*taken):
            values = self._messages.values(changes)
            if self._tombstones:
                keys, values, times = _with_tombstones(changes, keys, values)
            else:
                times = changes.times
            self._target.send(keys.to_pylist(), values.to_pylist(), times.tolist())
        self._written.updates += table.num_rows

    def _take(self, table: pa.Table, *, initial: bool) -> tuple[Changes, pa.Array]:
        check_nulls(table.columns[: len(self._schema)], self._schema)
        known, self._known_at = self._known_at, None
        try:
            return self._changes.of(table, initial=initial)
        except NotOne as e:
            self._known_at = known
            error = self._not_one(table.slice(e.row, 1), e.at)
            if initial:
                raise error from None
            raise EndsAt(e.at, error) from None

    def _not_one(self, row: pa.Table, at: int) -> SinkError:
        columns = [self._desc.columns[i] for i in self._key]
        texts = [encode_text(row.column(i), self._desc.columns[i].type)[0].as_py() for i in self._key]
        shown = ", ".join("null" if t is None else t.decode() for t in texts)
        names = ", ".join(c.name for c in columns)
        return SinkError(
            "two rows have one key of the sink",
            detail=f"Key ({names})=({shown[:1000]}) has more than one row at {show_time(at)}.",
            hint="DROP the sink, and CREATE it anew with a KEY that tells its rows apart, and another topic.",
            sqlstate="23505",
        )


def _pieces(changes: Changes, keys: pa.Array) -> Iterator[tuple[Changes, pa.Array]]:
    """The changes in pieces that fit into memory when they are encoded; each with its own rows only."""
    total = len(changes.times)
    per_row = max(1, changes.table.nbytes // max(1, changes.table.num_rows))
    step = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // per_row))
    for at in range(0, total, step):
        before, after = changes.before[at : at + step], changes.after[at : at + step]
        rows = np.concatenate([before[before >= 0], after[after >= 0]])
        places = np.full((2, len(before)), -1)
        places[0, before >= 0] = np.arange((before >= 0).sum())
        places[1, after >= 0] = np.arange((before >= 0).sum(), len(rows))
        columns = [contiguous(column).take(pa.array(rows)) for column in changes.table.columns]
        table = pa.Table.from_arrays(columns, names=changes.table.column_names)
        times = changes.times[at : at + step]
        yield Changes(table, places[0], places[1], times, changes.initial), keys.slice(at, step)


def _with_tombstones(
    changes: Changes, keys: pa.Array, values: pa.Array
) -> tuple[pa.Array, pa.Array, np.ndarray]:
    gone = np.flatnonzero(changes.after < 0)
    if not gone.size:
        return keys, values, changes.times
    rows = np.insert(np.arange(len(changes.times)), gone + 1, gone)
    nothing = np.zeros(len(rows), np.bool_)
    nothing[gone + np.arange(1, len(gone) + 1)] = True
    at = pa.array(rows)
    return keys.take(at), values.take(pa.array(rows, mask=nothing)), changes.times[rows]
