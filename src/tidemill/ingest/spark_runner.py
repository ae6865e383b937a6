"""Execution of units as Spark jobs.

One job of one stage runs all units that one task reads whole, and plain units even if they are cut. A keyed
unit that several tasks read needs a second stage, behind a shuffle by key bucket. A unit with a CDCv2 stream
needs a third, after the verdict over all of it. Tasks write parts and return facts, small pickled values;
rows never pass through the driver. A task that is retried or run twice writes other files; the driver
receives one set of them.
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tidemill.errors import QueryCanceled, TidemillError
from tidemill.ingest import keyed, task
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.recovery.shares import Carried as Carry
from tidemill.ingest.recovery.shares import look_at, release_from, settle_unit
from tidemill.ingest.recovery.values import Tallied
from tidemill.ingest.runner import JobFailed
from tidemill.ingest.state import shared
from tidemill.ingest.task_packing import Share, are_whole, shares
from tidemill.ingest.unit import Unit, UnitFacts
from tidemill.ingest.worker_folder import worker_folder
from tidemill.query.job import Job
from tidemill.query.settings import SettingPlace
from tidemill.query.spark import SparkHost

# How long a job waits for executors if all are gone. Dead ones are replaced within some seconds; after that
# the sources' statuses should show the reason.
DESERTED_SECONDS = 10.0


class SparkRunner:
    """`runner.Runner` on the server's Spark session. Thread-safe: jobs of several threads run
    concurrently."""

    def __init__(self, host: SparkHost, state_folder: str) -> None:
        """`state_folder` is where workers on this machine keep upsert states. Workers on other machines
        choose their own folder for the life of this runner."""
        self._host = host
        self._folder = state_folder if host.place is not SettingPlace.REMOTE else None
        self._life = uuid.uuid4().hex
        # The collections whose states on disk were compared with them (`StateStore.rewind`).
        self._known: set[str] = set()

    @property
    def ready(self) -> bool:
        return self._host.ready

    @property
    def cores(self) -> int:
        return self._host.cores

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        job = Job(self._host, f"tick: {len(units)} sources", pool=lane)
        ended = threading.Event()
        late = threading.Thread(target=self._watch, args=(job, ended, seconds), daemon=True)
        late.start()
        try:
            return self._run(units, job)
        except QueryCanceled:
            missing = self._host.deserted
            if missing:
                raise JobFailed(
                    "no executor of Spark is there",
                    detail=f"There has been none for {missing:.0f} s.",
                    hint="It goes on by itself when the cluster has some.",
                ) from None
            raise JobFailed(f"the job did not end within {seconds:g} s") from None
        except TidemillError as e:
            raise JobFailed(f"the job failed: {e.primary}", detail=e.detail, hint=e.hint) from e
        finally:
            ended.set()

    def _watch(self, job: Job, ended: threading.Event, seconds: float) -> None:
        """Cancel the job when its time is over, or if no executor is available."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._host.deserted < DESERTED_SECONDS:
            if ended.wait(min(left, DESERTED_SECONDS)):
                return
        job.cancel()

    def _run(self, units: Sequence[Unit], job: Job) -> list[UnitFacts]:
        facts = [UnitFacts() for _ in units]
        cores = self.cores
        self._rewind(units)
        # A task that does a whole unit needs all information about it.
        packed = units if are_whole(units) else [_light(unit) for unit in units]
        payloads = [_pack(packed, share) for share in shares(units, cores)]
        with job.running() as session:
            tasks = session.sparkContext.parallelize(payloads, len(payloads))
            if are_whole(units) or not any(unit.keyed for unit in units):
                found = tasks.mapPartitions(partial(_ingest, self._folder, self._life)).collect()
            else:
                ways = min(units[0].shares, BUCKETS)
                parted = tasks.mapPartitions(partial(_part, ways)).partitionBy(ways, itself)
                if units[0].recovers:
                    return [in_two_steps(units[0], parted, ways, self._folder, self._life)]
                apply = partial(_apply, _without_pieces(units), ways, self._folder, self._life)
                found = parted.mapPartitionsWithIndex(apply).collect()
            for index, share in found:
                facts[index].add(share)
        return facts

    def _rewind(self, units: Sequence[Unit]) -> None:
        """Before the first unit of a collection in this process."""
        if self._folder is None:
            return
        for target in (target for unit in units for target in unit.targets if target is not None):
            if target.upsert is not None and target.shard not in self._known:
                shared(self._folder).rewind(target.shard, target.upsert.upper)
                self._known.add(target.shard)


def in_two_steps(unit: Unit, parted: Any, ways: int, folder: str | None, life: str) -> UnitFacts:
    """A unit with a CDCv2 stream, from its slices by the receiving task (`Carried`). The driver computes the
    verdict over the tasks' results, and the tasks then release. Meanwhile Spark keeps the tasks' data, and
    recomputes lost data from the shuffle."""
    step = partial(_apply, _without_pieces([unit]), ways, folder, life)
    looked = parted.mapPartitionsWithIndex(step).persist(_kept())
    facts = UnitFacts()
    try:
        for _, share in looked.filter(_is_facts).collect():
            facts.add(share)
        if facts.failure is None:
            settle_unit(unit, facts)
        if facts.failure is None:
            settled = {index: replace(s, tallied=Tallied()) for index, s in facts.settled.items()}
            packed = pickle.dumps((_light(unit), settled))
            step = partial(_release, packed, ways, folder, life)
            for share in looked.mapPartitionsWithIndex(step).collect():
                facts.add(share)
    finally:
        looked.unpersist()
    return facts


def _pack(units: Sequence[Unit], share: Sequence[Share]) -> bytes:
    """The units of one task, each with its own pieces. Pickled here, once, because Spark would choose its own
    batches."""
    return pickle.dumps([(index, replace(units[index], pieces=pieces)) for index, pieces in share])


def _without_pieces(units: Sequence[Unit]) -> bytes:
    """The information that the second stage needs; its records arrive through the shuffle."""
    return pickle.dumps([_light(unit) for unit in units])


def _light(unit: Unit) -> Unit:
    """Without the parts that only the driver, or only a reader, needs."""
    targets = [
        replace(t, recover=replace(t.recover, tallied=Tallied())) if t is not None and t.recover else t
        for t in unit.targets
    ]
    return replace(unit, pieces=(), targets=tuple(targets))


def _kept() -> Any:
    """Kept on disk, because it may be large and is read only once."""
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY


def _ingest(folder: str | None, life: str, payloads: Iterator[bytes]) -> Iterator[tuple[int, UnitFacts]]:
    """For units that need only one stage: records need not meet by key, or one task has all records of a
    unit."""
    for payload in payloads:
        units: list[tuple[int, Unit]] = pickle.loads(payload)
        for index, unit in units:
            keyed.discard_states(unit, _state_folder(unit, folder, life))
            if unit.keyed:
                yield index, keyed.run_here(unit, _state_folder(unit, folder, life))
            else:
                yield index, task.ingest(unit, unit.pieces)


def _state_folder(unit: Unit, folder: str | None, life: str) -> str:
    return worker_folder(unit.blobs.url, life) if folder is None else folder


# The values in the shuffle: (receiving task, (unit, slice or facts)).
Carried = tuple[int, tuple[int, keyed.Slice | UnitFacts]]


def _part(ways: int, payloads: Iterator[bytes]) -> Iterator[Carried]:
    for payload in payloads:
        units: list[tuple[int, Unit]] = pickle.loads(payload)
        for index, unit in units:
            for item in keyed.sent(unit, unit.pieces):
                if not isinstance(item, UnitFacts):
                    yield item[1] % ways, (index, item)
                    continue
                yield 0, (index, item)
                if item.failure is not None or item.changes:
                    # Every task must know, because nothing of the unit may be applied.
                    for way in range(1, ways):
                        yield way, (index, UnitFacts(failure=item.failure, changes=item.changes))


def _apply(
    packed: bytes, ways: int, folder: str | None, life: str, way: int, items: Iterator[Carried]
) -> Iterator[tuple[int, UnitFacts | Carry]]:
    units: list[Unit] = pickle.loads(packed)
    slices: list[tuple[int, keyed.Slice]] = []
    known = [UnitFacts() for _ in units]
    for _, (index, item) in items:
        if isinstance(item, UnitFacts):
            yield index, item
            known[index].add(item)
        else:
            slices.append((index, item))
    by_unit = keyed.grouped(slices)
    for index, unit in enumerate(units):
        if known[index].failure is not None or not unit.stands(known[index]):
            continue
        own = _state_folder(unit, folder, life)
        if unit.upserts:
            yield index, keyed.apply_buckets(unit, way, ways, by_unit.get(index, {}), own)
        if unit.recovers:
            buckets = keyed.buckets_of(way, ways)
            facts, carried = look_at(unit, buckets, by_unit.get(index, {}), own)
            yield index, facts
            yield index, carried


def _is_facts(item: tuple[int, UnitFacts | Carry]) -> bool:
    return isinstance(item[1], UnitFacts)


def _release(
    packed: bytes, ways: int, folder: str | None, life: str, way: int, items: Iterator[tuple[int, Any]]
) -> Iterator[UnitFacts]:
    unit, settled = pickle.loads(packed)
    carried: Carry = {}
    for _, item in items:
        if not isinstance(item, UnitFacts):
            carried.update(item)
    own = _state_folder(unit, folder, life)
    yield release_from(unit, keyed.buckets_of(way, ways), settled, carried, own)


def itself(way: int) -> int:
    return way
