"""Shards that are large because their limits are small, for tests of compaction."""

from __future__ import annotations

from collections import defaultdict

from support.shards import Model, Update, append
from tidemill.ingest import compact_task
from tidemill.ingest.compact_task import CompactionWork
from tidemill.persist.compact import part_rows
from tidemill.persist.large_compaction import LargePlan
from tidemill.persist.maintain import Carry
from tidemill.persist.part import Part
from tidemill.persist.settings import Settings
from tidemill.persist.shard import Shard

# A part of a few rows has 1.5 to 2 kB.
SMALL = Settings(compact_max_bytes=30_000, part_target_bytes=12_000)
KEYS = 400


def grow(shard: Shard, model: Model, ticks: int, keys: int = KEYS) -> None:
    """A collection of `keys` rows, of which every tick changes a few; since is left ten ticks behind."""
    values: dict[int, int] = {}
    for time in range(model.upper, model.upper + ticks):
        of: list[Update] = []
        first = 97 * time
        for key in {(first + n) % keys for n in range(keys // 4)}:
            if key in values:
                of.append(((key, f"value {values[key]}"), time, -1))
            values[key] = time
            of.append(((key, f"value {time}"), time, 1))
        append(shard, of, time + 1)
        model.append(of, time + 1)
    shard.downgrade_since(max(0, model.upper - 10))


def carry_here(shard: Shard, job: str = "compact-test") -> Carry:
    """Does in this process what `compaction` has Spark do."""

    def carry(plan: LargePlan) -> tuple[Part, ...]:
        inputs, target = plan.plan.inputs, shard.settings.part_target_bytes
        rows = part_rows(inputs, shard.settings)
        work = CompactionWork(
            shard.blobs, shard.id, plan.plan.desc, plan.plan.since, job, rows, plan.plan.forget
        )
        parts: list[Part] = []
        for group in plan.groups:
            of = compact_task.ranges(group, target)
            if of == 1:
                parts += compact_task.merge_group(work, group)
                continue
            slices: defaultdict[int, list[bytes]] = defaultdict(list)
            for share in compact_task.shares(group):
                for number, data in compact_task.cut(work, share, of):
                    slices[number].append(data)
            for number in slices:
                parts += compact_task.merge_range(work, slices[number])
        return tuple(parts)

    return carry
