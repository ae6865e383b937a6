"""What tests ask of a server, and how they wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

SECONDS = 180.0


def run(connection: psycopg.Connection[Any], sql: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql.encode())
    return [] if cursor.description is None else cursor.fetchall()


def until(ask: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, f"{found!r} instead of {wanted!r}"
        time.sleep(0.2)
