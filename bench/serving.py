"""A real server for a benchmark: started as a process, ready, ended at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.server import ServerProcess


@contextmanager
def serving(*args: str, ready: bool = True) -> Generator[ServerProcess]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        server = ServerProcess(Path(folder) / "data", args=args)
        server.warm = True
        try:
            server.start(wait_ready=ready)
            yield server
            server.terminate()
        finally:
            # Whatever is left of it, also when it did not get ready.
            server.close()
