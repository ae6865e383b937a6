"""Large compaction: selects parts whose merge exceeds the memory of this process.

Follows the rules of `compact`. `maintain` plans it, `ingest.compaction` runs it on Spark, and it commits like
any other compaction. Merges that `compact` can do itself are not selected.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidemill.persist.compact import CompactionPlan, make_plan, settled_parts, tier_inputs
from tidemill.persist.part import Part
from tidemill.persist.settings import Settings
from tidemill.persist.state import FANOUT, ShardState

# A part of at least this share of the target size counts as full: a consolidation that leaves it somewhat
# smaller does not cause another rewrite.
GOOD_SIZE = 0.5


@dataclass(frozen=True, slots=True)
class LargePlan:
    """`groups` are the inputs of `plan`, split: each is consolidated separately into parts of the target
    size. A group above that weight exceeds the memory of one task."""

    plan: CompactionPlan
    groups: tuple[tuple[Part, ...], ...]


def plan_large(state: ShardState, since: int, settings: Settings) -> LargePlan | None:
    """A full consolidation where enough would go, else a full rank of parts that are large already but not
    as large as they should be; None where there is neither, or it fits in memory. O(1) for small shards."""
    if state.weight <= settings.compact_max_bytes:
        return None
    settled = settled_parts(state, since, settings)
    if settled and _weight(settled) > settings.compact_max_bytes:
        return LargePlan(make_plan(state, settled, since), (settled,))
    good = int(settings.part_target_bytes * GOOD_SIZE)
    for rank in sorted(state.ranks):
        ranked = state.ranks[rank]
        if len(ranked) < FANOUT or len(tier_inputs(ranked, settings)) >= FANOUT:
            continue
        small = [part for part in ranked.values() if part.weight < good]
        groups = _groups(small, settings.part_target_bytes)
        if len(small) >= FANOUT and groups:
            inputs = tuple(part for group in groups for part in group)
            return LargePlan(make_plan(state, inputs, since), groups)
    return None


def _groups(parts: Sequence[Part], target: int) -> tuple[tuple[Part, ...], ...]:
    """Groups of neighbours that reach the target size together; a single part stays as it is."""
    groups: list[list[Part]] = [[]]
    for part in parts:
        if groups[-1] and _weight(groups[-1]) + part.weight > target:
            groups.append([])
        groups[-1].append(part)
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _weight(parts: Collection[Part]) -> int:
    return sum(part.weight for part in parts)
