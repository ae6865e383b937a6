"""The folder in which workers on other machines keep upsert states."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.ingest.worker_folder import FolderNotOurs, worker_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker_folder.cache_clear()
    return tmp_path


def test_it_lies_under_the_temporary_folder_and_is_ours_alone(temporary: Path) -> None:
    folder = Path(worker_folder("s3://bucket/a", "life"))
    assert folder.is_dir()
    assert temporary in folder.parents
    for made in (folder, folder.parent):
        assert made.stat().st_mode & 0o077 == 0
    assert worker_folder("s3://bucket/a", "life") == str(folder)


def test_a_new_life_begins_with_nothing_and_leaves_nothing() -> None:
    old = Path(worker_folder("s3://bucket/a", "old"))
    (old / "state").write_text("x")
    other = Path(worker_folder("s3://bucket/b", "old"))
    new = Path(worker_folder("s3://bucket/a", "new"))
    assert not list(new.iterdir())
    assert not old.exists()
    assert other.exists()


def test_a_folder_that_others_can_write_to_is_refused(temporary: Path) -> None:
    planted = temporary / f"tidemill-state-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(FolderNotOurs):
        worker_folder("s3://bucket/a", "life")
    planted.rmdir()
    planted.symlink_to(temporary)
    with pytest.raises(FolderNotOurs):
        worker_folder("s3://bucket/a", "life")
