"""Metrics of sinks for /metrics: updates written, lag, and sinks that are stalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.ingest.status import RunState
from tidemill.sinks.service import Sinks


class SinksCollector(Collector):
    """Reads the numbers at each scrape. `now` is the time in milliseconds."""

    def __init__(self, sinks: Sinks, now: Callable[[], int]) -> None:
        self._sinks = sinks
        self._now = now

    def collect(self) -> Iterator[Metric]:
        labels = ["sink", "id"]
        messages = CounterMetricFamily("tidemill_sink_messages", "Messages written.", labels=labels)
        sent = CounterMetricFamily("tidemill_sink_bytes", "Bytes written.", labels=labels)
        updates = CounterMetricFamily(
            "tidemill_sink_updates", "Updates written, repeats included.", labels=labels
        )
        flying = GaugeMetricFamily(
            "tidemill_sink_in_flight_bytes", "Bytes that are not acknowledged yet.", labels=labels
        )
        lag = GaugeMetricFamily(
            "tidemill_sink_lag_seconds", "How far what is written is behind the clock.", labels=labels
        )
        stalled = GaugeMetricFamily(
            "tidemill_sink_stalled", "1 when the last attempt to go on failed.", labels=labels
        )
        now = self._now()
        for item, status, written, frontier in self._sinks.all():
            of = [item.name, item.id]
            messages.add_metric(of, written.messages)
            sent.add_metric(of, written.bytes)
            updates.add_metric(of, written.updates)
            flying.add_metric(of, written.in_flight)
            stalled.add_metric(of, status.state is RunState.STALLED)
            if frontier:
                lag.add_metric(of, max(0, now - frontier + 1) / 1000)
        yield from (messages, sent, updates, flying, lag, stalled)
