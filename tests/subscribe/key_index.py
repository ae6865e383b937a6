"""An arrangement for tests of followers: every update of a collection, in a list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.arrangements import key_hash
from tidemill.query.multiset import add_up
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.kernels import pc


class ListedIndex:
    def __init__(self, first: pa.Table, key: tuple[str, ...], upper: int) -> None:
        """`first`: the rows just before `upper`, with their counts."""
        self.upper = upper
        self.since = upper
        self._names = [n for n in first.schema.names if n != DIFF_COLUMN]
        self._key = key
        before = pa.array(np.full(first.num_rows, upper - 1))
        self._updates = [first.add_column(len(self._names), TIME_COLUMN, before)]

    def lookup(self, hashes: np.ndarray, before: int) -> pa.Table:
        assert self.since <= before <= self.upper
        assert (np.diff(hashes.astype(object)) > 0).all()
        rows = pa.concat_tables(self._updates)
        rows = rows.filter(pc.less(rows.column(TIME_COLUMN), before)).drop_columns([TIME_COLUMN])
        own = key_hash(rows, self._key)
        found = add_up([rows.filter(pa.array(np.isin(own, hashes)))])
        # As shards say it.
        return found.cast(pa.schema([f.with_nullable(f.name != DIFF_COLUMN) for f in found.schema]))

    def count(self, hashes: np.ndarray) -> int:
        return self.lookup(hashes, self.upper).num_rows

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int) -> None:
        assert len(hashes) == updates.num_rows and upper >= self.upper
        if updates.num_rows:
            times = updates.column(TIME_COLUMN).to_numpy()
            assert (times >= self.upper).all() and (times < upper).all()
            self._updates.append(updates.select([*self._names, TIME_COLUMN, DIFF_COLUMN]))
        self.upper = upper

    def compact(self, to: int) -> None:
        self.since = to

    def close(self) -> None:
        pass
