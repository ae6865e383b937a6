"""Progress relation of a source, and the list of all its bindings.

Called by the engine. Read directly from the remap shard with Arrow: it has one row per partition and retained
time, too few for a Spark job.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import cumulated, increments_by_time, places_of, retained, stamps_of
from tidemill.sources.contract import Gauge, UpstreamSource
from tidemill.types.arrow import TIME_COLUMN, storage_schema
from tidemill.types.model import Kind


def progress_at(shard: Shard, source: UpstreamSource, as_of: int, readable: int) -> pa.Table:
    """One row per partition with the number of its next record at `as_of` (or its stamp, if that is what the
    gauge shows), and that time as the hidden column `mz_timestamp`: of the partitions that the source was
    made with, and of those that were bound since. `readable` is up to where the bindings are known to be
    complete."""
    gauge = source.gauge
    with shard.snapshot(as_of, readable=readable) as snapshot:
        tables = [snapshot.read_part(part) for part in snapshot.parts]
    frontiers = cumulated(increments_by_time(pa.concat_tables(tables), gauge)) if tables else []
    stands = {partition: source.start[partition] for partition in source.partitions}
    stands |= frontiers[-1][1].as_dict() if frontiers else {}
    rows = sorted(stands.items(), key=lambda r: (str(type(r[0])), r[0]))
    *partition, value = storage_schema(gauge.progress_desc)
    columns = [pa.array([p for p, _ in rows], field.type) for field in partition]
    if gauge.shows_stamp:
        stamps = stamps_of(pa.concat_tables(tables), gauge) if tables else {}
        columns.append(pa.array([stamps.get(p) for p, _ in rows], value.type))
    else:
        columns.append(pa.array([_stored(v, gauge) for _, v in rows], value.type))
    names = [field.name for field in (*partition, value)]
    return pa.table([*columns, pa.array([as_of] * len(rows), pa.int64())], names=[*names, TIME_COLUMN])


def _stored(value: int, gauge: Gauge) -> int | Decimal:
    kind = gauge.value.type.kind
    if kind is Kind.UINT8 or kind is Kind.NUMERIC:
        return Decimal(value)
    if kind is Kind.INT8:
        return value
    raise Internal(f"a source's progress cannot be shown as {gauge.value.type}")


def all_bindings(shard: Shard, gauge: Gauge) -> list[tuple[int, str | None, int, str | None]]:
    """(time, partition, next record, stamp) of every retained binding: at which time a record became visible
    is the first whose value is above its number. The stamp is there if the progress relation shows it."""
    stamps = {}
    if gauge.shows_stamp:
        found = places_of(shard, gauge)
        stamps = {(p, count): stamp for p, places in found.items() for count, stamp in places}
    return [
        (time, None if partition is None else str(partition), value, stamps.get((partition, value)))
        for time, frontier in cumulated(retained(shard, gauge))
        for partition, value in frontier.items()
    ]
