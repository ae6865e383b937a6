"""Remap: the durable collection of a source's bindings, which maps times to upstream frontiers.

Used by `ingest.machine`, one `Remap` per source and process. The rows of the shard are partitions and the
diffs are increments. Their sum up to a time is the frontier at that time, and old bindings consolidate like
other updates. Promises: bindings are durable before `bind` returns, in the order of their times, monotone,
and never change. The frontier of a time is readable as long as the since of the shard allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import DataCorrupted, Internal
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import Gauge
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.time.shown import show_time
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, storage_schema
from tidemill.types.names import physical_names

FP_BEFORE_BIND = failpoints.register("tick.before_bind", "a frontier is known, no binding is written")
FP_PUT = failpoints.register("tick.bind_put", "a binding is durable, its writer does not know")
FP_BOUND = failpoints.register("tick.bound", "a binding is durable, nothing of it was read")


@dataclass(frozen=True, slots=True)
class Binding:
    """At `time` the source is included up to `upper`; the records from `lower` on belong to this time."""

    time: int
    lower: Offsets
    upper: Offsets

    @property
    def records(self) -> int:
        return self.upper.records_since(self.lower)


class Remap:
    """Not thread-safe: a source's machine calls it, one step at a time."""

    def __init__(self, shard: Shard, gauge: Gauge, start: Offsets) -> None:
        """The shard is fenced by us. `start` is where reading begins: what lies before it belongs to the
        first binding in number, but is never read."""
        self._shard = shard
        self._gauge = gauge
        self._start = start
        # The frontier of the last binding; `start` before the first.
        self.frontier = start
        for binding in self.bindings(0):
            self.frontier = binding.upper

    @property
    def shard(self) -> Shard:
        return self._shard

    @property
    def upper(self) -> int:
        """No binding was or will be made before it that is not there."""
        return upper_of(self._shard)

    def bind(self, time: int, upper: Offsets, job: str) -> Binding:
        """Bind everything up to `upper` to `time`. Raises a commit's outcomes; when it raises, there is no
        binding."""
        increments = upper.increments(self.frontier)
        if not increments:
            raise Internal("a binding without a record")
        binding = Binding(time, self.frontier, upper)
        if self.frontier == self._start:
            # The numbers before the start are bound with the first record, so that sums are absolute.
            increments = upper.increments(Offsets())
        failpoints.hit(FP_BEFORE_BIND)
        part = self._shard.write_part(self._updates(time, increments), job=job)
        append_settled(self._shard, part, self.upper, time + 1, after_put=FP_PUT)
        self.frontier = upper
        failpoints.hit(FP_BOUND)
        return binding

    def bindings(self, from_: int) -> list[Binding]:
        """The bindings at or after `from_`, in order. Bindings before since are merged into one binding at
        since: for earlier times, the records of each time are no longer known."""
        found: list[Binding] = []
        frontier = self._start
        for time, increments in self.history():
            after = (Offsets() if frontier == self._start else frontier).plus(increments)
            if not frontier <= after:
                raise DataCorrupted(
                    f"the bindings in shard {self._shard.id} are not monotone",
                    detail=f"At {show_time(time)} the source's frontier goes from {frontier} to {after}.",
                )
            if time >= from_ and after != frontier:
                found.append(Binding(time, frontier, after))
            frontier = after
        return found

    def history(self) -> list[tuple[int, dict[PartitionKey, int]]]:
        """The increments of every retained binding by partition, in the order of times."""
        return retained(self._shard, self._gauge)

    def allow_compaction(self, to: int) -> None:
        self._shard.downgrade_since(to)

    def _updates(self, time: int, increments: dict[PartitionKey, int]) -> pa.Table:
        desc = self._gauge.remap_desc
        columns: dict[str, pa.Array] = {}
        if self._gauge.partition is not None:
            (field,) = storage_schema(desc)
            columns[field.name] = pa.array(list(increments), field.type)
        columns[TIME_COLUMN] = pa.array([time] * len(increments), pa.int64())
        columns[DIFF_COLUMN] = pa.array(list(increments.values()), pa.int64())
        return pa.table(columns)


def retained(shard: Shard, gauge: Gauge) -> list[tuple[int, dict[PartitionKey, int]]]:
    """The increments of every binding that the shard still has, by partition, in the order of times."""
    as_of = max(upper_of(shard) - 1, shard.since)
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        tables = [snapshot.read_part(part) for part in snapshot.parts]
    return increments_by_time(pa.concat_tables(tables), gauge) if tables else []


def increments_by_time(updates: pa.Table, gauge: Gauge) -> list[tuple[int, dict[PartitionKey, int]]]:
    """Updates of a remap shard, summed per time and partition; times ascend."""
    by_time: dict[int, dict[PartitionKey, int]] = {}
    times = cast("list[int]", updates.column(TIME_COLUMN).to_pylist())
    diffs = cast("list[int]", updates.column(DIFF_COLUMN).to_pylist())
    partitions: list[Any] = [None] * len(times)
    if gauge.partition is not None:
        partitions = updates.column(physical_names(gauge.remap_desc)[0]).to_pylist()
    for at in np.argsort(np.asarray(times, np.int64), kind="stable").tolist():
        sums = by_time.setdefault(times[at], {})
        sums[partitions[at]] = sums.get(partitions[at], 0) + diffs[at]
    return list(by_time.items())


def cumulated(
    history: list[tuple[int, dict[PartitionKey, int]]], as_of: int | None = None
) -> list[tuple[int, Offsets]]:
    """The frontier at each binding's time, up to `as_of`."""
    frontier = Offsets()
    rows: list[tuple[int, Offsets]] = []
    for time, increments in history:
        if as_of is not None and time > as_of:
            break
        frontier = frontier.plus(increments)
        rows.append((time, frontier))
    return rows
