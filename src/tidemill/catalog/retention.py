"""Retention: how since follows the clock at the configured distance."""

from __future__ import annotations

from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard

# Since moves when this share of the retention has passed, and not more often than this.
SINCE_STEPS = 10
SINCE_STEP_MS = 1000


def follow(shard: Shard, now: int, retain_ms: int) -> None:
    """Move since to the distance of the retention, in steps, and only if there is history to release. Every
    move causes an entry of the log sooner or later, and an idle shard should have none."""
    target = now - retain_ms
    if (
        target - shard.since >= max(retain_ms // SINCE_STEPS, SINCE_STEP_MS)
        and upper_of(shard) > shard.since + 1
    ):
        shard.downgrade_since(target)
