"""Compaction of large shards as Spark jobs: contents stay, one at a time, and what is killed leaves no
trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.large_shards import SMALL, grow
from support.shards import DESC, Model, append, check_contents, check_files, check_listen
from tidemill.ingest import compact_task, compaction
from tidemill.ingest.compaction import SparkCompactor
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.local import LocalBlobs
from tidemill.persist.settings import Ages, Settings
from tidemill.persist.shard import Shard
from tidemill.query.spark import SparkHost

pytestmark = pytest.mark.spark


class Home:
    """What the compactor needs of an environment."""

    def __init__(self, *shards: Shard) -> None:
        self.shards = list(shards)
        self.jobs: list[str] = []
        self.open: set[str] = set()

    def begin_job(self) -> str:
        self.jobs.append(f"ingest-e1-{len(self.jobs) + 1}")
        self.open.add(self.jobs[-1])
        return self.jobs[-1]

    def end_job(self, job: str) -> None:
        self.open.remove(job)

    def open_shards(self) -> list[Shard]:
        return self.shards

    def finished(self, job: str) -> bool:
        return job in self.jobs and job not in self.open


class Hurt(LocalBlobs):
    """A store that a worker gets as something else: unpickling it gives what `there` evaluates to, with the
    folder as `root`."""

    def __init__(self, folder: Path, there: str) -> None:
        super().__init__(str(folder))
        self._there = f"(lambda root: {there})({str(folder)!r})"

    def __reduce__(self) -> Any:
        return eval, (self._there,)


_MODULE = "__import__('tidemill.persist.local', fromlist=['LocalBlobs'])"
# The worker is killed once it has written a part, the first time; `died` keeps the memory of it.
KILLED = (
    f"type('Killed', ({_MODULE}.LocalBlobs,), {{'put': lambda self, path, data: ("
    f"{_MODULE}.LocalBlobs.put(self, path, data), "
    "__import__('os').path.exists(root + '/died') or (open(root + '/died', 'w').close(), "
    "__import__('os').kill(__import__('os').getpid(), 9)))})(root)"
)
# Every part waits until it is told that it may be written: there is a file `go`.
HELD = (
    f"type('Held', ({_MODULE}.LocalBlobs,), {{'put': lambda self, path, data: ("
    "[__import__('time').sleep(0.02) "
    "for _ in iter(lambda: __import__('os').path.exists(root + '/go'), True)], "
    f"{_MODULE}.LocalBlobs.put(self, path, data))}})(root)"
)
# Every part takes a while.
SLOW = (
    f"type('Slow', ({_MODULE}.LocalBlobs,), {{'put': lambda self, path, data: ("
    f"__import__('time').sleep(3), {_MODULE}.LocalBlobs.put(self, path, data))}})(root)"
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_task, "PIECE_BYTES", 20_000)


@pytest.fixture
def compactors(spark: SparkHost) -> Iterator[Callable[[Home], SparkCompactor]]:
    made: list[SparkCompactor] = []

    def make(home: Home) -> SparkCompactor:
        made.append(SparkCompactor(home, spark))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def new(blobs: LocalBlobs, shard_id: str = "u1", settings: Settings = SMALL) -> Shard:
    ages = Ages(removed_keep_seconds=0)
    return Shard.create(blobs, shard_id, DESC, epoch=1, ages=ages, settings=settings, cache=PartCache())


def local(folder: Path) -> LocalBlobs:
    blobs = open_blobs(str(folder))
    assert isinstance(blobs, LocalBlobs)
    return blobs


def files(shard: Shard) -> set[str]:
    prefix = f"shards/{shard.id}/"
    return {info.path.removeprefix(prefix) for info in shard.blobs.list(f"{prefix}parts")}


def wait_until(what: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def test_contents_stay_while_appends_go_on(
    tmp_path: Path, compactors: Callable[[Home], SparkCompactor]
) -> None:
    shard, model = new(local(tmp_path)), Model()
    grow(shard, model, 60, keys=2000)
    home = Home(shard)
    compactor = compactors(home)
    before = shard.state.rows
    compactor.look()
    # Each time is compared at the end: a slow machine must not have more of them.
    last = model.upper + 60
    while compactor.running or compactor.counts.done == 0:
        time.sleep(0.05)
        if model.upper < last:
            of = [((9_000_000 + model.upper, "beside"), model.upper, 1)]
            append(shard, of, model.upper + 1)
            model.append(of, model.upper)
            model.upper += 1
        assert compactor.counts.failed == compactor.counts.lost == 0
    assert (compactor.counts.done, home.open) == (1, set())
    assert compactor.counts.rows_written < compactor.counts.rows_read / 2
    assert shard.state.rows < before
    check_contents(shard, model)
    check_listen(shard, model, shard.since + 1)
    check_files(shard.blobs, shard.id)
    again = Shard.open(shard.blobs, shard.id, epoch=1, cache=PartCache())
    check_contents(again, model)
    # The first stage ran once, however many waves the second took: nothing but live parts is there.
    shard.sweep(home.finished)
    assert files(shard) == {part.path for part in shard.parts}


def test_ranks_of_large_parts_become_fewer(
    tmp_path: Path, compactors: Callable[[Home], SparkCompactor]
) -> None:
    shard, model = (
        new(local(tmp_path), settings=Settings(compact_max_bytes=300_000, part_target_bytes=200_000)),
        Model(),
    )
    for tick in range(20):
        of = [((tick * 1000 + n, f"{n * 7919 * (tick + 1) % 1000003}"), tick, 1) for n in range(900)]
        append(shard, of, tick + 1)
        model.append(of, tick + 1)
    compactor = compactors(Home(shard))
    parts = len(shard.parts)
    assert compactor.compact(shard)
    assert compactor.counts.done == 1
    assert len(shard.parts) < parts / 2
    check_contents(shard, model)
    assert not compactor.compact(shard), "they are of a good size now"


def test_one_at_a_time_and_in_turn(tmp_path: Path, compactors: Callable[[Home], SparkCompactor]) -> None:
    blobs = local(tmp_path)
    shards = [new(blobs, f"u{n}") for n in (1, 2, 3)]
    models = [Model() for _ in shards]
    for shard, model in zip(shards, models, strict=True):
        grow(shard, model, 40)
    home = Home(*shards)
    compactor = compactors(home)
    for done in (1, 2, 3):
        compactor.look()
        compactor.look()
        wait_until(lambda done=done: compactor.counts.done == done)
        assert len(home.jobs) == done
        wait_until(lambda: not home.open)
    assert all(shard.state.rows < 3000 for shard in shards)
    for shard, model in zip(shards, models, strict=True):
        check_contents(shard, model)


def test_a_killed_task_leaves_no_trace_and_the_shard_rests(
    tmp_path: Path, compactors: Callable[[Home], SparkCompactor]
) -> None:
    shard, model = new(Hurt(tmp_path, KILLED), settings=replace(SMALL, orphan_grace_seconds=0)), Model()
    grow(shard, model, 40)
    home = Home(shard)
    compactor = compactors(home)
    parts, version = shard.parts, shard.version
    compactor.look()
    wait_until(lambda: compactor.counts.failed == 1)
    assert (tmp_path / "died").exists(), "the fault came"
    wait_until(lambda: not home.open)
    # since was recorded; nothing else has changed, and what the task wrote belongs to a job that is over.
    assert (shard.parts, shard.version) == (parts, version + 1)
    left = files(shard) - {part.path for part in parts}
    assert left
    assert all(home.finished(path.split("/")[1]) for path in left)
    check_contents(shard, model)
    shard.sweep(home.finished)
    assert files(shard) == {part.path for part in parts}
    compactor.look()
    time.sleep(0.1)
    assert len(home.jobs) == 1, "it rests"
    compactor._rests[shard.id].until = 0  # pyright: ignore[reportPrivateUsage]
    compactor.look()
    wait_until(lambda: compactor.counts.done == 1)
    check_contents(shard, model)
    check_files(shard.blobs, shard.id)


def test_a_stopped_job_leaves_no_trace(
    tmp_path: Path, compactors: Callable[[Home], SparkCompactor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "STOP_SECONDS", 120.0)
    shard, model = new(Hurt(tmp_path, SLOW)), Model()
    grow(shard, model, 40)
    home = Home(shard)
    compactor = compactors(home)
    parts = shard.parts
    compactor.look()
    wait_until(lambda: compactor.running)
    time.sleep(1)
    compactor.stop()
    assert (shard.parts, home.open, compactor.running) == (parts, set(), False)
    compactor.look()
    assert len(home.jobs) == 1
    check_contents(shard, model)


def test_a_second_compaction_meanwhile_is_noticed(
    tmp_path: Path, compactors: Callable[[Home], SparkCompactor]
) -> None:
    shard, model = new(Hurt(tmp_path, HELD)), Model()
    grow(shard, model, 40)
    other = Shard.open(local(tmp_path), shard.id, epoch=1, settings=Settings(), cache=PartCache())
    other.downgrade_since(shard.since)
    home = Home(shard)
    compactor = compactors(home)
    thread = threading.Thread(target=compactor.compact, args=(shard,))
    thread.start()
    wait_until(lambda: compactor.running)
    assert other.compact(everything=True) is not None
    (tmp_path / "go").touch()
    thread.join(300)
    assert (compactor.counts.lost, compactor.counts.done) == (1, 0)
    for handle in (shard, other):
        handle.refresh()
        check_contents(handle, model)
    # The loser deleted what it wrote.
    assert not any(home.jobs[0] in path for path in files(shard))
