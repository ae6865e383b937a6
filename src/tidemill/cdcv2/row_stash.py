"""The updates at unreported times, as Python values: to release each once, and to know repetitions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from tidemill.cdcv2.times import Time
from tidemill.errors import LimitExceeded

MAX_STASHED = 5_000_000
MAX_SPILLED = 50_000_000


class RowStash:
    def __init__(self, max_stashed: int, max_spilled: int, folder: str | None) -> None:
        self._times: dict[Time, dict[Hashable, tuple[int, str]]] = {}
        self._count = 0
        self._max_stashed = max_stashed

    def __len__(self) -> int:
        return self._count

    def add(self, data: Hashable, time: Time, diff: int, origin: str) -> tuple[int, str] | None:
        rows = self._times.setdefault(time, {})
        known = rows.get(data)
        if known is None:
            rows[data] = (diff, origin)
            self._count += 1
        return known

    def take(self, time: Time) -> Iterable[tuple[Hashable, int]]:
        rows = self._times.pop(time, {})
        self._count -= len(rows)
        return [(data, diff) for data, (diff, _) in rows.items()]

    def peek(self, time: Time) -> Iterable[tuple[Hashable, int]]:
        return [(data, diff) for data, (diff, _) in self._times.get(time, {}).items()]

    def check_limits(self) -> None:
        if self._count > self._max_stashed:
            raise LimitExceeded(f"more than {self._max_stashed} stashed updates")
