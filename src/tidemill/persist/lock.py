"""LOCK file of a data directory in a local folder: shows at once whether its holder is alive.

The lock is not durable state: the kernel releases it when the process ends. The content of the file is for
people. The epochs of the shards decide which server may write, never this file.
"""

from __future__ import annotations

import fcntl
import os
import time

from tidemill.errors import Unavailable
from tidemill.persist.blob import Blobs
from tidemill.persist.local import LocalBlobs

_POLL_SECONDS = 0.05
# Mode of a data directory that is created here: others have no access. An existing one keeps its mode.
FOLDER_MODE = 0o750


class DirectoryLock:
    """An flock on `<folder>/LOCK`. For stores that are not folders it does nothing and is never held."""

    def __init__(self, blobs: Blobs) -> None:
        self._path = os.path.join(blobs.root, "LOCK") if isinstance(blobs, LocalBlobs) else None
        self._descriptor: int | None = None

    @property
    def supported(self) -> bool:
        return self._path is not None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, timeout: float = 0.0) -> bool:
        """True when it is ours. Waits up to `timeout` seconds for another holder to end."""
        if self._path is None or self._descriptor is not None:
            return True
        try:
            os.makedirs(os.path.dirname(self._path), mode=FOLDER_MODE, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise Unavailable(
                f'cannot open the data directory "{os.path.dirname(self._path)}"',
                detail=os.strerror(e.errno or 0),
                hint="It must be a folder that this user may write to.",
                sqlstate="58030",
            ) from e
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(_POLL_SECONDS)
                continue
            self._descriptor = descriptor
            return True

    def taken(self) -> bool:
        """Whether a process holds the lock; creates nothing. The check takes the lock shared for a moment,
        and a server that starts at that moment is refused."""
        if self._path is None:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
