"""Metrics of durable subscriptions for /metrics: lag, what is kept for their readers, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.subscriptions.service import DurableSubscriptions


class DurableCollector(Collector):
    """Reads the numbers at each scrape. `now` is the time in milliseconds."""

    def __init__(self, service: DurableSubscriptions, now: Callable[[], int]) -> None:
        self._service = service
        self._now = now

    def collect(self) -> Iterator[Metric]:
        labels = ["subscription", "id", "share"]
        lag = GaugeMetricFamily(
            "tidemill_durable_subscription_lag_seconds",
            "How far the acknowledged position is behind the clock.",
            labels=labels,
        )
        kept = GaugeMetricFamily(
            "tidemill_durable_subscription_unacknowledged_bytes",
            "Bytes of the files with changes that are not acknowledged.",
            labels=labels,
        )
        read = GaugeMetricFamily(
            "tidemill_durable_subscription_reading", "1 when a session reads it.", labels=labels
        )
        lost = GaugeMetricFamily(
            "tidemill_durable_subscription_lost", "1 when it has lost its position.", labels=labels
        )
        now = self._now()
        for state in self._service.states():
            item = state.place.item
            of = [item.name, item.id, str(state.place.share)]
            lag.add_metric(of, max(0, now - state.position.frontier + 1) / 1000)
            kept.add_metric(of, state.kept.bytes)
            read.add_metric(of, state.read)
            lost.add_metric(of, state.position.lost is not None)
        yield from (lag, kept, read, lost)
        yield CounterMetricFamily(
            "tidemill_durable_subscription_acknowledgements",
            "Acknowledgements that moved a position.",
            self._service.positions.acknowledgements,
        )
        yield CounterMetricFamily(
            "tidemill_durable_subscription_commits",
            "Commits that these took.",
            self._service.positions.commits,
        )
