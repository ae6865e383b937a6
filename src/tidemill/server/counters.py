"""Counters updated with every statement and every packet: plain numbers, exported as Prometheus counters.

Prometheus' own objects take a lock and five calls per addition, a tenth of the cost of a small statement.
Only the thread of the event loop updates these counters, so they need no lock. `collect` may run on
another thread. Used through `metrics`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class StatementCounter(Collector):
    """A counter with a fixed name. `value` only increases."""

    def __init__(self, name: str, help_: str) -> None:
        self._name = name
        self._help = help_
        self.value = 0
        REGISTRY.register(self)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._help, value=self.value)


class LatencyCounter:
    """The latency histogram of one verb."""

    __slots__ = ("_bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        # One more than there are bounds: what took longer than all.
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds


class Timings(Collector):
    """Per verb, a counter and a histogram with the same total. The set of verbs is small."""

    def __init__(self, counter: tuple[str, str], histogram: tuple[str, str], bounds: Sequence[float]) -> None:
        self._counter = counter
        self._histogram = histogram
        self._bounds = tuple(bounds)
        self._by_verb: dict[str, LatencyCounter] = {}
        REGISTRY.register(self)

    def of(self, verb: str) -> LatencyCounter:
        found = self._by_verb.get(verb)
        if found is None:
            found = self._by_verb[verb] = LatencyCounter(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(*self._counter, labels=["verb"])
        histogram = HistogramMetricFamily(*self._histogram, labels=["verb"])
        edges = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for verb, timing in list(self._by_verb.items()):
            seen = 0
            buckets: list[tuple[str, float]] = []
            for edge, count in zip(edges, list(timing.counts), strict=True):
                seen += count
                buckets.append((edge, seen))
            counter.add_metric([verb], seen)
            histogram.add_metric([verb], buckets, timing.seconds)
        yield counter
        yield histogram
