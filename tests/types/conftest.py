"""Fixtures: a real PostgreSQL, the judge of what goes over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.embedded import postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a server of its own, at UTC, that is gone after the run."""
    with postgres_server() as uri, psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET bytea_output = 'hex'")
        yield connection
