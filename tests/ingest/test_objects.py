"""Files under a source that ends and begins again: the collection is what is in the files, whatever happens
between a binding and its commit. Without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingest.house import POINTS, WAIT_SECONDS, House
from tidemill.ingest.status import RunState


class FolderHouse(House):
    """With a source over a folder of files."""

    def __init__(self, folder: Path, form: dict[str, Any], envelope: dict[str, Any]) -> None:
        (folder / "files" / "in").mkdir(parents=True)
        super().__init__(folder)
        output = {"name": "in", "value": form, "include": [], "envelope": envelope}
        chosen = {"matching": None, "compression": "auto", "tailed": True}
        self.create({"kind": "files", "path": "in", **chosen, "outputs": [output], "started": 0})

    def write(self, name: str, text: str, mode: str = "w") -> None:
        with open(self.folder / "files" / "in" / name, mode) as file:
            file.write(text)

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
def house(tmp_path: Path) -> Iterator[Callable[..., FolderHouse]]:
    made: list[FolderHouse] = []

    def make(form: dict[str, Any] | None = None, envelope: dict[str, Any] | None = None) -> FolderHouse:
        made.append(FolderHouse(tmp_path, form or {"format": "text"}, envelope or {"kind": "none"}))
        return made[0]

    yield make
    made[0].close()


@pytest.mark.parametrize("point", POINTS)
def test_every_line_is_there_once_wherever_it_is_killed(
    house: Callable[..., FolderHouse], point: str
) -> None:
    """A ledger of what was written, against the collection, over lives that each end at the point."""
    found, rng = house(), Random(7)
    found.close()
    ledger: list[str] = []
    for life in range(2):
        for _ in range(4):
            lines = [f"{life}.{len(ledger)}.{k}" for k in range(rng.randrange(1, 30))]
            found.write(f"f{rng.randrange(3)}", "".join(line + "\n" for line in lines), "a")
            ledger += lines
        found.killed(point)
    found.open()
    found.settle(sorted((line,) for line in ledger))
    # Bindings are monotone, add up to the files, and each is a row of the progress.
    last = {key: end for _, key, end, _ in found.bindings()}
    files = found.folder / "files" / "in"
    assert last == {name: (files / name).stat().st_size for name in os.listdir(files)}
    assert set(found.machine.remap.stamps) == set(last)


def test_the_latest_row_of_a_key_wins(house: Callable[..., FolderHouse]) -> None:
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


def test_a_file_that_changed_while_nobody_looked_is_an_error(house: Callable[..., FolderHouse]) -> None:
    found = house()
    found.write("a", "one\n")
    found.settle([("one",)])
    found.close()
    found.write("a", "ONE\nmore\n")
    found.open()
    assert 'file "a" has changed since it was read' in found.stalled()
    found.write("a", "one\nmore\n")
    found.settle([("more",), ("one",)])
