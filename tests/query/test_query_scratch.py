"""The temporary folders of Spark hosts: what killed ones left is deleted, what is in use is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidemill.scratch import Scratch

# Holds a folder until it is killed.
_HOLDER = """
import tempfile, sys, time
tempfile.tempdir = sys.argv[1]
from tidemill.scratch import Scratch
print(Scratch().path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_kept_while_its_process_lives_and_deleted_after_a_kill(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(temporary)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        (theirs / "local").mkdir()
        (theirs / "local" / "shuffle").write_bytes(b"x")
        first = Scratch()
        assert theirs.exists() and first.path.exists()
        holder.kill()
        holder.wait()
    second = Scratch()
    assert not theirs.exists()
    assert first.path.exists() and second.path.exists()
    for scratch in (first, second):
        scratch.remove()
        scratch.remove()
        assert not scratch.path.exists()


def test_a_process_id_that_came_again_does_not_keep_a_folder(temporary: Path) -> None:
    left = temporary / f"tidemill-spark-{os.getpid()}-old"
    left.mkdir()
    (left / "lock").touch()
    Scratch().remove()
    assert not left.exists()


def test_a_folder_that_was_never_locked_goes_with_its_process(temporary: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = temporary / f"tidemill-spark-{ended.pid}-x"
    starting = temporary / f"tidemill-spark-{os.getpid()}-x"
    strange = temporary / "tidemill-spark-notes-x"
    for folder in (dead, starting, strange):
        folder.mkdir()
    Scratch().remove()
    assert not dead.exists()
    assert starting.exists() and strange.exists()
