"""Files of a sink: whole or not there, named so that they sort and tell how far they go; and where they may
be."""

from __future__ import annotations

import os
from pathlib import Path

import fastavro
import pytest
from sinks_world import World, messages

from tidemill import failpoints
from tidemill.errors import InvalidValue, Unsupported
from tidemill.files_root import below_root
from tidemill.sinks import files_target
from tidemill.sinks.files_target import is_free
from tidemill.sinks.target import SinkError


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_names_sort_and_tell(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_target, "FILE_BYTES", 20)
    target = world.files("json")
    assert target.resume() is None
    for message in (b"[1]", b"[2, 2, 2, 2, 2, 2, 2]", b"[3]"):
        target.send(message)
    target.state(b"{}", 70)
    target.state(b"{}", 80)
    assert sorted(os.listdir(world.folder)) == [
        "000000000001-w-0of1.jsonl",
        "000000000002-w-0of1-70.jsonl",
        "000000000003-w-0of1-80.jsonl",
    ]
    assert (world.folder / "000000000002-w-0of1-70.jsonl").read_bytes() == b"[3]\n{}\n"
    assert not is_free(world.folder)


def test_nothing_is_seen_before_it_is_whole(world: World) -> None:
    target = world.files("json")
    target.resume()
    target.send(b"[1]")
    assert messages(world.folder) == []
    assert is_free(world.folder)
    # A life that ended halfway leaves a file that nobody reads; the next one removes it.
    again = world.files("json")
    assert again.resume() is None
    assert os.listdir(world.folder) == []
    again.send(b"[1]")
    again.close()
    assert os.listdir(world.folder) == []


def test_whose_statements_count(world: World) -> None:
    whole, half = world.files("json"), world.files("json", (0, 2), "h")
    whole.resume()
    whole.state(b"{}", 50)
    half.resume()
    half.state(b"{}", 90)
    assert world.files("json").resume() == 50
    assert world.files("json", (0, 2)).resume() == 90
    assert world.files("json", (1, 2)).resume() == 50


def test_any_avro_reader_reads_them(world: World) -> None:
    world.append([((1, "a"), 1), ((2, None), 2)], 5)
    one = world.machine(4, world.files("avro"), "avro")
    one.step()
    one.close()
    (path,) = world.folder.iterdir()
    with path.open("rb") as file:
        updates, progress = list(fastavro.reader(file))
    assert updates == [
        {"data": {"k": 1, "v": "a"}, "time": 4, "diff": 1},
        {"data": {"k": 2, "v": None}, "time": 4, "diff": 2},
    ]
    assert progress == {"lower": [0], "upper": [5], "counts": [{"time": 4, "count": 2}]}


def test_a_full_disk_is_told_and_passes(world: World) -> None:
    world.append([((1, "a"), 1)], 5)
    one = world.machine(4, world.files("json"))
    failpoints.arm("sink.file_written=enospc")
    try:
        with pytest.raises(SinkError, match="cannot be written to") as found:
            one.step()
    finally:
        failpoints.arm("")
    assert found.value.hint == "Make room on the disk: the sink goes on by itself."
    one.step()
    one.close()
    assert len(messages(world.folder)) == 2


def test_only_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    assert below_root(str(root), "a/b") == Path(os.path.realpath(root)) / "a" / "b"
    assert below_root(str(root), str(root / "x")) == Path(os.path.realpath(root)) / "x"
    for path in ("..", ".", "../root2/x", "/etc", "link/x", "a/../../x", str(tmp_path), "", "a\0b"):
        with pytest.raises(InvalidValue):
            below_root(str(root), path)
    with pytest.raises(Unsupported, match="no folder is configured") as found:
        below_root("", "x")
    assert found.value.hint is not None and "--files-root" in found.value.hint
