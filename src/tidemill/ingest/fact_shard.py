"""Facts that an envelope remembers between ticks: texts by name, in a shard beside the relation's.

Called by the states of relations (`changes`, `recovery.stream`) on the driver. A tick writes the facts that
it changed, before the relation's rows, whose upper says which ticks are complete. After a crash between the
two, the tick is read again from the facts just before it; the shard, which is ahead, is left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.part import Part
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN


@dataclass(frozen=True, slots=True)
class FactUpdate:
    """From `time` on the item has the value (`diff` 1), or no longer has it (-1)."""

    time: int
    item: str
    value: str
    diff: int


def fact_history(shard: Shard, upper: int) -> list[FactUpdate]:
    """The updates before `upper` that the shard still has, in the order of their times."""
    as_of = max(upper - 1, shard.since)
    found: list[FactUpdate] = []
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        for part in snapshot.parts:
            table = snapshot.read_part(part)
            names = (TIME_COLUMN, "item", "value", DIFF_COLUMN)
            columns = [table.column(name).to_pylist() for name in names]
            found += [FactUpdate(*row) for row in zip(*columns, strict=True)]
    return sorted(found, key=lambda update: update.time)


def facts_of(history: Iterable[FactUpdate]) -> dict[str, str]:
    """The facts after these updates."""
    sums: dict[tuple[str, str], int] = {}
    for update in history:
        said = update.item, update.value
        sums[said] = sums.get(said, 0) + update.diff
    return {item: value for (item, value), count in sums.items() if count}


def read_facts(shard: Shard, upper: int) -> dict[str, str]:
    """The facts just before `upper`."""
    return facts_of(fact_history(shard, upper))


def write_facts(shard: Shard, before: Mapping[str, str], after: Mapping[str, str], at: int, job: str) -> None:
    """Make the changes durable at a time, if there are any. Raises a commit's outcomes."""
    changes = fact_updates(before, after, at)
    if changes is not None:
        append_sidecar(shard, [shard.write_part(changes, job=job)], at)


def append_sidecar(shard: Shard, parts: Sequence[Part], at: int) -> None:
    """Append to a sidecar, unless it has the time already."""
    lower = upper_of(shard)
    if not parts or lower > at:
        return
    try:
        shard.compare_and_append(parts, lower, at + 1)
    except UpperMismatch:
        # An attempt whose outcome was unknown succeeded after all: no other process writes here.
        if upper_of(shard) <= at:
            raise


def fact_updates(before: Mapping[str, str], after: Mapping[str, str], at: int) -> pa.Table | None:
    """The updates of the shard that turn the facts into others; None if they are the same."""
    gone = [item for item in before.items() if after.get(item[0]) != item[1]]
    come = [item for item in after.items() if before.get(item[0]) != item[1]]
    if not gone and not come:
        return None
    rows = [*gone, *come]
    names = [column.name for column in FACTS_DESC.columns]
    return pa.table(
        {
            names[0]: pa.array([item for item, _ in rows], pa.string()),
            names[1]: pa.array([value for _, value in rows], pa.string()),
            TIME_COLUMN: pa.array([at] * len(rows), pa.int64()),
            DIFF_COLUMN: pa.array([-1] * len(gone) + [1] * len(come), pa.int64()),
        }
    )
