"""Metrics of Spark's work on shards for /metrics: the sources' ticks, their lag and the records read; and the
compaction of large shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.ingest.compaction import SparkCompactor
from tidemill.ingest.service import Ingestion
from tidemill.ingest.status import BUCKETS, PHASES, RunState, Statistics

_COUNTERS: list[tuple[str, str, Callable[[Statistics], int]]] = [
    ("messages_received", "Records that were read from the upstream.", lambda s: s.messages_received),
    ("bytes_received", "Bytes that were read from the upstream.", lambda s: s.bytes_received),
    ("updates_committed", "Updates that were committed.", lambda s: s.updates_committed),
    ("ticks", "Ticks that had something to read.", lambda s: s.ticks),
    ("ticks_skipped", "Boundaries at which the source was still busy.", lambda s: s.ticks_skipped),
    ("jobs_failed", "Attempts that failed.", lambda s: s.jobs_failed),
    ("state_hits", "Buckets of the upsert state that were at hand.", lambda s: s.state_hits),
    ("state_misses", "Buckets that had to be read from the collection.", lambda s: s.state_misses),
]


class IngestCollector(Collector):
    """Reads the numbers at each scrape."""

    def __init__(self, ingestion: Ingestion, compactor: SparkCompactor) -> None:
        self._ingestion = ingestion
        self._compactor = compactor

    def collect(self) -> Iterator[Metric]:
        sources = self._ingestion.all()
        now = self._ingestion.now()
        ticks = HistogramMetricFamily(
            "tidemill_tick_seconds",
            "Ticks by phase; visible is from the durable binding to the committed data.",
            labels=["source", "id", "phase"],
        )
        lag = GaugeMetricFamily(
            "tidemill_source_lag_seconds",
            "How far what can be read is behind the clock.",
            labels=["source", "id"],
        )
        behind = GaugeMetricFamily(
            "tidemill_source_records_behind",
            "Records upstream that are not committed.",
            labels=["source", "id"],
        )
        stalled = GaugeMetricFamily(
            "tidemill_source_stalled", "1 when the last attempt failed.", labels=["source", "id"]
        )
        files = GaugeMetricFamily(
            "tidemill_source_files", "Live parts of the source's collections.", labels=["source", "id"]
        )
        for item, report, machine in sources:
            for phase in PHASES:
                counts, total = report.histogram.counts[phase], 0
                buckets: list[tuple[str, float]] = []
                for edge, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                    total += count
                    buckets.append((edge, total))
                ticks.add_metric([item.name, item.id, phase], buckets, report.histogram.sums[phase])
            stalled.add_metric([item.name, item.id], report.status.state is RunState.STALLED)
            if machine is None:
                continue
            if machine.hydrated:
                lag.add_metric([item.name, item.id], max(0, now - machine.readable + 1) / 1000)
            if machine.behind is not None:
                behind.add_metric([item.name, item.id], machine.behind)
            files.add_metric([item.name, item.id], sum(len(f.rows.parts) for f in machine.feeds))
        yield from (ticks, lag, behind, stalled, files)
        for name, text, value in _COUNTERS:
            family = CounterMetricFamily(f"tidemill_source_{name}", text, labels=["source", "id"])
            for item, report, _ in sources:
                family.add_metric([item.name, item.id], value(report.statistics))
            yield family
        yield from self._compaction()

    def _compaction(self) -> Iterator[Metric]:
        counts = self._compactor.counts
        yield GaugeMetricFamily(
            "tidemill_compaction_running",
            "1 while a large shard is compacted on Spark.",
            self._compactor.running,
        )
        jobs = CounterMetricFamily(
            "tidemill_compactions", "Compactions of large shards on Spark.", labels=["outcome"]
        )
        for outcome, count in (("done", counts.done), ("failed", counts.failed), ("lost", counts.lost)):
            jobs.add_metric([outcome], count)
        rows = CounterMetricFamily(
            "tidemill_compaction_updates", "Updates that those read and wrote.", labels=["direction"]
        )
        rows.add_metric(["read"], counts.rows_read)
        rows.add_metric(["written"], counts.rows_written)
        yield jobs
        yield rows
        yield CounterMetricFamily("tidemill_compaction_seconds", "How long they took.", counts.seconds)
