"""An arrangement against a list of updates, whatever its readers do and whatever happens to its files."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass

import pytest
from arranged import ArrangedShard, counted, hashes_of
from hypothesis import given, settings
from hypothesis import strategies as st

from support.shards import Update, memory_folder
from tidemill.arrangements import Arrangement, Arrangements, contents

KEYS = (None, *range(8))
ACTIONS = st.sampled_from(["write", "write", "open", "bring", "bring", "look", "compact", "close"])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large happens with a dozen rows."""
    monkeypatch.setattr(contents, "FOLD_ROWS", 6)


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
        self.store = Arrangements(self.folder)
        self.readers: list[Reader] = []

    def step(self, action: str) -> None:
        rng, source = self.rng, self.source
        if action == "write":
            self.write()
        elif action == "open":
            at = rng.randint(1, source.upper)
            self.readers.append(Reader(source.open(self.store, at), at))
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


@given(actions=st.lists(ACTIONS, max_size=40), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_lookup_is_right(actions: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        world = World(folder, random.Random(seed))
        for action in actions:
            world.step(action)


def test_readers_of_the_same_share_one(tmp_path: object) -> None:
    source, store = ArrangedShard(f"{tmp_path}/data"), Arrangements(f"{tmp_path}/cache")
    source.append([((1, "a"), 1, 1)], 5)
    first, second = source.open(store, 5), source.open(store, 5)
    source.append([((1, "b"), 5, 1)], 6)
    source.bring(first, 5, 6)
    # What one has brought is there for all, once.
    assert second.upper == 6
    source.bring(second, 5, 6)
    assert counted(second.lookup(hashes_of([1]), 6)) == Counter({(1, "a"): 1, (1, "b"): 1})
    assert counted(second.lookup(hashes_of([1]), 5)) == Counter({(1, "a"): 1})
