"""What statements about external systems use to reach them. One per engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.catalog.items import Source
from tidemill.catalog.secrets import SecretStore
from tidemill.sources.offsets import Offsets


@dataclass(frozen=True, slots=True)
class External:
    """`files_root` is the folder under which files are read and written; `now` returns the clock's time.
    `waiting`: the id of the transaction that the tables of a transaction topic wait for. `wait_bound` waits
    for seconds until everything before a position of a source has a time, and returns whether it has. `read`
    differs from before if the source has read something meanwhile."""

    secrets: SecretStore
    files_root: str
    now: Callable[[], int]
    waiting: Callable[[Source], str | None]
    wait_bound: Callable[[Source, Offsets, float], bool]
    read: Callable[[Source], object]
