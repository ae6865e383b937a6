"""What the tests of shards share: a small relation, updates from tuples, a model of a shard, and the
checkers.

The model is a shard in a few lines of pure Python: a list of updates. The checkers are what proves I2 and I3,
so they are themselves tested with planted bugs (`tests/persist/test_persist_planted.py`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.persist.blob import Blobs
from tidemill.persist.log import list_log, load
from tidemill.persist.part import part_path
from tidemill.persist.shard import Shard
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

Row = tuple[int | None, str | None]
Update = tuple[Row, int, int]  # row, time, diff

DESC = RelationDesc((Column("k", INT8), Column("v", TEXT)))


def memory_folder() -> str | None:
    """A place for temporary folders where fsync costs nothing, for tests of logic with thousands of
    commits (durability is tested on a disk); None for the usual place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def updates(of: Iterable[Update]) -> pa.Table:
    """Updates as a shard of `DESC` takes them."""
    listed = list(of)
    return pa.table(
        {
            "k": pa.array([row[0] for row, _, _ in listed], pa.int64()),
            "v": pa.array([row[1] for row, _, _ in listed], pa.string()),
            "mz_timestamp": pa.array([time for _, time, _ in listed], pa.int64()),
            "mz_diff": pa.array([diff for _, _, diff in listed], pa.int64()),
        }
    )


def append(shard: Shard, of: Iterable[Update], upper: int, lower: int | None = None) -> None:
    """Write the updates as one part (none for no updates) and append it."""
    listed = list(of)
    parts = [shard.write_part(updates(listed), job="test")] if listed else []
    shard.compare_and_append(parts, shard.upper if lower is None else lower, upper)


def multiset(table: pa.Table) -> Counter[Row]:
    """A snapshot's table as a multiset of rows; its diffs must all be positive where the collection is
    one."""
    found: Counter[Row] = Counter()
    for row in table.to_pylist():
        found[(row["k"], row["v"])] += row["mz_diff"]
    return Counter({row: count for row, count in found.items() if count})


def contents(shard: Shard, as_of: int) -> Counter[Row]:
    with shard.snapshot(as_of) as snapshot:
        return multiset(snapshot.read())


def timed(table: pa.Table) -> Counter[tuple[Row, int]]:
    """A listen's table: how much each row changes at each time."""
    found: Counter[tuple[Row, int]] = Counter()
    for row in table.to_pylist():
        found[((row["k"], row["v"]), row["mz_timestamp"])] += row["mz_diff"]
    return Counter({key: diff for key, diff in found.items() if diff})


@dataclass
class Model:
    """What a shard promises, by folding a list."""

    since: int = 0
    upper: int = 0
    history: list[Update] = field(default_factory=list[Update])

    def append(self, of: Iterable[Update], upper: int) -> None:
        self.history.extend(of)
        self.upper = upper

    def at(self, time: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for row, at, diff in self.history:
            if at <= time:
                found[row] += diff
        return Counter({row: count for row, count in found.items() if count})

    def between(self, lower: int, upper: int) -> Counter[tuple[Row, int]]:
        found: Counter[tuple[Row, int]] = Counter()
        for row, at, diff in self.history:
            if lower <= at < upper:
                found[(row, at)] += diff
        return Counter({key: diff for key, diff in found.items() if diff})


def check_contents(shard: Shard, model: Model) -> None:
    """I3: at every readable time the shard holds what the model holds."""
    assert shard.upper == model.upper
    for time in range(shard.since, model.upper):
        assert contents(shard, time) == model.at(time), f"at {time}"


def check_listen(shard: Shard, model: Model, from_: int) -> None:
    """Every update once, in time order, with a frontier that ends at upper."""
    seen: Counter[tuple[Row, int]] = Counter()
    with shard.listen(from_) as listen:
        last = from_
        while listen.frontier is not None and listen.frontier < model.upper:
            batch = listen.next(0)
            assert batch is not None
            table, frontier = batch
            assert frontier is not None
            times = table.column("mz_timestamp").to_pylist()
            assert times == sorted(times)
            assert all(last <= time < frontier for time in times)
            last = frontier
            seen.update(timed(table))
        assert listen.next(0) is None
    assert Counter({k: d for k, d in seen.items() if d}) == model.between(from_, model.upper)


def check_files(blobs: Blobs, shard_id: str) -> None:
    """The log is contiguous and every live part is there with its size."""
    versions = sorted(list_log(blobs, shard_id).entries)
    assert versions == list(range(versions[0], versions[-1] + 1))
    for part in load(blobs, shard_id).state.parts.values():
        assert blobs.size(part_path(shard_id, part)) == part.bytes
