"""What a query computes and keeps, over random deaths: from wherever it goes on, it has the right rows."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from arranged import KEY, ArrangedShard, counted, hashes_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.shards import Update, memory_folder
from tidemill.arrangements import Arrangement, Arrangements
from tidemill.arrangements.fill import Rows, rows_of

KEYS = [None, 1, 2, 3]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
NAMES = ("one", "other")
ACTIONS = st.sampled_from(
    ["write", "write", "idle", "step", "half", "commit", "commit", "tend", "keep", "kill", "close"]
)


class Query:
    """It keeps two arrangements of computed rows (here: those of the source). `committed` is where it goes on
    after a death."""

    def __init__(self, folder: str, dice: random.Random) -> None:
        self.dice = dice
        self.folder = f"{folder}/cache"
        self.source = ArrangedShard(f"{folder}/data")
        self.source.append([((1, "a"), 1, 1)], 2)
        self.committed = self.at = 2
        self.found = 0
        self.start()

    def start(self) -> None:
        """As `inputs.incremental` opens them."""
        self.store = Arrangements(self.folder, background=False)
        self.store.hold(self.source.shard)
        # Of the source only what is held stays.
        self.source.shard.downgrade_since(self.committed - 1)
        earliest = min(self.committed, self.source.shard.since + 1)
        self.kept = [self.open(name, earliest) for name in NAMES]
        begins = {each.since for each in self.kept}
        if len(begins) > 1:
            for each in self.kept:
                each.close()
            self.kept = [self.open(name, None) for name in NAMES]
            begins = {self.committed}
        (self.at,) = begins
        self.found += not self.store.built
        self.bring(self.committed)

    def open(self, name: str, earliest: int | None) -> Arrangement:
        def rows() -> Iterator[Rows]:
            with self.source.shard.snapshot(self.committed - 1) as snapshot:
                yield from rows_of(snapshot, ["k", "v"], KEY, None)

        return self.store.private(name, SCHEMA, self.committed, rows, [self.source.shard], earliest, "query")

    def bring(self, upper: int) -> None:
        for each in self.kept:
            self.source.bring(each, self.at, upper)
            each.compact(upper)
        self.at = upper

    def do(self, action: str) -> None:
        source, dice = self.source, self.dice
        if action == "write":
            upper = source.upper + dice.randint(1, 3)
            rows: list[Update] = [
                ((dice.choice(KEYS), "a"), dice.randrange(source.upper, upper), 1)
                for _ in range(dice.randint(1, 3))
            ]
            source.append(rows, upper)
        elif action == "idle":
            source.append([], source.upper + 5)
        elif action == "step":
            self.bring(source.upper)
        elif action == "half" and self.at < source.upper:
            # It dies in the middle of a step.
            self.source.bring(self.kept[0], self.at, source.upper)
            self.kept[0].compact(source.upper)
            self.do("kill")
        elif action == "commit":
            self.do("step")
            self.committed = self.at
        elif action in ("tend", "keep"):
            self.store.tend(keep=action == "keep")
        elif action in ("kill", "close"):
            if action == "close":
                for each in self.kept:
                    each.close()
                self.store.close()
            source.forget_holds()
            self.start()
        for each in self.kept if action != "half" else ():
            found = counted(each.lookup(hashes_of(KEYS), self.at))
            assert found == source.contents(KEYS, self.at), action


@given(actions=st.lists(ACTIONS, max_size=30), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
@example(actions=["write", "step", "tend", "keep", "kill"], seed=1)
def test_what_is_kept_is_right_wherever_it_goes_on(actions: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        query = Query(folder, random.Random(seed))
        for action in actions:
            query.do(action)
        query.store.close()


@pytest.mark.parametrize("idle", [0, 3])
def test_it_is_found_again(tmp_path: Path, idle: int) -> None:
    query = Query(str(tmp_path), random.Random(1))
    for action in ["write", "commit", "tend", "keep", "write", "commit", "tend", "keep"]:
        query.do(action)
    for _ in range(idle):
        # Time passes for it, and it commits nothing.
        for action in ("idle", "step", "tend", "keep"):
            query.do(action)
    before = query.found
    query.do("kill")
    assert query.found == before + 1
