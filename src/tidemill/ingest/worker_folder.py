"""The folder for upsert states on a worker machine other than the server's.

Called by the tasks of `spark_runner`. The folder is in the worker's temporary folder (`TMPDIR`), and belongs
to this user and to one run of one server. States are trusted without a check, and states of another run may
contain data that never existed in this one (for example after the data directory was restored from a backup).
Executors of one machine share it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from functools import cache

from tidemill.errors import TidemillError


class FolderNotOurs(TidemillError):
    """Another user could write rows into the state."""

    sqlstate = "42501"


@cache
def worker_folder(url: str, life: str) -> str:
    """The folder for the states of the data directory `url`. Removes the states of its earlier runs."""
    root = os.path.join(tempfile.gettempdir(), f"tidemill-state-{os.getuid()}")
    os.makedirs(root, mode=0o700, exist_ok=True)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise FolderNotOurs(
            "the folder of the upsert states can be written by other users",
            detail=root,
            hint="remove it, or give the executors another TMPDIR",
        )
    name = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    for entry in os.scandir(root):
        # A server that was taken over may still run; it then reads its states again.
        if entry.name.startswith(f"{name}-") and entry.name != f"{name}-{life}":
            shutil.rmtree(entry.path, ignore_errors=True)
    folder = os.path.join(root, f"{name}-{life}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder
