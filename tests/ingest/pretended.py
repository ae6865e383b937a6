"""Spark's RDDs as lists: for tests of what is carried between tasks, without Spark. Everything is pickled on
its way, as Spark would."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from tidemill.ingest import spark_runner as steps
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.task_packing import are_whole, shares
from tidemill.ingest.unit import Unit, UnitFacts


def carried(items: Iterator[Any]) -> list[Any]:
    return pickle.loads(pickle.dumps(list(items)))


class PretendedRdd:
    def __init__(self, partitions: Sequence[Sequence[Any]]) -> None:
        self._partitions = partitions

    def mapPartitions(self, step: Callable[[Iterator[Any]], Iterator[Any]]) -> PretendedRdd:
        return PretendedRdd([carried(step(iter(p))) for p in self._partitions])

    def mapPartitionsWithIndex(self, step: Callable[[int, Iterator[Any]], Iterator[Any]]) -> PretendedRdd:
        return PretendedRdd([carried(step(n, iter(p))) for n, p in enumerate(self._partitions)])

    def partitionBy(self, ways: int, which: Callable[[int], int]) -> PretendedRdd:
        found: list[list[Any]] = [[] for _ in range(ways)]
        for partition in self._partitions:
            for key, value in partition:
                found[which(key)].append((key, value))
        return PretendedRdd(found)

    def persist(self, level: object) -> PretendedRdd:
        return self

    def unpersist(self) -> None: ...

    def filter(self, keep: Callable[[Any], bool]) -> PretendedRdd:
        return PretendedRdd([[item for item in p if keep(item)] for p in self._partitions])

    def collect(self) -> list[Any]:
        return [item for partition in self._partitions for item in partition]


class PretendedRunner:
    """`runner.Runner`: the steps of `SparkRunner`, one after the other."""

    ready = True
    cores = 2

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        (unit,) = units
        packed = units if are_whole(units) else [steps._light(unit)]  # pyright: ignore[reportPrivateUsage]
        payloads = [[steps._pack(packed, s)] for s in shares(units, self.cores)]  # pyright: ignore
        tasks = PretendedRdd(payloads)
        if are_whole(units):
            facts = UnitFacts()
            for _, share in tasks.mapPartitions(partial(steps._ingest, self._folder, "life")).collect():  # pyright: ignore
                facts.add(share)
            return [facts]
        ways = min(unit.shares, BUCKETS)
        parted = tasks.mapPartitions(partial(steps._part, ways)).partitionBy(ways, steps.itself)  # pyright: ignore
        return [steps.in_two_steps(unit, parted, ways, self._folder, "life")]


class PretendedFrame:
    """A DataFrame as `MicroBatches` sees it."""

    def __init__(self, rows: Sequence[dict[str, Any]], slices: int) -> None:
        self.columns = list(rows[0])
        records = [SimpleNamespace(asDict=partial(dict, row)) for row in rows]
        self.rdd = PretendedRdd([records[n::slices] for n in range(slices)])

    def select(self, *columns: str) -> PretendedFrame:
        return self


class PretendedSession:
    sparkContext = SimpleNamespace(defaultParallelism=2, master="local[2]")
