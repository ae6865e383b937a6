"""The folder that the lock makes."""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.persist.local import LocalBlobs
from tidemill.persist.lock import DirectoryLock


def test_others_cannot_look_into_a_data_directory_that_was_made(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        lock = DirectoryLock(LocalBlobs(str(tmp_path / "data")))
        assert lock.acquire()
        lock.release()
    finally:
        os.umask(before)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o750
