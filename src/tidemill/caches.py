"""The switch for the caches that outlive a statement: plans, catalog rows, encodings, compiled patterns.

A cache must not change a result. Tests start one server with `TIDEMILL_TEST_CACHES=off` and one without, and
compare their replies message by message. It is not a setting for users, because a server without caches is
only slower. `docs/architecture.md` lists the caches.
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
    """Like `functools.lru_cache`, for functions whose result depends only on their arguments."""

    def decorate(function: F) -> F:
        return functools.lru_cache(maxsize)(function) if ENABLED else function  # pyright: ignore[reportReturnType]

    return decorate
