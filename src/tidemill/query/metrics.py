"""Counters of the query layer, read by the server's /metrics.

Plain numbers under a lock, independent of how they are shown.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class QueryMetrics:
    """All counts are since the host was made. `jobs` counts the Spark jobs started, `active` the queries that
    run now."""

    queries: int = 0
    jobs: int = 0
    rows: int = 0
    bytes: int = 0
    cancelled: int = 0
    failed: int = 0
    active: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(
        self,
        *,
        queries: int = 0,
        jobs: int = 0,
        rows: int = 0,
        bytes: int = 0,  # noqa: A002 - the field's name
        cancelled: int = 0,
        failed: int = 0,
        active: int = 0,
    ) -> None:
        with self._lock:
            self.queries += queries
            self.jobs += jobs
            self.rows += rows
            self.bytes += bytes
            self.cancelled += cancelled
            self.failed += failed
            self.active += active
