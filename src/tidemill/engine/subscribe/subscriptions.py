"""The running subscriptions of a server, for mz_subscriptions, for the metrics, and for the server's
shutdown."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.engine.relations.subscriptions import SubscriptionRow
from tidemill.errors import TidemillError
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.hub import Hub
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.subscribe.stream import Bounds, SubscriptionStream
from tidemill.subscribe.tail import Tail

# The number of small snapshots that are read at the same time. Each takes milliseconds. But each thread that
# has read one keeps some megabytes of memory for the next, and a thousand readers may start at once.
SNAPSHOT_THREADS = 4


@dataclass(frozen=True, slots=True)
class LiveSubscription:
    """A running subscription."""

    id: int
    session: int
    relation: str
    stream: SubscriptionStream


class Subscriptions(Collector):
    """Modified on the event loop; `table` and `collect` may be called on any thread."""

    def __init__(self, hub: Hub, pool: Executor, now: Callable[[], int]) -> None:
        """`hub` has the tails that subscriptions share; `now` returns the clock's time."""
        self.hub = hub
        self._pool = pool
        # For small snapshots.
        self.snapshots = ThreadPoolExecutor(SNAPSHOT_THREADS, thread_name_prefix="snapshot")
        self._now = now
        self._ids = itertools.count(1)
        self._live: dict[int, LiveSubscription] = {}
        # Since the server started: subscriptions by kind of output, and those that fell behind.
        self._opened: Counter[str] = Counter()
        self._fell_behind = 0
        # Of those that have ended.
        self._rows = 0
        self._bytes = 0

    def open(
        self,
        process_id: int,
        spec: Spec,
        bounds: Bounds,
        snapshot: AsyncIterator[pa.RecordBatch] | None,
        own: Follower,
        tail: Callable[[], Tail],
        relation: str,
        why: Callable[[TidemillError], TidemillError],
        buffer: int,
    ) -> SubscriptionStream:
        number = next(self._ids)
        stream = SubscriptionStream(
            spec,
            bounds,
            snapshot,
            own,
            tail,
            self._pool,
            buffer=buffer,
            on_behind=self._behind,
            on_close=lambda: self._closed(number),
            why=why,
        )
        self._opened[spec.output.value] += 1
        self._live[number] = LiveSubscription(number, process_id, relation, stream)
        return stream

    def close(self) -> None:
        """Called when the server stops."""
        self.snapshots.shutdown(wait=False, cancel_futures=True)

    def _behind(self) -> None:
        self._fell_behind += 1

    def _closed(self, number: int) -> None:
        live = self._live.pop(number, None)
        if live is not None:
            self._rows += live.stream.figures.rows
            self._bytes += live.stream.figures.bytes

    def table(self) -> list[SubscriptionRow]:
        """The running subscriptions."""
        now = self._now()
        # One step for the interpreter: the loop may add and remove items concurrently.
        return [
            SubscriptionRow(
                live.id,
                live.session,
                live.relation,
                live.stream.spec.output.value,
                live.stream.bounds.as_of,
                live.stream.figures.frontier,
                live.stream.figures.rows,
                live.stream.figures.bytes,
                max(0, now - live.stream.figures.frontier + 1),
            )
            for live in list(self._live.values())
        ]

    def collect(self) -> Iterator[Metric]:
        rows = self.table()
        opened = CounterMetricFamily(
            "tidemill_subscriptions", "SUBSCRIBE statements that began, by output.", labels=["output"]
        )
        active = GaugeMetricFamily(
            "tidemill_subscriptions_active", "Subscriptions that are being read.", labels=["output"]
        )
        kinds = Counter(row.output for row in rows)
        for output in OutputShape:
            opened.add_metric([output.value], self._opened[output.value])
            active.add_metric([output.value], kinds[output.value])
        yield opened
        yield active
        yield CounterMetricFamily(
            "tidemill_subscription_rows",
            "Rows that subscriptions were sent.",
            self._rows + sum(row.rows for row in rows),
        )
        yield CounterMetricFamily(
            "tidemill_subscription_bytes",
            "Bytes of these rows, in the form that the server holds them in.",
            self._bytes + sum(row.bytes for row in rows),
        )
        yield CounterMetricFamily(
            "tidemill_subscriptions_fell_behind",
            "Subscriptions whose client read too slowly.",
            self._fell_behind,
        )
        lag = GaugeMetricFamily(
            "tidemill_subscription_lag_seconds",
            "How far what a subscription was sent is behind the clock.",
            labels=["id", "relation"],
        )
        for row in rows:
            lag.add_metric([str(row.id), row.relation], row.lag / 1000)
        yield lag
