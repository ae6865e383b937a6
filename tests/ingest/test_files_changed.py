"""Files under a source that is killed and started again: what was read of them is known again from the shards
alone, and what holds something else is an error and never rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from ingest.streamed import StreamHouse, StreamSource
from tidemill import failpoints
from tidemill.ingest.recovery.stream import FP_TALLIED
from tidemill.sources.contract import UpstreamError, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.types.arrow import DIFF_COLUMN


class FilesHouse(StreamHouse):
    """With a folder of JSON in the place of the scripted source; opened anew with every life."""

    def open(self) -> None:
        output = {"name": "in", "envelope": {"kind": "materialize"}, "value": {"format": "json"}}
        definition = {"kind": "files", "path": "in", "output": output, "started": 0}
        source = cast("Any", open_source(definition, str(self.folder.parent)))
        source.kind = 0
        self.source = cast("StreamSource", source)
        super().open()

    def rows(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self._all(self.machine.feeds[0].rows):
            found[row["data"]] = found.get(row["data"], 0) + row[DIFF_COLUMN]
        return found


@pytest.fixture
def house(tmp_path: Path) -> FilesHouse:
    (tmp_path / "in").mkdir()
    return FilesHouse(tmp_path / "home")


def put(house: FilesHouse, name: str, number: int, at: int) -> Path:
    """A file with one row at one time."""
    said: list[Any] = [
        [{"data": {"id": number}, "time": at, "diff": 1}],
        {"lower": [at], "upper": [at + 1], "counts": [{"time": at, "count": 1}]},
    ]
    path = house.folder.parent / "in" / name
    path.write_text("".join(json.dumps(one) + "\n" for one in said))
    return path


def error_of(house: FilesHouse) -> str:
    with pytest.raises(UpstreamError) as caught:
        house.settle()
    return str(caught.value)


def test_overwritten_by_as_many_bytes(house: FilesHouse) -> None:
    first = put(house, "a", 1, 0)
    put(house, "b", 2, 1)
    house.settle()
    rows = {'{"id": 1}': 1, '{"id": 2}': 1}
    assert house.rows() == rows
    kept = first.read_bytes()
    house.close()
    put(house, "a", 7, 0)
    house.open()
    told = error_of(house)
    assert 'file "a" has changed since it was read' in told and "not the same ones" in told
    # The same while it runs, and after the next start; what was read is what it was.
    assert error_of(house) == told and house.rows() == rows
    house.again()
    assert error_of(house) == told
    # As it was it goes on, with what came meanwhile.
    first.write_bytes(kept)
    put(house, "c", 3, 2)
    house.settle()
    assert house.rows() == rows | {'{"id": 3}': 1}
    # Marks are there once each.
    house.again()
    house.settle()
    assert len(house.stream.marks) == 3


def test_gone_is_told_the_same_after_a_restart(house: FilesHouse) -> None:
    put(house, "a", 1, 0)
    house.settle()
    (house.folder.parent / "in" / "a").unlink()
    told = error_of(house)
    assert 'file "a" has changed since it was read' in told and "now it is gone" in told
    house.again()
    assert error_of(house) == told


def test_overwritten_between_two_attempts(house: FilesHouse) -> None:
    """A tick that reached the tally and not the data is done again, with the same file or not at all."""
    kept = put(house, "a", 1, 0).read_bytes()
    failpoints.arm(f"{FP_TALLIED}=error@1")
    try:
        with pytest.raises(failpoints.FailpointError):
            house.settle()
    finally:
        failpoints.arm("")
    path = put(house, "a", 7, 0)
    house.again()
    assert "not the same ones" in error_of(house) and house.rows() == {}
    path.write_bytes(kept)
    house.settle()
    assert house.rows() == {'{"id": 1}': 1}


def test_overwritten_while_it_is_read(house: FilesHouse) -> None:
    put(house, "a", 1, 0)
    source = cast("UpstreamSource", house.source)
    reader = source.reader

    def interfering() -> Any:
        put(house, "a", 7, 0)
        return reader()

    source.reader = interfering  # type: ignore[method-assign]
    assert "It was written to while it was read" in error_of(house) and house.rows() == {}
    source.reader = reader  # type: ignore[method-assign]
    house.settle()
    assert house.rows() == {'{"id": 7}': 1}
