"""The tester tested: bugs planted into `persist` must all be caught by the checkers that prove I2 and I3."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from support.shards import DESC, Model, append, check_contents, check_files, check_listen
from tidemill.errors import TidemillError
from tidemill.persist import cache, committer, compact, shard, snapshot
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.committer import Committer
from tidemill.persist.entry import Entry
from tidemill.persist.holds import Holds
from tidemill.persist.local import LocalBlobs
from tidemill.persist.outcome import Fenced, UpperMismatch
from tidemill.persist.part import Part
from tidemill.persist.settings import Ages
from tidemill.persist.shard import Shard
from tidemill.persist.state import ShardState


def life(folder: Path) -> None:
    """A short life in which every promise is called upon; raises where one is broken."""
    blobs = open_blobs(str(folder))
    first = Shard.create(blobs, "u1", DESC, epoch=1, ages=Ages(removed_keep_seconds=0), cache=PartCache())
    second = Shard.open(blobs, "u1", epoch=1, cache=PartCache())
    model = Model()

    def write(to: Shard, keys: list[int], diff: int = 1) -> None:
        of = [((key, "x"), model.upper, diff) for key in keys]
        append(to, of, model.upper + 1, lower=model.upper)
        model.append(of, model.upper + 1)

    for time in range(4):
        write(first, [time, time + 1])
    check_contents(first, model)
    # I2: the loser learns that it lost and leaves nothing behind.
    with pytest.raises(UpperMismatch):
        append(second, [((99, "x"), 0, 1)], 1, lower=0)
    check_contents(second, model)
    write(first, [1, 2], -1)
    # I3 through compaction, under a hold.
    with first.hold(2), first.snapshot(3) as before:
        first.downgrade_since(4)
        read = before.read()
        assert first.compact(everything=True) is not None
        first.sweep()
        check_contents(first, model)
        assert first.since == 2
        assert before.read().equals(read)
    # Two compactions of the same parts: one of them finds its inputs replaced.
    write(first, [7])
    second.refresh()
    plan = second.parts
    assert first.compact(everything=True) is not None
    assert set(plan) & set(first.parts) == set()
    assert second.compact(everything=True) is None
    second.refresh()
    check_contents(first, model)
    check_contents(second, model)
    check_listen(first, model, first.since + 1)
    # I2 through epochs.
    second.fence(2)
    with pytest.raises(Fenced):
        append(first, [((98, "x"), model.upper, 1)], model.upper + 1)
    write(second, [8])
    check_files(blobs, "u1")
    check_contents(Shard.open(blobs, "u1", epoch=2, cache=PartCache()), model)


def test_a_right_life(tmp_path: Path) -> None:
    life(tmp_path)


Patch = pytest.MonkeyPatch


def overwriting_put(patch: Patch) -> None:
    def put(self: LocalBlobs, path: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(f"{self.root}/{path}"), exist_ok=True)
        Path(f"{self.root}/{path}").write_bytes(data)

    patch.setattr(LocalBlobs, "put_if_absent", put)


def acknowledged_but_not_written(patch: Patch) -> None:
    real = Committer._put  # pyright: ignore[reportPrivateUsage]

    def put(self: Committer, version: int, entry: Entry) -> bool:
        return True if version == 8 else real(self, version, entry)

    patch.setattr(Committer, "_put", put)


def no_compare(patch: Patch) -> None:
    """The writer takes the shard's upper for its own."""
    real = Shard.compare_and_append

    def blind(self: Shard, parts: list[Part], lower: int, upper: int) -> None:
        self.refresh()
        moved = [Part(*(getattr(p, f) for f in Part.__slots__)) for p in parts]
        real(self, moved if lower == self.upper else [], self.upper, max(upper, (self.upper or 0) + 1))

    patch.setattr(Shard, "compare_and_append", blind)


def no_epoch(patch: Patch) -> None:
    def lax(shard_id: str, state: ShardState, epoch: int | None) -> int:
        return state.epoch

    patch.setattr(shard, "check_epoch", lax)
    patch.setattr(compact, "check_epoch", lax)


def changed_merge(change: Callable[[pa.Table], pa.Table]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        real = compact.merge
        patch.setattr(compact, "merge", lambda tables, desc, since, **_: change(real(tables, desc, since)))

    return plant


def shifted(table: pa.Table) -> pa.Table:
    times = table.column("mz_timestamp").to_pylist()
    times[-1] -= 1
    return table.set_column(2, table.schema.field(2), pa.array(times, pa.int64()))


def compaction_forgets_that_inputs_must_be_live(patch: Patch) -> None:
    """As delta-rs does it: rebase onto whatever is there, removing what is still there to be removed."""
    apply = ShardState.apply

    def lax(self: ShardState, version: int, entry: Entry, name: str) -> None:
        apply(self, version, replace(entry, removes=tuple(p for p in entry.removes if p in self.parts)), name)

    patch.setattr(compact, "check_live", lambda shard_id, state, paths: None)
    patch.setattr(ShardState, "objection", lambda self, version, entry: None)
    patch.setattr(ShardState, "apply", lax)


def holds_are_ignored(patch: Patch) -> None:
    patch.setattr(Holds, "earliest", lambda self: None)


def sweep_ignores_readers(patch: Patch) -> None:
    patch.setattr(Holds, "oldest_version", lambda self: None)


def moved_too_far(patch: Patch) -> None:
    patch.setattr(compact, "target_time", lambda state, since: since + 1)


def late_updates_are_shown(patch: Patch) -> None:
    patch.setattr(cache, "clip", lambda table, part, times: table)


def never_consolidated(patch: Patch) -> None:
    patch.setattr(snapshot, "consolidate", lambda table, desc, time: table.slice(0, max(0, len(table) - 1)))


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a put that overwrites": overwriting_put,
    "an acknowledgement without an entry": acknowledged_but_not_written,
    "no compare in compare_and_append": no_compare,
    "no look at the epoch": no_epoch,
    "compaction drops a row": changed_merge(lambda table: table.slice(1)),
    "compaction doubles a row": changed_merge(lambda table: pa.concat_tables([table, table.slice(0, 1)])),
    "compaction shifts a time": changed_merge(shifted),
    "compaction of parts that are gone": compaction_forgets_that_inputs_must_be_live,
    "holds are ignored": holds_are_ignored,
    "the sweeper ignores readers": sweep_ignores_readers,
    "updates move past since": moved_too_far,
    "reads show later times": late_updates_are_shown,
    "reads lose a row": never_consolidated,
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    monkeypatch.setattr(committer, "RESOLVE_DELAYS", ())
    PLANTED[bug](monkeypatch)
    with pytest.raises((AssertionError, TidemillError, pytest.fail.Exception)):
        life(tmp_path)
