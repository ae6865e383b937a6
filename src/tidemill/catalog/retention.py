"""How far the history of a shard may be let go; called by the store's maintenance."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.catalog.items import SourceTable
from tidemill.catalog.state import CatalogState
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard

# Since moves when this share of the retention has passed, and not more often than this.
SINCE_STEPS = 10
SINCE_STEP_MS = 1000


def read_to(state: CatalogState, shards: Mapping[str, Shard]) -> dict[str, int]:
    """Up to where the history of a source's shards may go, however long ago that was: the last time that all
    of them have. What was bound must stay known until every table of the source has it, and a source that
    stands still stays readable. Shards that are not open are not known to be complete."""
    groups: dict[str, list[str]] = {}
    for c in state.collections():
        if c.ingested:
            source = c.item.source if isinstance(c.item, SourceTable) else c.item.id
            groups.setdefault(source, []).append(c.shard)
    ends: dict[str, int] = {}
    for group in groups.values():
        uppers = [upper_of(shards[s]) if s in shards else 0 for s in group]
        ends |= dict.fromkeys(group, min(uppers) - 1)
    return ends


def follow(shard: Shard, target: int, retain_ms: int) -> None:
    """Move since to `target`, in steps that suit the retention, and only where there is history to let go:
    every move is an entry of the log sooner or later, and an idle shard should have none."""
    if (
        target - shard.since >= max(retain_ms // SINCE_STEPS, SINCE_STEP_MS)
        and upper_of(shard) > shard.since + 1
    ):
        shard.downgrade_since(target)
