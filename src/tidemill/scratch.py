"""Temporary folders of this process, and the removal of those that killed processes left.

`SparkHost` creates one for shuffle files if it was given no folder, and each PostgreSQL source one for the
transactions that it has received. They can be many gigabytes, so the next server deletes what a killed one
left. A folder in use contains a locked file. The kernel releases the lock when the process ends in any way.
Unlike a process id, a lock cannot be mistaken for that of another process (in a container every server is
process 1).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

SPARK_PREFIX = "tidemill-spark-"
_LOCK = "lock"


class Scratch:
    """A folder of this process alone, until `remove`. Folders of one purpose have one `prefix`."""

    def __init__(self, prefix: str = SPARK_PREFIX) -> None:
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
        # Open for as long as the folder is in use; not inherited by the JVM, which may live a moment longer.
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        pid = folder.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and _abandoned(folder, int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path, pid: int) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Made this moment by a process that lives, or left by one that died before it could lock it.
        return _dead(pid)
    except OSError:
        return False  # another user's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's, alive
    return False
