"""What statements about external systems use to reach them. One per engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.catalog.secrets import SecretStore


@dataclass(frozen=True, slots=True)
class External:
    """`files_root` is the folder under which files are read and written; `now` returns the clock's time."""

    secrets: SecretStore
    files_root: str
    now: Callable[[], int]
