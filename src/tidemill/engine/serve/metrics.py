"""Metrics of the engine for /metrics: sessions, queries on Spark, and the counters of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from tidemill.query.metrics import QueryMetrics


class EngineCollector(Collector):
    """Reads the numbers at each scrape. Registered while an engine is open."""

    def __init__(
        self, queries: QueryMetrics, sessions: Callable[[], int], others: Sequence[Collector]
    ) -> None:
        self._queries = queries
        self._sessions = sessions
        self._others = others

    def collect(self) -> Iterator[Metric]:
        q = self._queries
        yield GaugeMetricFamily("tidemill_sessions", "Sessions that are logged in.", self._sessions())
        yield GaugeMetricFamily("tidemill_queries_active", "Queries on Spark now.", q.active)
        yield CounterMetricFamily("tidemill_queries", "Queries that were given to Spark.", q.queries)
        yield CounterMetricFamily("tidemill_queries_cancelled", "Queries that were cancelled.", q.cancelled)
        yield CounterMetricFamily("tidemill_queries_failed", "Queries that failed in Spark.", q.failed)
        yield CounterMetricFamily("tidemill_spark_jobs", "Spark jobs that queries ran.", q.jobs)
        yield CounterMetricFamily("tidemill_query_rows", "Rows that Spark answered.", q.rows)
        yield CounterMetricFamily("tidemill_query_bytes", "Bytes that Spark answered.", q.bytes)
        for other in self._others:
            yield from other.collect()
