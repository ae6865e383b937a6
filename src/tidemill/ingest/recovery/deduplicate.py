"""Deduplication: the task with all updates of some buckets drops repetitions, counts, and later releases.

Between `look` and `release` is the verdict over the whole unit (`verdict`). `keyed` calls both in one task,
for small units; the Spark runner calls them in two stages. There are no loops over rows, except over
contradictions, of which one per time is reported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.catalog.sidecars import DIFF, OFFSET, PARTITION, data_names, time_names
from tidemill.cdcv2 import problems
from tidemill.cdcv2.column_recovery import keys_of
from tidemill.cdcv2.column_stash import hash_updates
from tidemill.cdcv2.columns import UpdateColumns, distinct_times
from tidemill.cdcv2.times import Time
from tidemill.envelope.keys import KeyShape, first_of_each_key, rows_equal
from tidemill.envelope.upsert import as_updates
from tidemill.ingest.history import CollectionHistory
from tidemill.ingest.recovery.partition import components, gather, shape_of
from tidemill.ingest.recovery.values import FoundUpdates, Recover, Settled, beyond
from tidemill.ingest.state import BucketState, prepare, shared
from tidemill.ingest.task import PartWriter, stamped
from tidemill.ingest.unit import Unit, UnitFacts, UnitTarget
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

# Characters of a row that an error shows.
MAX_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Fresh:
    """New distinct updates of one bucket, in the order of their hashes."""

    rows: pa.RecordBatch
    hashes: np.ndarray


def states_of(
    unit: Unit, recover: Recover, buckets: Sequence[int], folder: str, facts: UnitFacts, most: int | None
) -> dict[int, BucketState]:
    """The stash at the unit's beginning, by bucket."""
    began = time.monotonic()
    history = CollectionHistory(unit.blobs, recover.stash)
    shape = shape_of(recover)
    prepared = prepare(shared(folder), recover.stash, shape, buckets, recover.upper, history, most)
    facts.hits += prepared.hits
    facts.misses += prepared.misses + prepared.behind
    facts.state_seconds += time.monotonic() - began
    return prepared.states


def look(
    recover: Recover,
    states: Mapping[int, BucketState],
    slices: Mapping[int, Sequence[bytes]],
    found: FoundUpdates,
) -> dict[int, Fresh]:
    """The new updates in the slices, by bucket. Counts them in `found`."""
    shape = shape_of(recover)
    fresh: dict[int, Fresh] = {}
    for bucket, own in slices.items():
        rows, hashes = _distinct(*gather(own, shape), shape, recover, found)
        rows, hashes = _unknown(rows, hashes, states[bucket], recover, found)
        if rows.num_rows:
            _count(rows, recover, found)
            fresh[bucket] = Fresh(rows, hashes)
    return fresh


def _distinct(
    rows: pa.RecordBatch, hashes: np.ndarray, shape: KeyShape, recover: Recover, found: FoundUpdates
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Distinct updates, each from the first record that has it, without invalid ones."""
    keys = [rows.column(i) for i in shape.key]
    once = first_of_each_key(hashes, [*keys, rows.column(DIFF)])
    rows, hashes = rows.take(pa.array(once)), hashes[once]
    changes = rows.column(DIFF).to_numpy()
    _tell(rows, np.flatnonzero(changes == 0), None, problems.ZERO_DIFF, recover, found)
    keys = [rows.column(i) for i in shape.key]
    chosen = first_of_each_key(hashes, keys)
    if len(chosen) < len(hashes):
        # The same data at one time with two diffs. It does not matter which is kept, because neither is
        # released.
        others = np.setdiff1d(np.arange(len(hashes)), chosen)
        pairs = np.array([_partner(int(i), chosen, hashes, keys) for i in others.tolist()], np.int64)
        _tell(rows, others, (rows, pairs), problems.TWO_DIFFS, recover, found)
        rows, hashes = rows.take(pa.array(chosen)), hashes[chosen]
    return rows, hashes


def _partner(row: int, chosen: np.ndarray, hashes: np.ndarray, keys: Sequence[pa.Array]) -> int:
    """For one of the chosen rows, the row with the same key."""
    alike = chosen[hashes[chosen] == hashes[row]]
    for other in alike.tolist():
        pair = ([k.slice(other, 1) for k in keys], [k.slice(row, 1) for k in keys])
        if bool(rows_equal(*pair, 1)[0]):
            return other
    return row


def _unknown(
    rows: pa.RecordBatch, hashes: np.ndarray, state: BucketState, recover: Recover, found: FoundUpdates
) -> tuple[pa.RecordBatch, np.ndarray]:
    """The updates that are not in the stash. A different diff there is a contradiction."""
    known = state.lookup(rows, hashes)
    if not len(known.where):
        return rows, hashes
    before = known.rows.column(DIFF).to_numpy()
    differ = np.flatnonzero(before != rows.column(DIFF).to_numpy()[known.where])
    if differ.size:
        _tell(rows, known.where[differ], (known.rows, differ), problems.TWO_DIFFS, recover, found)
    new = np.ones(len(hashes), np.bool_)
    new[known.where] = False
    return rows.filter(pa.array(new)), hashes[new]


def _tell(
    rows: pa.RecordBatch,
    wrong: np.ndarray,
    against: tuple[pa.RecordBatch, np.ndarray] | None,
    kind: str,
    recover: Recover,
    found: FoundUpdates,
) -> None:
    """Report each time with a contradiction once: the row, and the row that it contradicts."""
    if not wrong.size:
        return
    parts = components(rows, recover.stream.kind)
    stacked = parts[0][wrong] if len(parts) == 1 else np.stack([p[wrong] for p in parts], axis=1)
    times, codes = distinct_times(stacked)
    _, first = np.unique(codes, return_index=True)
    for at in first.tolist():
        time_ = times[int(codes[at])]
        said = _said(rows, int(wrong[at]), time_, recover)
        if against is None:
            found.wrong.append((time_, kind, said, None))
        else:
            other = _said(against[0], int(against[1][at]), time_, recover)
            found.wrong.append((time_, kind, other, said))


def _said(rows: pa.RecordBatch, row: int, time_: Time, recover: Recover) -> str:
    values = rows.slice(row, 1).to_pylist()[0]
    width = len(recover.desc.columns) - len(components(rows, recover.stream.kind)) - 3
    shown = str(tuple(values[name] for name in data_names(width)))
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."
    place = recover.stream.place(values[PARTITION], values[OFFSET])
    return f"({shown}, {time_}, {values[DIFF]:+}) in {place}"


def _count(rows: pa.RecordBatch, recover: Recover, found: FoundUpdates) -> None:
    parts = components(rows, recover.stream.kind)
    stacked = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
    times, codes = distinct_times(stacked)
    for at, count in zip(times, np.bincount(codes, minlength=len(times)).tolist(), strict=True):
        found.counts[at] = found.counts.get(at, 0) + count
    if not recover.stream.digests:
        return
    width = rows.num_columns - len(parts) - 3
    data = pa.RecordBatch.from_arrays(rows.columns[:width], names=data_names(width))
    diffs = rows.column(DIFF).to_numpy()
    hashed = hash_updates(keys_of(UpdateColumns(data, stacked, diffs)), diffs)
    sums = np.zeros(len(times), np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(sums, codes, hashed)
    for at, content in zip(times, sums.tolist(), strict=True):
        found.contents[at] = found.contents.get(at, 0) + content


def release(
    unit: Unit,
    index: int,
    settled: Settled,
    states: Mapping[int, BucketState],
    fresh: Mapping[int, Fresh],
    facts: UnitFacts,
) -> None:
    """Write the updates that the frontier has passed to the relation, and the changes of the stash; store the
    states."""
    target = unit.targets[index]
    if target is None or target.recover is None:
        return
    recover = target.recover
    shape = shape_of(recover)
    writer = PartWriter(unit, index, target, facts)
    stash = PartWriter(unit, stash_index(index), UnitTarget(recover.stash, recover.desc), facts)
    for bucket, state in states.items():
        began = time.monotonic()
        stays, gone = _parted(recover, settled, state, fresh.get(bucket))
        facts.state_seconds += time.monotonic() - began
        for rows in gone.released:
            writer.add(_released(rows, writer.names, None if recover.own_times else unit.time))
        if stays is not None:
            stash.add(as_updates(stays.rows, shape, unit.time, 1))
        if gone.stashed is not None:
            stash.add(as_updates(gone.stashed.rows, shape, unit.time, -1))
        began = time.monotonic()
        _put(state, stays, gone.stashed)
        state.commit(unit.time + 1)
        facts.state_seconds += time.monotonic() - began
    writer.flush()
    stash.flush()


def stash_index(index: int) -> int:
    """The position of the parts of a target's stash in the facts."""
    return -1 - index


@dataclass(frozen=True, slots=True)
class _Gone:
    """The released rows, and those of them that were in the stash."""

    released: list[pa.RecordBatch]
    stashed: Fresh | None


def _parted(
    recover: Recover, settled: Settled, state: BucketState, fresh: Fresh | None
) -> tuple[Fresh | None, _Gone]:
    """Splits the fresh updates: those that stay, and those that are released."""
    kind = recover.stream.kind
    stays: Fresh | None = None
    released: list[pa.RecordBatch] = []
    if fresh is not None:
        later = beyond(settled.after, components(fresh.rows, kind))
        if not later.all():
            released.append(fresh.rows.filter(pa.array(~later)))
        if later.any():
            stays = Fresh(fresh.rows.filter(pa.array(later)), fresh.hashes[later])
    stashed: Fresh | None = None
    if settled.from_stash:

        def passed(rows: pa.RecordBatch) -> np.ndarray:
            parts = components(rows, kind)
            return beyond(settled.before, parts) & ~beyond(settled.after, parts)

        rows, hashes = state.select(passed)
        if rows.num_rows:
            stashed = Fresh(rows, hashes)
            released.append(rows)
    return stays, _Gone(released, stashed)


def _released(rows: pa.RecordBatch, names: Sequence[str], at: int | None) -> pa.RecordBatch:
    """Stashed rows as updates of the relation: at a time, or (None) at their own times."""
    columns = [*rows.columns[: len(names)], rows.column(DIFF)]
    found = stamped(pa.RecordBatch.from_arrays(columns, names=[*names, DIFF_COLUMN]), names, at or 0)
    if at is not None:
        return found
    where = found.schema.get_field_index(TIME_COLUMN)
    return found.set_column(where, found.schema.field(where), rows.column(time_names(0)[0]))


def _put(state: BucketState, come: Fresh | None, gone: Fresh | None) -> None:
    """Both in one run: distinct keys, in the order of their hashes."""
    both = [f for f in (come, gone) if f is not None]
    if not both:
        return
    rows = pa.concat_batches([f.rows for f in both])
    hashes = np.concatenate([f.hashes for f in both])
    deleted = np.zeros(len(hashes), np.bool_)
    deleted[len(hashes) if gone is None else len(hashes) - len(gone.hashes) :] = True
    order = np.argsort(hashes, kind="stable")
    state.put(rows.take(pa.array(order)), hashes[order], deleted[order])
