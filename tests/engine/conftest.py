"""A database of one's own on the shared server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess


@pytest.fixture
def home(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database of the test's own."""
    name = request.node.name
    with psycopg.connect(server.sql_dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        with psycopg.connect(f"{server.sql_dsn} dbname={name}", autocommit=True) as connection:
            yield connection
        admin.execute(f'DROP DATABASE "{name}" CASCADE'.encode())
