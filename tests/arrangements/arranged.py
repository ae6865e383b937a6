"""What the tests of arrangements share: a real shard in a folder, beside a model of it in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from support.shards import DESC, Row, Update, append
from tidemill.arrangements import Arrangement, Arrangements, Filling, key_hash
from tidemill.persist.local import LocalBlobs
from tidemill.persist.shard import Shard

KEY = ["k"]


def hashes_of(keys: Iterable[int | None]) -> np.ndarray:
    table = pa.table({"k": pa.array(list(keys), pa.int64())})
    return np.unique(key_hash(table, KEY))


def counted(table: pa.Table) -> Counter[Row]:
    """What a lookup returned; each row once, and none of count zero."""
    found: Counter[Row] = Counter()
    for row in table.to_pylist():
        assert (row["k"], row["v"]) not in found, "a row is there twice"
        assert row["mz_diff"], "a row has the count zero"
        found[row["k"], row["v"]] = row["mz_diff"]
    return found


class ArrangedShard:
    """A shard of `DESC`, and all its updates."""

    def __init__(self, folder: str) -> None:
        self.shard = Shard.create(LocalBlobs(folder), "s", DESC, epoch=1, upper=1)
        self.updates: list[Update] = []

    @property
    def upper(self) -> int:
        assert self.shard.upper is not None
        return self.shard.upper

    def append(self, updates: Sequence[Update], upper: int) -> None:
        append(self.shard, updates, upper)
        self.updates += updates

    def forget_holds(self) -> None:
        """As after a restart: nobody holds its history any more, and what was let go is gone."""
        self.shard.record_since()
        self.shard = Shard.open(self.shard.blobs, "s", epoch=1)

    def contents(self, keys: Iterable[int | None], before: int) -> Counter[Row]:
        wanted = set(keys)
        found: Counter[Row] = Counter()
        for row, time, diff in self.updates:
            if time < before and row[0] in wanted:
                found[row] += diff
        return Counter({row: count for row, count in found.items() if count})

    def open(self, store: Arrangements, at: int, filling: Filling | None = None) -> Arrangement:
        return store.open(self.shard, self.shard.snapshot, ["k", "v"], KEY, at, filling)

    def bring(self, arrangement: Arrangement, lower: int, upper: int) -> None:
        """As a follower does that stands at `lower`."""
        with self.shard.snapshot(upper - 1) as snapshot:
            tables = [snapshot.read_part(part) for part in snapshot.parts]
        table = pa.concat_tables([t.drop_columns(["mz_error"]) for t in tables]) if tables else None
        if table is None:
            table = self.shard.schema.empty_table()
        times = table.column("mz_timestamp").to_numpy()
        table = table.filter(pa.array((times >= lower) & (times < upper)))
        arrangement.append(table, key_hash(table, KEY), upper)
