"""The results that the application receives: batches of changes and query results, as Arrow, polars,
pandas or Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.client.course import News
from tidemill.client.errors import MissingPackage
from tidemill.client.forms import ClientField, any_scale, held_schema, own_scale, python_rows, shown
from tidemill.types.columns import contiguous, numbers
from tidemill.types.identity import leaders

if TYPE_CHECKING:
    import polars as pl


class Frame:
    """Rows, converted when they are asked for. `arrow` is a `pyarrow.Table`; what the types of columns
    become is told in docs/client.md."""

    def __init__(self, held: pa.Table, fields: Sequence[ClientField]) -> None:
        self._held = held
        self._fields = tuple(fields)

    @cached_property
    def arrow(self) -> pa.Table:
        return shown(self._held, self._fields)

    def __len__(self) -> int:
        return self._held.num_rows

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dictionary. For few rows: `arrow` is made for many."""
        return python_rows(self.arrow, self._fields)

    def to_polars(self) -> pl.DataFrame:
        return to_polars(self.arrow)

    def to_pandas(self) -> Any:
        """Needs pandas, which is not installed along with Tidemill."""
        return to_pandas(self.arrow, self._fields)


class Batch(Frame):
    """All that happened at one time of a subscription, and nothing else: after it the relation is known as
    it was at `time`. With `snapshot` it is not what changed, but all that was there. Columns: `mz_diff`
    (1: a row came, -1: it went) or `mz_state`, then those of the relation."""

    def __init__(self, held: pa.Table, fields: Sequence[ClientField], time: int, *, snapshot: bool) -> None:
        super().__init__(held, fields)
        self.time = time
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return f"<Batch time={self.time} rows={len(self)}{' snapshot' if self.snapshot else ''}>"


def batches(news: News, fields: Sequence[ClientField], *, progress: bool) -> list[Batch]:
    """The times of some news as batches; with `progress`, one without rows where nothing changed."""
    made = [Batch(c.rows, fields, c.time, snapshot=c.snapshot) for c in news.complete]
    if progress and (not made or made[-1].time < news.after):
        made.append(Batch(held_schema(fields).empty_table(), fields, news.after, snapshot=False))
    return made


class Changes(Frame):
    """What changed in a live table at one time. `arrow` has the column `mz_diff` and then the table's.

    With `snapshot` the table was empty before, and these are its first rows. With `renewed` the server no
    longer knew what had happened since the last time that was seen: the table was read anew, and this is how
    it differs from what it was.
    """

    def __init__(
        self,
        held: pa.Table,
        fields: Sequence[ClientField],
        key: Sequence[int],
        time: int,
        *,
        snapshot: bool = False,
        renewed: bool = False,
    ) -> None:
        """`held` begins with the diffs; `key` counts the columns behind them."""
        super().__init__(held, fields)
        self._key = tuple(key)
        self.time = time
        self.snapshot = snapshot
        self.renewed = renewed

    def __repr__(self) -> str:
        kind = " snapshot" if self.snapshot else " renewed" if self.renewed else ""
        return f"<Changes time={self.time} rows={len(self)}{kind}>"

    @property
    def added(self) -> Frame:
        """The rows that came."""
        return self._picked(self._diffs > 0)

    @property
    def removed(self) -> Frame:
        """The rows that went, as they were."""
        return self._picked(self._diffs < 0)

    @property
    def inserted(self) -> Frame:
        """The rows that came, of keys that had none. Without a key: all that came."""
        return self._picked((self._diffs > 0) & ~self._both)

    @property
    def updated(self) -> Frame:
        """The rows that came in place of others with their key, as they are now."""
        return self._picked((self._diffs > 0) & self._both)

    @property
    def deleted(self) -> Frame:
        """The rows that went, of keys that got no other."""
        return self._picked((self._diffs < 0) & ~self._both)

    @cached_property
    def _diffs(self) -> np.ndarray:
        return numbers(contiguous(self._held.column(0)), np.int64)

    @cached_property
    def _both(self) -> np.ndarray:
        """Whether rows with this row's key both came and went."""
        count = len(self._diffs)
        if not self._key or not count:
            return np.zeros(count, np.bool_)
        group = leaders([contiguous(self._held.column(i + 1)) for i in self._key], count)
        came, went = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        came[group[self._diffs > 0]] = True
        went[group[self._diffs < 0]] = True
        return (came & went)[group]

    def _picked(self, rows: np.ndarray) -> Frame:
        without_diff = self._held.drop_columns(self._held.column_names[:1])
        return Frame(without_diff.filter(pa.array(rows)), self._fields[1:])


def to_polars(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_pandas(table: pa.Table, fields: Sequence[ClientField]) -> Any:
    try:
        import_module("pandas")
    except ImportError as e:
        raise MissingPackage("to_pandas() needs pandas", hint="pip install pandas") from e
    frame = table.to_pandas()
    for name, field in zip(table.column_names, fields, strict=True):
        if any_scale(field.type):
            frame[name] = frame[name].map(own_scale)
    return frame
