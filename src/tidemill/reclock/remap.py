"""Remap: the durable collection of a source's bindings, which maps times to upstream frontiers.

Used by `ingest.machine`, one `Remap` per source and process. The rows of the shard are partitions and the
diffs are increments. Their sum up to a time is the frontier at that time, and old bindings consolidate like
other updates. A gauge with stamps has them in a hidden column. Promises: bindings are durable before `bind`
returns, in the order of their times, monotone, and never change. The frontier of a time is readable as long
as the since of the shard allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, storage_schema
from tidemill.types.kernels import pc
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
        # The latest stamp of each partition, if the gauge has stamps.
        self.stamps: dict[PartitionKey, str] = {}
        # The frontier of the last binding; `start` before the first.
        self.frontier = self.frontier_at(self.upper)
        if gauge.stamp is not None:
            self.stamps = latest_stamps(shard, gauge)

    @property
    def shard(self) -> Shard:
        return self._shard

    @property
    def upper(self) -> int:
        """No binding was or will be made before it that is not there."""
        return upper_of(self._shard)

    def bind(
        self, time: int, upper: Offsets, job: str, stamps: Mapping[PartitionKey, str] | None = None
    ) -> Binding:
        """Bind everything up to `upper` to `time`; `stamps` has one for each partition that moves. Raises a
        commit's outcomes; when it raises, there is no binding."""
        increments = upper.increments(self.frontier)
        if not increments:
            raise Internal("a binding without a record")
        binding = Binding(time, self.frontier, upper)
        if self.frontier == self._start:
            # The numbers before the start are bound with the first record, so that sums are absolute.
            increments = upper.increments(Offsets())
        failpoints.hit(FP_BEFORE_BIND)
        part = self._shard.write_part(self._updates(time, increments, stamps or {}), job=job)
        append_settled(self._shard, part, self.upper, time + 1, after_put=FP_PUT)
        self.frontier = upper
        self.stamps.update(stamps or {})
        failpoints.hit(FP_BOUND)
        return binding

    def bindings(self, from_: int) -> list[Binding]:
        """The bindings at or after `from_`, in order. Bindings before since are merged into one binding at
        since: for earlier times, the records of each time are no longer known."""
        found: list[Binding] = []
        sums: dict[PartitionKey, int] = {}
        # Computed only where it is needed: it has every partition.
        frontier: Offsets | None = self._start
        for time, increments in self._monotone():
            if time < from_:
                _add(sums, increments)
                frontier = None
                continue
            frontier = frontier or Offsets(sums)
            _add(sums, increments)
            after = Offsets(sums)
            if after != frontier:
                found.append(Binding(time, frontier, after))
            frontier = after
        return found

    def frontier_at(self, time: int) -> Offsets:
        """What is bound at `time`, `start` if nothing is. As `bindings`: for times before since it is what is
        bound at since."""
        sums: dict[PartitionKey, int] = {}
        for at, increments in self._monotone():
            if at <= time:
                _add(sums, increments)
        return Offsets(sums) if sums else self._start

    def _monotone(self) -> Iterator[tuple[int, dict[PartitionKey, int]]]:
        """`history`, checked."""
        sums: dict[PartitionKey, int] | None = None
        for time, increments in self.history():
            if sums is None:
                sums = dict(increments)
                back = not self._start <= Offsets({p: max(0, n) for p, n in sums.items()})
            else:
                back = False
            if back or any(increment < 0 for increment in increments.values()):
                raise DataCorrupted(
                    f"the bindings in shard {self._shard.id} are not monotone",
                    detail=f"At {show_time(time)} the source's frontier goes back: {increments}, from "
                    f"{self._start if back else sums}.",
                )
            yield time, increments

    def history(self) -> list[tuple[int, dict[PartitionKey, int]]]:
        """The increments of every retained binding by partition, in the order of times."""
        return retained(self._shard, self._gauge)

    def places(self) -> dict[PartitionKey, list[tuple[int, str]]]:
        """How far each retained binding went, with its stamp; for gauges with stamps."""
        return places_of(self._shard, self._gauge)

    def allow_compaction(self, to: int) -> None:
        self._shard.downgrade_since(to)

    def _updates(
        self, time: int, increments: dict[PartitionKey, int], stamps: Mapping[PartitionKey, str]
    ) -> pa.Table:
        """All that is bound of a partition has its latest stamp: what was bound under another one moves."""
        rows = [(partition, stamps.get(partition), n) for partition, n in increments.items()]
        for partition, stamp in stamps.items():
            before = self.stamps.get(partition)
            if before is not None and before != stamp:
                bound = self.frontier[partition]
                rows += [(partition, before, -bound), (partition, stamp, bound)]
        desc = self._gauge.remap_desc
        columns: dict[str, pa.Array] = {}
        if self._gauge.partition is not None:
            (field,) = storage_schema(desc)
            columns[field.name] = pa.array([row[0] for row in rows], field.type)
        columns[TIME_COLUMN] = pa.array([time] * len(rows), pa.int64())
        columns[DIFF_COLUMN] = pa.array([row[2] for row in rows], pa.int64())
        if self._gauge.stamp is not None:
            columns[ERROR_COLUMN] = pa.nulls(len(rows), pa.string())
            columns[self._gauge.stamp.name] = pa.array([row[1] for row in rows], pa.string())
        return pa.table(columns)


def _add(sums: dict[PartitionKey, int], increments: Mapping[PartitionKey, int]) -> None:
    for partition, increment in increments.items():
        sums[partition] = sums.get(partition, 0) + increment


def latest_stamps(shard: Shard, gauge: Gauge) -> dict[PartitionKey, str]:
    """The stamp under which everything that is bound of a partition stands."""
    updates = _updates_of(shard)
    return {} if updates is None else stamps_of(updates, gauge)


def stamps_of(updates: pa.Table, gauge: Gauge) -> dict[PartitionKey, str]:
    """The same, of updates up to a time."""
    sums = _stamped(updates, gauge, ())
    return {partition: stamp for partition, stamp, _ in sums}


def places_of(shard: Shard, gauge: Gauge) -> dict[PartitionKey, list[tuple[int, str]]]:
    """Of every retained binding, how far each partition that moved was bound, with the stamp of that."""
    updates = _updates_of(shard)
    if updates is None:
        return {}
    found: dict[PartitionKey, list[tuple[int, str]]] = {}
    counts: dict[PartitionKey, int] = {}
    by_time: dict[int, list[tuple[PartitionKey, str, int]]] = {}
    for partition, stamp, time, diff in _stamped(updates, gauge, (TIME_COLUMN,)):
        by_time.setdefault(time, []).append((partition, stamp, diff))
    for _, moves in sorted(by_time.items()):
        # What was bound moves from the stamp before to the new one, which is the one that gains.
        gains: dict[PartitionKey, str] = {}
        for partition, stamp, diff in moves:
            counts[partition] = counts.get(partition, 0) + diff
            if diff > 0:
                gains[partition] = stamp
        for partition, stamp in gains.items():
            found.setdefault(partition, []).append((counts[partition], stamp))
    return found


def _stamped(updates: pa.Table, gauge: Gauge, more: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """(partition, stamp, *more, sum of diffs), without zeros."""
    if gauge.stamp is None:
        return []
    names = [*physical_names(gauge.remap_desc)[:1], gauge.stamp.name, *more]
    sums = updates.group_by(names).aggregate([(DIFF_COLUMN, "sum")])
    kept = sums.filter(pc.not_equal(sums.column(f"{DIFF_COLUMN}_sum"), 0))
    columns = [kept.column(name).to_pylist() for name in (*names, f"{DIFF_COLUMN}_sum")]
    return list(zip(*columns, strict=True))


def retained(shard: Shard, gauge: Gauge) -> list[tuple[int, dict[PartitionKey, int]]]:
    """The increments of every binding that the shard still has, by partition, in the order of times."""
    updates = _updates_of(shard)
    return [] if updates is None else increments_by_time(updates, gauge)


def _updates_of(shard: Shard) -> pa.Table | None:
    as_of = max(upper_of(shard) - 1, shard.since)
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        tables = [snapshot.read_part(part) for part in snapshot.parts]
    return pa.concat_tables(tables) if tables else None


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
