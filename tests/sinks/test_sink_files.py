"""Files of a sink: whole or not there, named so that they sort and tell how far they go; and where they may
be."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from sinks_world import World, messages

from tidemill import failpoints
from tidemill.errors import InvalidValue, Unsupported, WrongObjectType
from tidemill.files_root import below_root
from tidemill.sinks import files_target
from tidemill.sinks.files_target import FilesTarget, check_writable, is_free
from tidemill.sinks.target import SinkError, Written


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
        ".w.lives",
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
    assert os.listdir(world.folder) == [".w.lives"]
    again.send(b"[1]")
    again.close()
    assert os.listdir(world.folder) == [".w.lives"]


def test_whose_statements_count(world: World) -> None:
    whole, half = world.files("json"), world.files("json", (0, 2), "h")
    whole.resume()
    whole.state(b"{}", 50)
    half.resume()
    half.state(b"{}", 90)
    assert world.files("json").resume() == 50
    assert world.files("json", (0, 2)).resume() == 90
    assert world.files("json", (1, 2)).resume() == 50


def test_a_writer_that_stood_still_loses(world: World) -> None:
    """It has a file in the making when its successor begins, and wakes up while that one has one too."""
    old = world.files("json", life=7)
    old.resume()
    old.state(b'{"n": 1}', 50)
    old.send(b'["old"]')
    new = world.files("json", life=8)
    assert new.resume() == 50
    new.send(b'["new"]')
    with pytest.raises(SinkError, match="another server has gone on with the sink"):
        old.state(b"{}", 70)
    old.close()
    # Nor does it come back.
    for _ in range(2):
        with pytest.raises(SinkError, match="another server has gone on with the sink"):
            old.resume()
        old.close()
    new.state(b"{}", 70)
    assert sorted(p.read_bytes() for p in world.folder.glob("0*")) == [b'["new"]\n{}\n', b'{"n": 1}\n']
    # It may also wake up between two files.
    last = world.files("json", life=9)
    assert last.resume() == 70
    with pytest.raises(SinkError, match="another server has gone on with the sink"):
        new.send(b'["late"]')
    new.close()
    last.state(b"{}", 80)
    assert world.files("json", life=9).resume() == 80
    assert os.listdir(world.folder / ".w.lives") == [".9"]


def test_whoever_publishes_first_is_seen_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one publishes while the later one begins: the later one goes on behind it, or the file is
    gone before."""
    for step in range(1, 40):
        folder = world.folder / str(step)
        folder.mkdir(parents=True)
        old, new = (
            FilesTarget(lambda folder=folder: folder, "json", None, (0, 1), "w", life, Written())
            for life in (1, 2)
        )
        old.resume()
        old.send(b"[1]")
        calls = 0

        def interrupted(path: Any, *, of: Any, step: int = step, old: FilesTarget = old) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                with suppress(SinkError):
                    old.state(b"{}", 50)
            return of(path)

        with monkeypatch.context() as patch:
            for name in ("listdir", "unlink"):
                patch.setattr(os, name, partial(interrupted, of=getattr(os, name)))
            reached = new.resume()
        old.close()
        assert reached == (50 if list(folder.glob("0*-50.jsonl")) else None)
        new.state(b"{}", 60)
        assert len(list(folder.glob("0*"))) == (1 if reached is None else 2)
        if calls < step:
            break
    else:
        pytest.fail("it never began undisturbed")


def test_any_avro_reader_reads_them(world: World) -> None:
    world.append([((1, "a"), 1), ((2, None), 2)], 5)
    one = world.machine(4, world.files("avro"), "avro")
    one.step()
    one.close()
    (path,) = world.folder.glob("0*")
    with path.open("rb") as file:
        updates, progress = list(fastavro.reader(file))
    assert updates == [
        {"data": {"k": 1, "v": "a"}, "time": 4, "diff": 1},
        {"data": {"k": 2, "v": None}, "time": 4, "diff": 2},
    ]
    assert progress == {"lower": [0], "upper": [5], "counts": [{"time": 4, "count": 2}]}


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    for folder in (tmp_path / "f", tmp_path / "f" / "below"):
        with pytest.raises(WrongObjectType, match='"f" is a file, and not a folder'):
            check_writable(folder)
    with pytest.raises(SinkError, match="cannot be written to") as caught:
        is_free(tmp_path / "f")
    assert caught.value.detail == "Not a directory."


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


def test_a_file_that_cannot_be_closed_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses the bytes that are still in the buffer once more."""
    target = world.files("json")
    target.resume()
    target.send(b"x")
    file: Any = target._file  # pyright: ignore[reportPrivateUsage]
    path = file.name

    class Full:
        name = path

        def close(self) -> None:
            file.close()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(target, "_file", Full())
    target.close()
    assert not os.path.exists(path)


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
