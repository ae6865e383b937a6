"""Files under a source that ends and begins again: the collection is what is in the files, whatever happens
between a binding and its commit. Without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from tidemill import failpoints
from tidemill.catalog.store import Catalog
from tidemill.ingest.machine import FP_BEFORE_COMMIT, FP_BETWEEN
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.status import RunState
from tidemill.ingest.storage import CollectionType, SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.reclock.progress import all_bindings
from tidemill.reclock.remap import FP_BEFORE_BIND, FP_BOUND, FP_PUT
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN

WAIT_SECONDS = 120.0
# Before and behind each step that makes something durable.
POINTS = [FP_BEFORE_BIND, FP_PUT, FP_BOUND, FP_BEFORE_COMMIT, FP_BETWEEN]


class House:
    """A data directory and a folder of files, with a source over it."""

    def __init__(self, folder: Path, form: dict[str, Any], envelope: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "files" / "in").mkdir(parents=True)
        output = {"name": "in", "value": form, "include": [], "envelope": envelope}
        chosen = {"matching": None, "compression": "auto", "tailed": True}
        self.definition = {"kind": "files", "path": "in", **chosen, "outputs": [output], "started": 0}
        self.open()
        schema = self.catalog.state.schema(self.catalog.state.database("materialize").id, "public").id
        (self.id,) = self.storage.create_sources([SourceDescription(schema, "s", self.definition, "", 100)])

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder / "data"))
        self.catalog = Catalog.open(self.environment)
        runner = LocalRunner(str(self.folder / "state"))
        self.ingestion = Ingestion(
            self.environment, self.catalog, runner, files_root=str(self.folder / "files")
        )
        self.storage = Storage(self.environment, self.catalog, self.ingestion)

    def close(self) -> None:
        self.ingestion.stop()
        self.environment.close()

    def write(self, name: str, text: str, mode: str = "w") -> None:
        with open(self.folder / "files" / "in" / name, mode) as file:
            file.write(text)

    def rows(self) -> list[tuple[Any, ...]]:
        rendered = self.storage.render(StorageCollectionId(self.id))
        if not rendered.upper:
            return []
        with rendered.snapshot(rendered.upper - 1) as snapshot:
            table = snapshot.read()
        names = [n for n in table.column_names if not n.startswith("mz_")]
        assert set(table.column(DIFF_COLUMN).to_pylist()) <= {1}
        if ERROR_COLUMN in table.column_names:
            assert table.column(ERROR_COLUMN).null_count == len(table)
        return sorted(zip(*(table.column(n).to_pylist() for n in names), strict=True))

    def settle(self, wanted: list[tuple[Any, ...]]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.rows() != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.rows() == wanted

    def stalled(self) -> str:
        """The error, once there is one."""
        (source,) = self.catalog.state.sources()
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            slot = self.ingestion.ticker.slot(source.id)
            if slot is not None and slot.report.status.state is RunState.STALLED:
                return str(slot.report.status.error)
            time.sleep(0.02)
        raise AssertionError("nothing is wrong")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    made: list[House] = []

    def make(form: dict[str, Any] | None = None, envelope: dict[str, Any] | None = None) -> House:
        made.append(House(tmp_path, form or {"format": "text"}, envelope or {"kind": "none"}))
        return made[0]

    yield make
    made[0].close()


def live(folder: Path, spec: str) -> None:
    """A life of the server in this process, which ends with SIGKILL at the point, or after a while."""
    failpoints.arm(spec)
    house = House.__new__(House)
    house.folder = folder
    house.open()
    time.sleep(WAIT_SECONDS)


@pytest.mark.parametrize("point", POINTS)
def test_every_line_is_there_once_wherever_it_is_killed(house: Callable[..., House], point: str) -> None:
    """A ledger of what was written, against the collection, over lives that each end at the point."""
    found, rng = house(), Random(7)
    found.close()
    ledger: list[str] = []
    for life in range(2):
        for _ in range(4):
            lines = [f"{life}.{len(ledger)}.{k}" for k in range(rng.randrange(1, 30))]
            found.write(f"f{rng.randrange(3)}", "".join(line + "\n" for line in lines), "a")
            ledger += lines
        process = get_context("spawn").Process(target=live, args=(found.folder, f"{point}=kill"))
        process.start()
        process.join(WAIT_SECONDS)
        assert process.exitcode == -SIGKILL
    found.open()
    found.settle(sorted((line,) for line in ledger))
    # Bindings are monotone, add up to the files, and each is a row of the progress.
    remap = found.storage.render(StorageCollectionId(found.id, CollectionType.REMAPPING)).shard
    (source,) = found.catalog.state.sources()
    machine = found.ingestion.machine(source)
    assert machine is not None
    last: dict[str | None, int] = {}
    for _, key, end, _ in all_bindings(remap, machine.source.gauge):
        assert end >= last.get(key, 0)
        last[key] = end
    files = found.folder / "files" / "in"
    assert last == {name: (files / name).stat().st_size for name in os.listdir(files)}
    assert set(machine.remap.stamps) == set(last)


def test_the_latest_row_of_a_key_wins(house: Callable[..., House]) -> None:
    """By the time of change, the name and the place, in whichever order files come."""
    form = {"format": "csv", "columns": ["k", "v"], "delimiter": ",", "header": False}
    found = house(form, {"kind": "upsert", "key": ["k"]})

    def put(name: str, text: str, at: int) -> None:
        hidden = f".{name}"
        found.write(hidden, text)
        path = found.folder / "files" / "in"
        os.utime(path / hidden, (at, at))
        os.rename(path / hidden, path / name)

    put("b", "1,first\n1,second\n2,two\n", 1000)
    found.settle([("1", "second"), ("2", "two")])
    put("z", "1,older\n3,three\n", 900)
    found.settle([("1", "second"), ("2", "two"), ("3", "three")])
    # As late: by the name.
    put("a", "1,a\n", 1000)
    put("c", "2,c\n", 1000)
    found.settle([("1", "second"), ("2", "c"), ("3", "three")])
    found.close()
    found.open()
    put("0", "1,new\n", 2000)
    found.settle([("1", "new"), ("2", "c"), ("3", "three")])


def test_a_file_that_changed_while_nobody_looked_is_an_error(house: Callable[..., House]) -> None:
    found = house()
    found.write("a", "one\n")
    found.settle([("one",)])
    found.close()
    found.write("a", "ONE\nmore\n")
    found.open()
    assert 'file "a" has changed since it was read' in found.stalled()
    found.write("a", "one\nmore\n")
    found.settle([("more",), ("one",)])
