"""Sinks of real tables in a data directory, without a server: transactions, retention without history, and
lives that end anywhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from sinks_world import messages, recovered

from support.shards import DESC, memory_folder
from tidemill import stepping
from tidemill.catalog.items import Sink, Table
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.catalog.store import Catalog
from tidemill.ingest.service import Ingestion
from tidemill.ingest.status import RunState
from tidemill.inputs.collections import Collections
from tidemill.persist.environment import Environment
from tidemill.query.metrics import QueryMetrics
from tidemill.query.spark import SparkHost
from tidemill.sinks.definition import FILES, Definition
from tidemill.sinks.feed import sink_shard
from tidemill.sinks.files_target import FilesTarget
from tidemill.sinks.open import SinkOpener
from tidemill.sinks.service import Sinks
from tidemill.sinks.target import SinkPace

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(FilesTarget, "pace", SinkPace(0.0, 0.01))
    monkeypatch.setattr(stepping, "IDLE_SECONDS", 0.01)


class Life:
    """One process on the data directory, as the engine puts it together, but for Spark."""

    def __init__(self, folder: Path) -> None:
        self.environment = Environment.open(str(folder / "data"))
        self.catalog = Catalog.open(self.environment)
        # What a snapshot that is cancelled asks of Spark; small ones need nothing else.
        spark = cast("SparkHost", SimpleNamespace(metrics=QueryMetrics(), background=lambda what: None))
        # There are no sources, and no connections.
        self.collections = collections = Collections(self.environment, cast("Ingestion", None))
        opener = SinkOpener(self.environment, collections, spark, SecretStore(None), str(folder / "files"))
        self.sinks = Sinks(self.catalog, opener.open, sink_shard)
        self.sinks.start()

    def end(self) -> None:
        self.sinks.stop()
        self.environment.close()

    def table(self) -> Table:
        (table,) = self.catalog.state.tables()
        return table

    def insert(self, rows: Counter[tuple[int, str]]) -> None:
        table = pa.table(
            {
                "k": pa.array([k for k, _ in rows], pa.int64()),
                "v": pa.array([v for _, v in rows], pa.string()),
                "mz_diff": pa.array(list(rows.values()), pa.int64()),
            }
        )
        self.environment.open_shard(self.table().shard)  # fenced at its first use
        self.environment.txns.commit({self.table().shard: table}).result(SECONDS)
        self.sinks.moved([self.table().shard])

    def forget(self) -> None:
        """What maintenance does, where nobody asks for history."""
        self.catalog.maintain(0, self.sinks.unheld())

    def frontier(self) -> int:
        return min(frontier for _, _, _, frontier in self.sinks.all())


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=memory_folder()) as name:
        yield Path(name)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def make(life: Life, name: str, share: tuple[int, int] = (0, 1)) -> Sink:
    schema = life.catalog.state.resolve_schema(("public",), "materialize").id
    definition = Definition(FILES, "json", path="out", share=share)
    table = life.table()
    life.catalog.transact(
        [
            CreateSinkOp(
                schema, name, FILES, definition.target, definition.to_json(), "", table.id, DESC, None, True
            )
        ]
    )
    return next(s for s in life.catalog.state.sinks() if s.name == name)


@pytest.mark.parametrize(
    "shares", [[(0, 1)], [(0, 1), (0, 1)], [(0, 2), (1, 2)]], ids=["one", "both", "shares"]
)
def test_lives_that_forget_everything_that_is_not_held(folder: Path, shares: list[tuple[int, int]]) -> None:
    rng = Random(len(shares))
    life = Life(folder)
    schema = life.catalog.state.resolve_schema(("public",), "materialize").id
    life.catalog.transact([CreateTableOp(schema, "t", DESC, retain_history_ms=0)])
    held: Counter[tuple[int, str]] = Counter({(n, "first"): 1 for n in range(20)})
    life.insert(held)
    made = [make(life, f"s{n}", share) for n, share in enumerate(shares)]
    assert len({sink.as_of for sink in made}) == 1
    for _ in range(6):
        for _ in range(rng.randrange(1, 8)):
            changes = Counter({(rng.randrange(30), rng.choice("ab")): 1 for _ in range(3)})
            gone = [row for row in held if rng.random() < 0.1]
            changes.subtract({row: held[row] for row in gone})
            changes = Counter({row: n for row, n in changes.items() if n})
            held.update(changes)
            held = Counter({row: n for row, n in held.items() if n})
            if changes:
                life.insert(changes)
            if rng.random() < 0.3:
                life.forget()
        # In the middle of whatever its sinks do.
        life.end()
        life = Life(folder)
        life.forget()
    written = life.environment.oracle.write_ts()
    life.environment.oracle.complete(written)
    until(lambda: life.frontier() > written)
    assert {s.state for _, s, _, _ in life.sinks.all()} == {RunState.RUNNING}
    life.forget()
    shard = life.environment.open_shard(life.table().shard)
    assert shard.since >= made[0].as_of
    life.end()
    said = messages(folder / "files" / "out")
    rng.shuffle(said)
    found, _ = recovered(said)
    total: Counter[Any] = Counter()
    for (row, _), diff in found.items():
        total[row] += diff
    assert {row: n for row, n in total.items() if n} == held
