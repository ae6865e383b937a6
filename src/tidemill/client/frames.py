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
    """Rows that are converted on access. `arrow` is a `pyarrow.Table`; docs/client.md lists the types of its
    columns."""

    def __init__(self, held: pa.Table, fields: Sequence[ClientField]) -> None:
        self._held = held
        self._fields = tuple(fields)

    @cached_property
    def arrow(self) -> pa.Table:
        return shown(self._held, self._fields)

    def __len__(self) -> int:
        return self._held.num_rows

    @property
    def fields(self) -> tuple[ClientField, ...]:
        """The columns of `stored`, with their types."""
        return self._fields

    @property
    def stored(self) -> pa.Table:
        """The rows in the form in which Tidemill stores them, from which any text form can be made."""
        return self._held

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dictionary. Suitable for few rows; use `arrow` for many."""
        return python_rows(self.arrow, self._fields)

    def to_polars(self) -> pl.DataFrame:
        return to_polars(self.arrow)

    def to_pandas(self) -> Any:
        """Convert to pandas, which is not installed with Tidemill."""
        return to_pandas(self.arrow, self._fields)


class Batch(Frame):
    """All changes at one time of a subscription: after the batch the relation is known as of `time`. With
    `snapshot` the rows are not changes but the whole relation. Columns: `mz_diff` (1: row added, -1: row
    removed) or `mz_state`, then those of the relation."""

    def __init__(self, held: pa.Table, fields: Sequence[ClientField], time: int, *, snapshot: bool) -> None:
        super().__init__(held, fields)
        self.time = time
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return f"<Batch time={self.time} rows={len(self)}{' snapshot' if self.snapshot else ''}>"


def batches(news: News, fields: Sequence[ClientField], *, progress: bool) -> list[Batch]:
    """The times of some news as batches. With `progress`, a batch without rows marks times without
    changes."""
    made = [Batch(c.rows, fields, c.time, snapshot=c.snapshot) for c in news.complete]
    if progress and (not made or made[-1].time < news.after):
        made.append(Batch(held_schema(fields).empty_table(), fields, news.after, snapshot=False))
    return made


class Changes(Frame):
    """The changes of a live table at one time. `arrow` has the column `mz_diff` and then those of the table.

    With `snapshot` the table was empty before, and these are its first rows. With `renewed` the server no
    longer had the history since the last time that was seen. The table was then read again, and these are the
    differences from its previous content.
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
        """`held` starts with the diffs; `key` has the positions of the key columns after them."""
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
        """The added rows."""
        return self._picked(self._diffs > 0)

    @property
    def removed(self) -> Frame:
        """The removed rows, with their old values."""
        return self._picked(self._diffs < 0)

    @property
    def inserted(self) -> Frame:
        """The added rows whose key did not exist before. Without a key: all added rows."""
        return self._picked((self._diffs > 0) & ~self._both)

    @property
    def updated(self) -> Frame:
        """The rows that replace another with the same key, with their new values."""
        return self._picked((self._diffs > 0) & self._both)

    @property
    def deleted(self) -> Frame:
        """The removed rows whose key does not exist any more."""
        return self._picked((self._diffs < 0) & ~self._both)

    @cached_property
    def _diffs(self) -> np.ndarray:
        return numbers(contiguous(self._held.column(0)), np.int64)

    @cached_property
    def _both(self) -> np.ndarray:
        """For each row, whether rows with its key were both added and removed."""
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
