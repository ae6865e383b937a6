"""Maintenance of one shard: decides when to compact, checkpoint, clean and sweep.

A background thread calls `Shard.maintain` for each shard. The explicit calls of `Shard` also use this module.
Each handle runs one maintenance at a time; appends continue meanwhile. Deciding that nothing is due takes
microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.persist import checkpoint as checkpoints
from tidemill.persist import compact as compaction
from tidemill.persist import large_compaction
from tidemill.persist.clean import Cleaner
from tidemill.persist.committer import Committer
from tidemill.persist.compact import Compacted, CompactionPlan
from tidemill.persist.holds import NO_TIME, Holds
from tidemill.persist.large_compaction import LargePlan
from tidemill.persist.outcome import InputsReplaced
from tidemill.persist.part import Part
from tidemill.persist.sweep import sweep_orphans, sweep_removed

if TYPE_CHECKING:
    from tidemill.persist.shard import Shard

# Merges per round: each may fill the next rank; a day's backlog cascades through five.
MERGES_PER_ROUND = 8
# Parts of a shard whose merges are postponed while its writer is in a hurry. A read opens each of them, some
# tenths of a millisecond. With small bindings on a busy machine, a catch-up makes 160 parts per million
# messages: with 512, merges began after three million, and their memory adds to that of the workers.
POSTPONED_PARTS = 2048
# Files deleted per round, of the log and of removed parts each: this number, plus two for each version since
# the last round. A concurrent commit waits for few deletions, and cleaning keeps up with any rate.
DELETES_PER_ROUND = 100

# Executes a plan: writes parts with the contents of the plan's groups, and leaves nothing behind when it
# raises.
Carry = Callable[[LargePlan], tuple[Part, ...]]


@dataclass(slots=True)
class Maintained:
    """Result of a round."""

    compactions: int = 0
    rows_merged: int = 0
    checkpointed: bool = False
    cleaned: int = 0
    swept: int = 0


class Maintenance:
    """The state of a handle's maintenance. `checkpoint`: the version of the newest checkpoint we know."""

    def __init__(self, shard: Shard, committer: Committer, holds: Holds, checkpoint: int | None) -> None:
        self._shard = shard
        self._committer = committer
        self._holds = holds
        self._one = threading.RLock()
        # The version of the newest checkpoint; -1 before the first.
        self._checkpointed = -1 if checkpoint is None else checkpoint
        self._cleaner = Cleaner(committer.blobs, committer.shard_id, committer.log_keep_seconds)
        # When (monotonic) the handle was opened, and orphans were last looked for. The first round does not
        # list anything: a server that opens a hundred shards has better things to do.
        self._opened_at = self._orphans_at = time.monotonic()
        # The version at the last round.
        self._last = committer.state.version
        # The since at which a full consolidation was last considered: until since moves, the answer is the
        # same.
        self._considered = -1
        # Paths of the parts that are being merged elsewhere (`compact_large`), which takes its time: nothing
        # here takes them away from it.
        self._busy: frozenset[str] = frozenset()

    def run(self, epoch: int, finished: Callable[[str], bool] | None, *, hurry: bool = False) -> Maintained:
        done = Maintained()
        settings = self._shard.settings
        with self._one:
            # Its writer needs the processor more, and will be done soon.
            later = hurry and len(self._committer.state.parts) < POSTPONED_PARTS
            for _ in range(0 if later else MERGES_PER_ROUND):
                merged = self.compact(epoch)
                if merged is None:
                    break
                done.compactions += 1
                done.rows_merged += merged.rows_before
            version = self._shard.version
            limit = DELETES_PER_ROUND + 2 * (version - self._last)
            self._last = version
            self._cleaner.see(version)
            keep = self._shard.ages.removed_keep_seconds
            done.swept = sweep_removed(self._committer, self._holds, keep, limit)
            if self._shard.version - self._checkpointed >= settings.checkpoint_every:
                self.checkpoint()
                done.checkpointed = True
            now = time.monotonic()
            if not self._cleaner.listed and now - self._opened_at >= settings.clean_after_seconds:
                done.cleaned = self._cleaner.list()
            done.cleaned += self._cleaner.clean(limit)
            if finished is not None and now - self._orphans_at >= settings.orphan_every_seconds:
                done.swept += self.sweep(finished)
        return done

    def compact(self, epoch: int, *, everything: bool = False) -> Compacted | None:
        with self._one:
            plan = self._plan(everything)
            if plan is None:
                return None
            # Only now: an idle shard's since follows the clock, and its log must not.
            self._shard.record_since()
            # The inputs' files must stay while we read them, even if another compaction replaces them.
            with self._holds.acquire(plan.since, plan.version):
                try:
                    return compaction.compact(
                        plan,
                        self._committer,
                        self._shard.reader,
                        epoch=epoch,
                        job=compaction.compaction_job(epoch, self._committer.writer),
                        settings=self._shard.settings,
                    )
                except InputsReplaced:
                    return None

    def compact_large(self, epoch: int, carry: Carry) -> Compacted | None:
        """Merge what exceeds memory, with `carry`, while other calls continue."""
        with self._one, self._committer.changed:
            plan = large_compaction.plan_large(self._committer.state, self._shard.since, self._shard.settings)
            if plan is None or self._busy:
                return None
            self._busy = frozenset(part.path for part in plan.plan.inputs)
            # The inputs' files stay; since may advance meanwhile.
            hold = self._holds.acquire(NO_TIME, plan.plan.version)
        try:
            with hold:
                self._shard.record_since()
                outputs = carry(plan)
                return compaction.replace_inputs(
                    plan.plan, outputs, self._committer, self._shard.reader, epoch=epoch
                )
        finally:
            self._busy = frozenset()

    def _plan(self, everything: bool) -> CompactionPlan | None:
        settings = self._shard.settings
        with self._committer.changed:
            state, since = self._committer.state, self._shard.since
            if everything:
                return compaction.plan_all(state, since, settings)
            plan = compaction.plan_tier(state, since, settings, self._busy)
            if plan is None and since > self._considered and not self._busy:
                self._considered = since
                plan = compaction.plan_full(state, since, settings)
            return plan

    def checkpoint(self) -> None:
        with self._one:
            with self._committer.changed:
                expected = checkpoints.expect(self._committer.state)
            if expected.version == self._checkpointed:
                return
            checkpoints.write_checkpoint(self._committer.blobs, self._committer.shard_id, expected)
            self._checkpointed = expected.version
            self._cleaner.add_checkpoint(expected.version)

    def clean(self) -> int:
        with self._one:
            return self._cleaner.list() + self._cleaner.clean()

    def sweep(self, finished: Callable[[str], bool] | None) -> int:
        with self._one:
            swept = sweep_removed(self._committer, self._holds, self._shard.ages.removed_keep_seconds)
            if finished is not None:
                self._orphans_at = time.monotonic()
                grace = self._shard.settings.orphan_grace_seconds
                # No compaction of this handle runs now: we have its lock.
                swept += sweep_orphans(self._committer, finished, grace)
            return swept
