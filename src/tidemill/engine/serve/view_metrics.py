"""Metrics of materialized views for /metrics: lag, views that are stalled, and what their queries keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.arrangements import Arrangements
from tidemill.ingest.status import RunState
from tidemill.views.service import Views


class ViewsCollector(Collector):
    """Reads the numbers at each scrape. `now` is the time in milliseconds."""

    def __init__(self, views: Views, arrangements: Arrangements, now: Callable[[], int]) -> None:
        self._views = views
        self._arrangements = arrangements
        self._now = now

    def collect(self) -> Iterator[Metric]:
        labels = ["view", "id"]
        lag = GaugeMetricFamily(
            "tidemill_view_lag_seconds", "How far what can be read is behind the clock.", labels=labels
        )
        stalled = GaugeMetricFamily(
            "tidemill_view_stalled", "1 when the last attempt to go on failed.", labels=labels
        )
        failed = GaugeMetricFamily(
            "tidemill_view_failed", "1 while the view holds an error in the place of rows.", labels=labels
        )
        files = GaugeMetricFamily("tidemill_view_files", "Live parts of the view's shard.", labels=labels)
        now = self._now()
        for item, status, machine in self._views.all():
            of = [item.name, item.id]
            stalled.add_metric(of, status.state is RunState.STALLED)
            failed.add_metric(of, status.state is RunState.FAILED)
            if machine is not None and machine.hydrated:
                lag.add_metric(of, max(0, now - machine.readable + 1) / 1000)
                files.add_metric(of, len(machine.shard.parts))
        built = CounterMetricFamily(
            "tidemill_arrangements_built",
            "Arrangements that were computed from their collections, rather than found on disk.",
            self._arrangements.built,
        )
        yield from (lag, stalled, failed, files, built)
