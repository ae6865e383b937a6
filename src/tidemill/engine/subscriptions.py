"""The subscriptions of a server: for mz_subscriptions, for the metrics, and for whoever stops it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.subscribe.follower import Follower
from tidemill.subscribe.spec import Spec
from tidemill.subscribe.stream import Bounds, Subscription
from tidemill.subscribe.tail import FellBehind, Tail

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession


@dataclass(frozen=True, slots=True)
class Live:
    """A subscription that is being read."""

    id: int
    session: int
    relation: str
    began: datetime
    stream: Subscription


class Subscriptions:
    """On the event loop; counts may be read from any thread."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._ids = itertools.count(1)
        self.live: dict[int, Live] = {}
        # Since the server runs: subscriptions by kind of output, and those that fell behind.
        self.opened: Counter[str] = Counter()
        self.fell_behind = 0
        # Of those that have ended.
        self.rows = 0
        self.bytes = 0

    def open(
        self,
        session: EngineSession,
        spec: Spec,
        bounds: Bounds,
        snapshot: AsyncIterator[pa.RecordBatch] | None,
        own: Follower,
        tail: Callable[[], Tail],
        relation: str,
    ) -> Subscription:
        number = next(self._ids)
        stream = Subscription(
            spec, bounds, snapshot, own, tail, self._pool, on_close=lambda error: self._closed(number, error)
        )
        self.opened[spec.output.value] += 1
        self.live[number] = Live(number, session.process_id, relation, datetime.now(UTC), stream)
        return stream

    def _closed(self, number: int, error: BaseException | None) -> None:
        live = self.live.pop(number, None)
        if live is not None:
            self.rows += live.stream.figures.rows
            self.bytes += live.stream.figures.bytes
            self.fell_behind += isinstance(error, FellBehind)
