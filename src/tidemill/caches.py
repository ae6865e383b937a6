"""The switch of the caches between statements: plans, catalog rows, encodings, compiled patterns.

A cache must not change an answer. Tests start one server with `TIDEMILL_TEST_CACHES=off` in its environment
and one without, and compare their replies message by message. It is no setting for users: a server without
caches is slow and nothing else. `docs/architecture.md` lists the caches.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

# Read once, when the process starts.
ENABLED = os.environ.get("TIDEMILL_TEST_CACHES") != "off"


def cached(maxsize: int) -> Callable[[F], F]:
    """As `functools.lru_cache`, for functions whose result follows from their arguments alone."""

    def decorate(function: F) -> F:
        return functools.lru_cache(maxsize)(function) if ENABLED else function  # pyright: ignore[reportReturnType]

    return decorate
