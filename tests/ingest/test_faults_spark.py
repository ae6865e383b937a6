"""What goes wrong with one source on Spark: its status says so, it backs off and resumes, the others keep
their ticks, and nothing is lost or doubled (judged from the files, against the generators themselves)."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from ingest.faulty import World, patch
from support.spark import SparkHost
from tidemill.catalog.items import Source
from tidemill.ingest.slot import LAST_RETRY_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

# Ticks that the others must make, each from its binding to its commit, while one fails or is slow.
TICKS = 3
COUNTER = ("COUNTER", {"TICK INTERVAL": 2000})
KEY_VALUE = ("KEY VALUE", {"KEYS": 50, "TICK INTERVAL": 5000, "TOMBSTONES": "10%"})


class Sources:
    """Two that are hurt, and two that must not notice; of each kind one without and one with keys."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hurt = [world.create("hurt", *COUNTER), world.create("hurt_keys", *KEY_VALUE)]
        self.well = [world.create("well", *COUNTER), world.create("well_keys", *KEY_VALUE)]
        world.wait(lambda: all(world.ingestion.machine(s) is not None for s in self.all), "not opened")
        world.wait_for_ticks(2, *self.all)

    @property
    def all(self) -> list[Source]:
        return [*self.hurt, *self.well]


@contextlib.contextmanager
def world_of(data_dir: str, spark: SparkHost, told: Path) -> Generator[World]:
    world = World(data_dir, spark, told)
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch, world)
        try:
            yield world
        finally:
            world.close()


@pytest.fixture
def sources(all_sources: Sources) -> Iterator[Sources]:
    """All well again afterwards."""
    yield all_sources
    all_sources.world.hurt("", *all_sources.hurt)


@pytest.fixture(scope="module")
def all_sources(spark: SparkHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    """Judged at the end, whatever the tests did."""
    folder = tmp_path_factory.mktemp("faults")
    with world_of(str(folder / "data"), spark, folder / "told") as world:
        yield Sources(world)


def fails_and_resumes(world: World, hurt: list[Source], well: list[Source], error: str) -> None:
    """The fault has begun. It is tried again and again, ever later, and goes on where it was once it may."""
    for source in hurt:
        world.wait(lambda s=source: world.status(s).status == "stalled", "nobody notices")
    bound = {s.id: world.bindings(s) for s in well}
    failures = {s.id: world.slot(s).failures for s in hurt}
    seconds = world.wait_for_ticks(TICKS, *well)
    for source in well:
        # One may have been bound before.
        assert world.bindings(source) >= bound[source.id] + TICKS - 1
        assert world.status(source).status == "running"
    for source in hurt:
        # Twice as long from each attempt to the next, up to a limit.
        most = 1 + math.log2(1 + seconds) + seconds / LAST_RETRY_SECONDS
        assert world.slot(source).failures <= failures[source.id] + most
        world.wait(lambda s=source: world.slot(s).failures >= 2, "it is not tried again")
        status = world.status(source)
        assert status.status == "stalled"
        told = f"{status.error} {status.details}"
        assert re.search(error, told), told
    stood = {s.id: world.ingested(s) for s in hurt}
    world.hurt("", *hurt)
    world.wait_for_ticks(2, *hurt)
    for source in hurt:
        assert world.status(source).status == "running"
        assert world.status(source).error is None
        assert world.ingested(source) > stood[source.id]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("kill", "the job failed: .*worker"),
        ("memory", "^out of memory"),
        ("back 100000", "the source's progress went back.*Its frontier was"),
    ],
    ids=["a worker is killed", "a worker has no memory", "the frontier goes back"],
)
def test_a_fault(sources: Sources, fault: str, error: str) -> None:
    sources.world.hurt(fault, *sources.hurt)
    fails_and_resumes(sources.world, sources.hurt, sources.well, error)


def test_a_generator_that_raises_at_an_event(sources: Sources) -> None:
    world = sources.world
    at: dict[str, int] = {}
    for source in sources.hurt:
        # Seconds ahead: nobody may have read it when the fault is told.
        at[source.id] = world.due(source) + 1000
        world.hurt(f"raise {at[source.id]}", source)
    for source in sources.hurt:
        world.wait(lambda s=source: world.status(s).error is not None, "nobody notices")
        # All that was bound before the event is there, of its own binding nothing.
        assert world.ingested(source) <= at[source.id]
        assert world.status(source).error == f"ValueError: no row for event {at[source.id]}"
    place = r"Raised in read \(faulty.py, line [0-9]+\), called by"
    fails_and_resumes(world, sources.hurt, sources.well, f"ValueError: no row for event .*{place}")


def test_no_room_for_a_part(sources: Sources) -> None:
    (plain, _) = sources.hurt
    sources.world.hurt("full", plain)
    others = [s for s in sources.all if s is not plain]
    fails_and_resumes(sources.world, [plain], others, "could not write .*No space left on device")


def test_a_job_slower_than_the_tick(sources: Sources) -> None:
    world = sources.world
    world.hurt("sleep 1.2", *sources.hurt)
    for source in sources.hurt:
        world.wait(
            lambda s=source: world.slot(s).alone and "Its last tick took" in str(world.status(s).details),
            "nobody is told",
        )
        assert world.status(source).status == "running"
    stood = {s.id: world.ingested(s) for s in sources.hurt}
    world.wait_for_ticks(TICKS, *sources.well)
    world.wait_for_ticks(2, *sources.hurt)
    assert all(world.ingested(s) > stood[s.id] for s in sources.hurt)
    world.hurt("", *sources.hurt)
    world.wait(lambda: not any(world.slot(s).alone for s in sources.hurt), "it stays alone")
    world.wait_for_ticks(2, *sources.hurt)


# -- a disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system, with room for the ticks of a slow machine, in a mount namespace of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=96m tmpfs {folder} && echo mounted && exec cat"
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("this system lets nobody mount a file system of their own")
        yield Path(f"/proc/{holder.pid}/root{folder}")
    finally:
        holder.kill()
        holder.wait()


def test_the_disk_is_full(spark: SparkHost, small_disk: Path, tmp_path: Path) -> None:
    """The data directory's own, to the last byte, in the middle of jobs: bindings, parts, log entries and the
    lease on time find no room."""
    with world_of(str(small_disk / "data"), spark, tmp_path / "told") as world:
        sources = [world.create("numbers", *COUNTER), world.create("keys", *KEY_VALUE)]
        world.wait(lambda: all(world.ingestion.machine(s) is not None for s in sources), "not opened")
        world.wait_for_ticks(2, *sources)
        balloon = small_disk / "balloon"
        # Without a buffer: what a buffer could not write, close() would try to write again, and fail.
        with balloon.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        for source in sources:
            world.wait(lambda s=source: world.slot(s).failures >= 2, "nobody notices")
            status = world.status(source)
            assert status.status == "stalled"
            assert "No space left on device" in str(status.details), status
        stood = {s.id: world.ingested(s) for s in sources}
        balloon.unlink()
        world.wait_for_ticks(2, *sources)
        assert all(world.status(s).status == "running" for s in sources)
        assert all(world.ingested(s) > stood[s.id] for s in sources)
