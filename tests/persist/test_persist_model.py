"""Random lives of a shard against the model: append, compact, downgrade_since, reopen, checkpoint, clean,
sweep."""

from __future__ import annotations

import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.shards import (
    DESC,
    Model,
    Row,
    Update,
    append,
    check_contents,
    check_files,
    check_listen,
    memory_folder,
)
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.holds import Hold
from tidemill.persist.settings import Ages, Settings
from tidemill.persist.shard import Shard

_rows = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "a", "b"]))
_changes = st.lists(st.tuples(_rows, st.integers(0, 2), st.sampled_from([-2, -1, 1, 1, 1, 2])), max_size=6)

# So small that everything happens within a few steps.
SMALL = Settings(checkpoint_every=3, clean_after_seconds=0, orphan_grace_seconds=0, orphan_every_seconds=0)


class ShardLife(RuleBasedStateMachine):
    """The handle writes; `other` is a second one that compacts and follows."""

    blobs: Blobs
    shard: Shard
    other: Shard
    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="tidemill-model-", dir=memory_folder())
        self.holds: list[Hold] = []
        # The greatest since that the handle was asked for.
        self.wanted = 0

    @initialize()
    def create(self) -> None:
        self.blobs = open_blobs(self.folder)
        cache = PartCache()
        ages = Ages(log_keep_seconds=0, removed_keep_seconds=0)
        self.shard = Shard.create(self.blobs, "u1", DESC, epoch=1, ages=ages, settings=SMALL, cache=cache)
        self.other = Shard.open(self.blobs, "u1", epoch=1, settings=SMALL, cache=cache)
        self.model = Model()

    @rule(changes=_changes, width=st.integers(1, 3))
    def append(self, changes: list[tuple[Row, int, int]], width: int) -> None:
        lower = self.model.upper
        of: list[Update] = [(row, lower + min(offset, width - 1), diff) for row, offset, diff in changes]
        append(self.shard, of, lower + width)
        self.model.append(of, lower + width)

    @rule(rows=st.lists(_rows, min_size=16, max_size=16))
    def append_many(self, rows: list[Row]) -> None:
        """Enough parts of one rank for a tiered merge."""
        for row in rows:
            at = self.model.upper
            append(self.shard, [(row, at, 1)], at + 1)
            self.model.append([(row, at, 1)], at + 1)

    @rule(everything=st.booleans())
    def compact(self, everything: bool) -> None:
        self.shard.compact(everything=everything)

    @rule()
    def compact_by_the_other(self) -> None:
        self.other.compact(everything=True)
        self.other.refresh()

    @rule(distance=st.integers(0, 6), record=st.booleans())
    def downgrade_since(self, distance: int, record: bool) -> None:
        before = self.shard.since
        to = max(0, self.model.upper - distance)
        granted = self.shard.downgrade_since(to, record=record)
        assert granted >= before
        assert all(granted <= hold.at for hold in self.holds)
        # What holds stood in the way of before comes now.
        self.wanted = max(self.wanted, to)
        if not self.holds:
            assert granted == max(before, self.wanted)

    @precondition(lambda self: self.model.upper > self.shard.since)
    @rule(ahead=st.integers(0, 3))
    def hold(self, ahead: int) -> None:
        self.holds.append(self.shard.hold(min(self.shard.since + ahead, self.model.upper - 1)))

    @precondition(lambda self: self.holds)
    @rule()
    def release(self) -> None:
        self.holds.pop().release()

    @rule()
    def checkpoint(self) -> None:
        self.shard.checkpoint()

    @rule()
    def maintain(self) -> None:
        self.shard.maintain(lambda job: False)

    @rule()
    def clean_and_sweep(self) -> None:
        self.shard.clean()
        self.shard.sweep(lambda job: True)

    @rule()
    def reopen(self) -> None:
        """As after a crash: holds are gone, what was granted and not recorded may come back."""
        self.holds.clear()
        self.wanted = 0
        recorded = self.shard.state.since
        epoch = self.shard.epoch
        self.shard = Shard.open(self.blobs, "u1", epoch=epoch, settings=SMALL, cache=PartCache())
        assert self.shard.since >= recorded

    @rule()
    def fence(self) -> None:
        epoch = self.shard.epoch + 1
        self.shard.fence(epoch)
        self.other = Shard.open(self.blobs, "u1", epoch=epoch, settings=SMALL)

    @rule(back=st.integers(0, 5))
    def listen(self, back: int) -> None:
        from_ = max(self.shard.since + 1, self.model.upper - back)
        if from_ <= self.model.upper:
            check_listen(self.shard, self.model, from_)

    @invariant()
    def same_contents(self) -> None:
        if hasattr(self, "model"):
            check_contents(self.shard, self.model)
            check_files(self.blobs, "u1")

    @invariant()
    def few_parts(self) -> None:
        if hasattr(self, "model"):
            assert self.shard.state.rows == sum(part.rows for part in self.shard.parts)
            assert self.shard.state.bytes == sum(part.bytes for part in self.shard.parts)
            ranked = {path for parts in self.shard.state.ranks.values() for path in parts}
            assert ranked == set(self.shard.state.parts)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            again = Shard.open(self.blobs, "u1", epoch=None, cache=PartCache())
            assert again.since <= self.shard.since
            if again.since == self.shard.since:
                check_contents(again, self.model)
        shutil.rmtree(self.folder, ignore_errors=True)


TestShardLife = ShardLife.TestCase
TestShardLife.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_lives() -> None:
    long = settings(
        max_examples=500, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(ShardLife, settings=long)
