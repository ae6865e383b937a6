"""Hydration of missing state, and catch-up of old state, from the collection.

Tasks call `prepare`. One pass over the collection serves all missing buckets; memory is bounded by
`SPILL_BYTES` and one bucket. The input need not be consolidated: updates are summed per key here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import HASH_COLUMN, KeyShape, first_of_each_key, key_hash, one_batch
from tidemill.errors import TidemillError
from tidemill.ingest.exchange import bucket_of, split
from tidemill.ingest.state.bucket import BucketState
from tidemill.ingest.state.store import StateStore
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, HIDDEN_ROW, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

# Rows held in memory while hydrating, before they are written to files next to the states: about two million
# rows.
SPILL_BYTES = 256 << 20


class NotAtHand(TidemillError):
    """The states are missing, and reading the collection takes longer than the caller can wait."""

    sqlstate = "57014"
    transient = True

    def __init__(self, rows: int) -> None:
        super().__init__(
            f"the upsert state is missing, and {rows:,} updates are to be read for it",
            hint="It goes on in a job of its own.",
        )


class KeyNotUnique(TidemillError):
    """The collection has more than one row for a key: it was not written by this envelope, or it is
    damaged."""

    sqlstate = "XX001"

    def __init__(self, shard: str, key: Mapping[str, object], copies: int) -> None:
        told = ", ".join(f"{name} = {str(value)[:200]}" for name, value in key.items())
        self.found = f"The rows of the key ({told}) add up to {copies}."
        super().__init__(
            f"collection {shard} does not hold one row for each key",
            detail=self.found,
            hint="Drop the source and create it again.",
        )


class History(Protocol):
    """The collection, as a task reads it. Tables have at least the state's columns under their names, time
    and diff. They need not be consolidated, and may contain rows of other buckets than the requested ones."""

    @property
    def since(self) -> int:
        """Updates after this time have their original times; earlier ones may have been moved to it."""
        ...

    @property
    def length(self) -> int:
        """The number of updates."""
        ...

    def snapshot(self, as_of: int, buckets: Collection[int]) -> Iterable[pa.Table]:
        """All updates at times <= as_of."""
        ...

    def updates(self, lower: int, upper: int, buckets: Collection[int]) -> Iterable[pa.Table]:
        """All updates at times in [lower, upper)."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedFill:
    """The states at the requested upper, by bucket, and how many buckets were current, behind, and
    missing."""

    states: dict[int, BucketState] = field(default_factory=dict[int, BucketState])
    hits: int = 0
    behind: int = 0
    misses: int = 0


def prepare(
    store: StateStore,
    shard: str,
    shape: KeyShape,
    buckets: Sequence[int],
    upper: int,
    history: History,
    most: int | None = None,
) -> PreparedFill:
    """The states of the buckets at `upper`. Reads the collection only for buckets that are missing or behind
    in the cache. Raises KeyNotUnique; NotAtHand if it would have to read a whole collection with more than
    `most` updates; and the errors of `history`."""
    states: dict[int, BucketState] = {}
    missing: list[int] = []
    stale: dict[int, BucketState] = {}
    for bucket in buckets:
        state = store.open(shard, bucket, shape, upper)
        if state is None or (state.upper < upper and state.upper <= history.since):
            missing.append(bucket)
        elif state.upper < upper:
            stale[bucket] = state
        else:
            states[bucket] = state
    hits = len(states)
    if missing and most is not None and history.length > most:
        raise NotAtHand(history.length)
    if stale:
        lower = min(state.upper for state in stale.values())
        catch_up(shard, stale, upper, history.updates(lower, upper, stale))
        states.update(stale)
    if missing:
        rows = history.snapshot(upper - 1, missing) if upper > 0 else ()
        states.update(hydrate(store, shard, shape, missing, upper, rows))
    return PreparedFill(states, hits, len(stale), len(missing))


def hydrate(
    store: StateStore,
    shard: str,
    shape: KeyShape,
    buckets: Sequence[int],
    upper: int,
    updates: Iterable[pa.Table],
) -> dict[int, BucketState]:
    """Build the states of the buckets at `upper` from all updates before it, and store them."""
    states: dict[int, BucketState] = {}
    with _Spill(store.folder, buckets) as spill:
        for table in updates:
            spill.add(_by_bucket(_keyed(table, shape), buckets))
        for bucket in buckets:
            state = states[bucket] = store.empty(shard, bucket, shape, upper)
            table = spill.take(bucket)
            if table is not None:
                rows, hashes = _one_per_key(shard, shape, table)
                state.put(rows, hashes, np.zeros(len(hashes), dtype=np.bool_))
            state.commit(upper)
    return states


def catch_up(shard: str, states: Mapping[int, BucketState], upper: int, updates: Iterable[pa.Table]) -> None:
    """Advance the states to `upper` with all updates in between; each takes those at or after its own upper.
    Nothing is written: the next commit stores them."""
    pieces: dict[int, list[pa.Table]] = {bucket: [] for bucket in states}
    for table in updates:
        if not table.num_rows or not states:
            continue
        shape = next(iter(states.values())).shape
        for bucket, piece in _by_bucket(_keyed(table, shape, time=True), list(states)).items():
            late = contiguous(piece.column(TIME_COLUMN)).to_numpy() >= states[bucket].upper
            pieces[bucket].append((piece if late.all() else piece.filter(pa.array(late))).drop([TIME_COLUMN]))
    for bucket, state in states.items():
        if pieces[bucket]:
            state.put(*_changes(shard, state.shape, pa.concat_tables(pieces[bucket])))
        state.advance(upper)


def _keyed(table: pa.Table, shape: KeyShape, *, time: bool = False) -> pa.Table:
    """The state's columns, diff (and time), and the hash of the key."""
    hashes = key_hash(table.select(shape.key_names), range(len(shape.key)))
    names = [*shape.names, DIFF_COLUMN, *([TIME_COLUMN] if time else [])]
    return table.select(names).append_column(HASH_COLUMN, pa.array(hashes))


def _by_bucket(table: pa.Table, buckets: Collection[int]) -> dict[int, pa.Table]:
    bucket = bucket_of(contiguous(table.column(HASH_COLUMN)).to_numpy())
    wanted = np.isin(bucket, np.array(list(buckets), dtype=np.uint16))
    if not wanted.all():
        table, bucket = table.filter(pa.array(wanted)), bucket[wanted]
    return split(table, bucket) if len(bucket) else {}


def _one_per_key(shard: str, shape: KeyShape, table: pa.Table) -> tuple[pa.RecordBatch, np.ndarray]:
    """The consolidated rows, in the order of their hashes."""
    table = table.combine_chunks()
    hashes = contiguous(table.column(HASH_COLUMN)).to_numpy()
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    # Most keys have one update, a +1. Only the others are consolidated.
    again = np.zeros(len(order), dtype=np.bool_)
    equal = ordered[1:] == ordered[:-1]
    again[1:] |= equal
    again[:-1] |= equal
    again |= contiguous(table.column(DIFF_COLUMN)).to_numpy()[order] != 1
    if again.any():
        single, rest = pa.array(order[~again]), pa.array(order[again])
        net = _remembered(_net(table.take(rest), shape), shape)
        table = pa.concat_tables([table.take(single), net]).combine_chunks()
        hashes = contiguous(table.column(HASH_COLUMN)).to_numpy()
        order = _distinct(shard, shape, table, hashes, sign=1)
    return one_batch(table, shape.names, shape.schema).take(pa.array(order)), hashes[order]


def _changes(shard: str, shape: KeyShape, table: pa.Table) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
    """The changes between two states: for each changed key its row at the end, or that it has none."""
    net = _net(table, shape)
    diffs = contiguous(net.column(DIFF_COLUMN)).to_numpy()
    come, gone = net.filter(pa.array(diffs > 0)), net.filter(pa.array(diffs < 0))
    for rows, sign in ((come, 1), (gone, -1)):
        _distinct(shard, shape, rows, contiguous(rows.column(HASH_COLUMN)).to_numpy(), sign=sign)
    both = pa.concat_tables([come, gone]).combine_chunks()
    hashes = contiguous(both.column(HASH_COLUMN)).to_numpy()
    batch = one_batch(both, shape.names, shape.schema)
    order = first_of_each_key(hashes, [batch.column(i) for i in shape.key])
    return batch.take(pa.array(order)), hashes[order], order >= come.num_rows


def _net(table: pa.Table, shape: KeyShape) -> pa.Table:
    """The rows that are left after equal rows are consolidated."""
    return _keyed(consolidate(table.drop([HASH_COLUMN]), RelationDesc(())), shape)


def _remembered(net: pa.Table, shape: KeyShape) -> pa.Table:
    """Without hidden rows that were only retracted: compaction had dropped the invisible row before."""
    if shape.error is None:
        return net
    hidden = pc.fill_null(pc.equal(net.column(ERROR_COLUMN), HIDDEN_ROW), False)
    return net.filter(pc.invert(pc.and_(hidden, pc.less(net.column(DIFF_COLUMN), 0))))


def _distinct(shard: str, shape: KeyShape, rows: pa.Table, hashes: np.ndarray, *, sign: int) -> np.ndarray:
    """The order by hash of rows that must have distinct keys and the diff `sign`."""
    diffs = contiguous(rows.column(DIFF_COLUMN)).to_numpy()
    wrong = np.flatnonzero(diffs != sign)
    if len(wrong):
        raise KeyNotUnique(shard, _told(rows, shape, int(wrong[0])), int(diffs[wrong[0]]))
    order = first_of_each_key(hashes, [contiguous(rows.column(name)) for name in shape.key_names])
    if len(order) != len(hashes):
        repeated = np.ones(len(hashes), dtype=np.bool_)
        repeated[order] = False
        raise KeyNotUnique(shard, _told(rows, shape, int(np.flatnonzero(repeated)[0])), 2 * sign)
    return order


def _told(rows: pa.Table, shape: KeyShape, at: int) -> dict[str, object]:
    return rows.select(shape.key_names).slice(at, 1).to_pylist()[0]


class _Spill:
    """Rows by bucket, in memory up to SPILL_BYTES and then in separate files."""

    def __init__(self, folder: str, buckets: Sequence[int]) -> None:
        self._base = folder
        self._held: dict[int, list[pa.Table]] = {bucket: [] for bucket in buckets}
        self._bytes = 0
        self._files: dict[int, list[str]] = {bucket: [] for bucket in buckets}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, pieces: Mapping[int, pa.Table]) -> None:
        for bucket, piece in pieces.items():
            self._held[bucket].append(piece)
            self._bytes += piece.nbytes
        if self._bytes > SPILL_BYTES:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            os.makedirs(self._base, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(prefix="spill-", dir=self._base)
        for bucket, tables in self._held.items():
            if tables:
                path = os.path.join(self._folder.name, f"{bucket}-{len(self._files[bucket])}")
                with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, tables[0].schema) as writer:
                    for table in tables:
                        writer.write_table(table)
                self._files[bucket].append(path)
                self._held[bucket] = []
        self._bytes = 0

    def take(self, bucket: int) -> pa.Table | None:
        """The bucket's rows; they can be taken once."""
        tables = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in self._files.pop(bucket)]
        tables += self._held.pop(bucket)
        return pa.concat_tables(tables) if tables else None

    def __enter__(self) -> _Spill:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()
