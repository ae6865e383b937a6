"""An arrangement against a list of updates, whatever its readers do and whatever happens to its files."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from arranged import ArrangedShard, counted, hashes_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.shards import Update, memory_folder
from tidemill import failpoints
from tidemill.arrangements import Arrangement, Arrangements, contents, fill
from tidemill.failpoints import FailpointError
from tidemill.runs import merge, run

KEYS = (None, *range(8))
FAULTS = (
    "arrangements.added",
    "arrangements.kept",
    "arrangements.merged",
    "arrangements.chunk",
    "runs.run_written",
    "runs.run_named",
    "runs.small_file_written",
)
ACTIONS = st.one_of(
    st.sampled_from(["write", "write", "write", "open", "bring", "bring", "bring", "compact", "close"]),
    st.sampled_from(["tend", "keep", "history", "restart", "kill", "delete", "delete all", "corrupt", "cut"]),
    st.sampled_from([f"{how} {name}" for name in FAULTS for how in ("crash", "full")]),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large happens with a dozen rows: chunks, runs of several batches, merges now and later."""
    monkeypatch.setattr(contents, "FOLD_ROWS", 6)
    monkeypatch.setattr(merge, "INLINE_ROWS", 6)
    monkeypatch.setattr(merge, "INLINE_FACTOR", 1)
    monkeypatch.setattr(merge, "MAX_RUNS", 6)
    monkeypatch.setattr(merge, "BATCH_BYTES", 120)
    monkeypatch.setattr(run, "BATCH_BYTES", 120)
    monkeypatch.setattr(fill, "CHUNK_BYTES", 200)
    monkeypatch.setattr(fill, "WHOLE_PART_BYTES", 200)


@dataclass
class Reader:
    arrangement: Arrangement
    # It has read the collection so far.
    read: int


class World:
    def __init__(self, folder: str, rng: random.Random) -> None:
        self.rng = rng
        self.folder = f"{folder}/cache"
        self.source = ArrangedShard(f"{folder}/data")
        self.store = Arrangements(self.folder, background=False)
        self.readers: list[Reader] = []

    def step(self, action: str) -> None:
        rng, source = self.rng, self.source
        if action == "write":
            self.write()
        elif action == "open":
            at = rng.randint(source.shard.since + 1, source.upper)
            self.readers.append(Reader(source.open(self.store, at), at))
        elif action == "tend":
            self.store.tend()
        elif action == "keep":
            self.store.tend(keep=True)
        elif action == "history":
            # As far as the arrangements let it go.
            source.shard.downgrade_since(rng.randint(source.shard.since, source.upper - 1))
        elif action == "restart":
            self.store.close()
            self.restart()
        elif action == "kill":
            self.restart()
        elif action.startswith(("crash", "full")):
            self.fail(*action.split())
        elif action in ("delete", "delete all", "corrupt", "cut"):
            self.sabotage(action)
        elif self.readers:
            reader = rng.choice(self.readers)
            if action == "bring" and reader.read < source.upper:
                upper = rng.randint(reader.read + 1, source.upper)
                source.bring(reader.arrangement, reader.read, upper)
                reader.read = upper
            elif action == "compact":
                reader.arrangement.compact(rng.randint(reader.arrangement.since, reader.read))
            elif action == "close":
                self.readers.remove(reader)
                reader.arrangement.close()
        self.look()

    def restart(self) -> None:
        """Nothing survives but the files."""
        self.readers = []
        self.source.forget_holds()
        self.store = Arrangements(self.folder, background=False)
        if self.rng.random() < 0.7:
            self.step("open")

    def fail(self, kind: str, name: str) -> None:
        failpoints.arm(f"{name}={'error' if kind == 'crash' else 'enospc'}@{self.rng.randint(1, 2)}")
        try:
            for action in ("write", "bring", "compact", "keep", "tend", "open"):
                self.step(action)
        except FailpointError:
            self.restart()
        except contents.DiskFull as error:
            assert kind == "full"
            assert error.sqlstate == "53100" and self.folder in (error.detail or "")
        finally:
            failpoints.arm("")

    def sabotage(self, action: str) -> None:
        """Whoever has opened the files is right too; the next process has only the files."""
        found = sorted(path for path in Path(self.folder).rglob("*") if path.is_file())
        for path in found if action == "delete all" else self.rng.sample(found, min(len(found), 2)):
            data = bytearray(path.read_bytes())
            # As a new file: one that is mapped must not change.
            path.unlink()
            if action == "corrupt" and data:
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            if not action.startswith("delete"):
                path.write_bytes(data[: self.rng.randrange(len(data) + 1)] if action == "cut" else data)
        if self.rng.random() < 0.6:
            self.restart()

    def write(self) -> None:
        """Rows, and retractions of rows that are there."""
        rng, source = self.rng, self.source
        upper = source.upper + rng.randint(1, 4)
        there = source.contents(KEYS, source.upper)
        fresh: list[Update] = []
        for _ in range(rng.randint(0, 8)):
            row = (rng.choice(KEYS), rng.choice([None, "a", "b"]))
            fresh.append((row, rng.randrange(source.upper, upper), 1))
        for row, count in rng.sample(sorted(there.items(), key=str), min(len(there), rng.randint(0, 4))):
            fresh.append((row, rng.randrange(source.upper, upper), -rng.randint(1, count)))
        source.append(fresh, upper)

    def look(self) -> None:
        for reader in self.readers:
            keys = self.rng.sample(KEYS, self.rng.randint(0, len(KEYS)))
            before = self.rng.randint(reader.arrangement.since, reader.read)
            found = counted(reader.arrangement.lookup(hashes_of(keys), before))
            assert found == self.source.contents(keys, before)
            assert reader.arrangement.count(hashes_of(keys)) >= len(found)


def play(actions: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        world = World(folder, random.Random(seed))
        for action in actions:
            world.step(action)
        world.store.close()


@given(actions=st.lists(ACTIONS, max_size=40), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
@example(actions=["write", "open", "write", "bring", "keep", "write", "kill", "open", "bring"] * 3, seed=1)
def test_every_lookup_is_right(actions: list[str], seed: int) -> None:
    play(actions, seed)


@pytest.mark.chaos
@given(actions=st.lists(ACTIONS, min_size=20, max_size=120), seed=st.integers(0, 2**32))
@settings(max_examples=3000, deadline=None)
def test_every_lookup_is_right_for_long(actions: list[str], seed: int) -> None:
    play(actions, seed)
