"""Fixtures: a database of one's own on the shared server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.server import ServerProcess


@pytest.fixture(scope="module")
def database(server: ServerProcess) -> Iterator[str]:
    """Its name; nobody else is in it."""
    name = f"proof_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def dsn(server: ServerProcess, database: str) -> str:
    return f"host=127.0.0.1 port={server.sql_port} user=materialize dbname={database} connect_timeout=60"


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table() -> str:
    """A name that no other test uses."""
    return f"t_{uuid.uuid4().hex[:12]}"
