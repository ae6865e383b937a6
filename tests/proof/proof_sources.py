"""What the shards of sources say, read from the files alone, and what they must say.

The judge knows nothing of machines and jobs: it reads the catalog, the bindings and the data as Delta tables
of updates, asks the sources themselves which rows a range has, and compares.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidemill.catalog import codec
from tidemill.catalog.items import Source as SourceItem
from tidemill.catalog.items import SourceTable
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.log import ShardMissing
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import cumulated, retained
from tidemill.sources.contract import TOMBSTONE_COLUMN, Gauge, OutputDefinition, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.offsets import Offsets
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

Row = tuple[Any, ...]


class Wrong(AssertionError):
    """A promise of the tick was broken."""


# The updates of a binding, from a frontier to the next one; called in their order.
Expected = Callable[[Offsets, Offsets], Counter[Row]]


@dataclass(frozen=True)
class Told:
    """What a source must have: by shard, what is expected there."""

    gauge: Gauge
    start: Offsets
    collections: Sequence[tuple[str, Expected]]


@dataclass
class Judge:
    """Over the lives of one data directory."""

    data_dir: str
    # Of the store, where the directory is on one.
    options: dict[str, str] = field(default_factory=dict[str, str])
    # (shard, time) -> the updates there, once the time was closed: they never change.
    closed: dict[tuple[str, int], Counter[Row]] = field(default_factory=dict[tuple[str, int], Counter[Row]])
    # remap shard -> the bindings that were seen: they never change either.
    bound: dict[str, list[tuple[int, Offsets]]] = field(default_factory=dict[str, list[tuple[int, Offsets]]])

    def check(self) -> dict[str, int]:
        """Compare everything; returns how far each source is in its collections, as a sum."""
        blobs = open_blobs(self.data_dir, self.options)
        found: dict[str, int] = {}
        sources, tables = items(blobs)
        for item in sources:
            told = self.told(blobs, item, [t for t in tables if t.source == item.id])
            bindings = self._bindings(blobs, item, told.gauge)
            done = Offsets()
            for shard_id, expected in told.collections:
                done = max(done, self._compare(blobs, shard_id, told.start, expected, bindings), key=_size)
            found[item.name] = _size(done)
        return found

    def told(self, blobs: Blobs, item: SourceItem, tables: list[SourceTable]) -> Told:
        """What the source itself says."""
        source = open_source(json.loads(item.definition))
        outputs = {o.name: n for n, o in enumerate(source.outputs)}
        targets = [] if item.shard is None else [(item.shard, 0)]
        targets += [(t.shard, outputs[t.output]) for t in tables]
        collections: list[tuple[str, Expected]] = [
            (shard, partial(_expected, source, output, dict[Row, Row]())) for shard, output in targets
        ]
        return Told(source.gauge, source.start, collections)

    def _bindings(self, blobs: Blobs, item: SourceItem, gauge: Gauge) -> list[tuple[int, Offsets]]:
        shard = Shard.open(blobs, item.remap_shard, epoch=None)
        bindings = cumulated(retained(shard, gauge))
        for (_, earlier), (_, later) in itertools.pairwise(bindings):
            if not earlier <= later:
                raise Wrong(f"the bindings of {item.name} go back from {earlier} to {later}")
        before = self.bound.get(item.remap_shard, [])
        # What since has passed may stand as one binding there: its sum stays.
        seen, now = ([b for b in known if b[0] > shard.since] for known in (before, bindings))
        passed_before, passed_now = (_at(known, shard.since) for known in (before, bindings))
        changed = now[: len(seen)] != seen or not passed_before <= passed_now
        if changed or (seen and passed_before != passed_now):
            raise Wrong(f"a binding of {item.name} has changed")
        self.bound[item.remap_shard] = bindings
        return bindings

    def _compare(
        self,
        blobs: Blobs,
        shard_id: str,
        lower: Offsets,
        expected: Expected,
        bindings: list[tuple[int, Offsets]],
    ) -> Offsets:
        """The frontier that the shard has; each time's updates are what is expected. Before `since` only
        their sum is: compaction may have moved some of them there."""
        shard = Shard.open(blobs, shard_id, epoch=None)
        there = _updates(shard)
        upper = shard.upper or 0
        done = Offsets()
        wanted: dict[int, Counter[Row]] = {}
        for time, frontier in bindings:
            if time >= upper:
                break
            wanted.setdefault(max(time, shard.since), Counter()).update(expected(lower, frontier))
            lower = done = frontier
        for time, counts in wanted.items():
            here, actual = _nonzero(counts), there.pop(time, Counter())
            if actual != here:
                wrong = f"{_shown(actual - here)} too many, {_shown(here - actual)} missing"
                raise Wrong(f"{shard_id} at {time}: {wrong}")
            if time > shard.since and self.closed.setdefault((shard_id, time), actual) != actual:
                raise Wrong(f"{shard_id} at {time} has changed")
        if there:
            raise Wrong(f"{shard_id} has updates at times without a binding: {sorted(there)[:3]}")
        return done


def _at(bindings: list[tuple[int, Offsets]], as_of: int) -> Offsets:
    """The frontier that a time includes."""
    return next((frontier for time, frontier in reversed(bindings) if time <= as_of), Offsets())


def items(blobs: Blobs) -> tuple[list[SourceItem], list[SourceTable]]:
    try:
        shard = Shard.open(blobs, "catalog", epoch=None)
    except ShardMissing:
        return [], []
    as_of = (shard.upper or 1) - 1
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        rows = snapshot.read()
    bodies = zip(rows.column("id").to_pylist(), rows.column("body").to_pylist(), strict=True)
    items = [codec.decode(i, body) for i, body in bodies if i[0] == "u"]
    return [i for i in items if isinstance(i, SourceItem)], [i for i in items if isinstance(i, SourceTable)]


def _updates(shard: Shard) -> dict[int, Counter[Row]]:
    """By time, those before `since` as at `since`; rows with the sum of their diffs, as they lie in the
    files."""
    found: dict[int, Counter[Row]] = {}
    as_of = max((shard.upper or 1) - 1, shard.since)
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        for part in snapshot.parts:
            table = snapshot.read_part(part)
            names = [n for n in table.schema.names if not n.startswith("mz_")]
            rows = zip(*(table.column(n).to_pylist() for n in names), strict=True)
            times, diffs = (table.column(n).to_pylist() for n in (TIME_COLUMN, DIFF_COLUMN))
            for row, time, diff in zip(rows, times, diffs, strict=True):
                found.setdefault(max(time, shard.since), Counter())[row] += diff
    return {time: counted for time, counts in found.items() if (counted := _nonzero(counts))}


def _nonzero(counts: Counter[Row]) -> Counter[Row]:
    return Counter({row: n for row, n in counts.items() if n})


def _expected(
    source: UpstreamSource, output: int, kept: dict[Row, Row], lower: Offsets, upper: Offsets
) -> Counter[Row]:
    """The updates of one binding. `kept` is what an upsert's keys have, and is brought forward."""
    described = source.outputs[output]
    width = len(described.desc.columns)
    counts: Counter[Row] = Counter()
    for piece in source.split(lower, upper, 1):
        for batch in source.reader().read(piece):
            if batch.output != output:
                continue
            columns = {
                n: c.to_pylist() for n, c in zip(batch.rows.schema.names, batch.rows.columns, strict=True)
            }
            rows = list(zip(*list(columns.values())[:width], strict=True))
            if described.key is None:
                for row, diff in zip(rows, columns.get(DIFF_COLUMN, [1] * len(rows)), strict=True):
                    counts[row] += diff
            else:
                _fold(rows, columns[TOMBSTONE_COLUMN], described, kept, counts)
    return _nonzero(counts)


def _fold(
    rows: list[Row], gone: list[bool], output: OutputDefinition, kept: dict[Row, Row], counts: Counter[Row]
) -> None:
    at = [output.desc.names.index(name) for name in output.key or ()]
    for row, deleted in zip(rows, gone, strict=True):
        key = tuple(row[i] for i in at)
        if key in kept:
            counts[kept.pop(key)] -= 1
        if not deleted:
            kept[key] = row
            counts[row] += 1


def _size(offsets: Offsets) -> int:
    return sum(value for _, value in offsets.items())


def _shown(counts: Counter[Row]) -> str:
    return f"{sum(counts.values())} ({list(counts.items())[:2]})"
