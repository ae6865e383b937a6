"""What the upsert state costs on one core, without Spark: a catch-up, a tick at growing sizes, hydration.

Everything between a reader's batch and the updates is in it: cutting by key, the Arrow streams that the
shuffle carries, lookups, updates, and the writing and merging of runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from bench.report import Figure, ms, p50_p99
from tidemill.envelope.keys import KeyShape
from tidemill.ingest.exchange import BUCKETS, encode, gather, partition_by_key
from tidemill.ingest.state import StateStore, hydrate, prepare
from tidemill.sources.contract import MAX_BATCH_ROWS, TOMBSTONE_COLUMN
from tidemill.types.model import FLOAT8, INT4, INT8, TEXT, TIMESTAMP, Column, RelationDesc

DESC = RelationDesc(
    (
        Column("id", INT8),
        Column("name", TEXT),
        Column("amount", FLOAT8),
        Column("note", TEXT),
        Column("state", INT4),
        Column("at", TIMESTAMP),
    )
)
SHAPE = KeyShape.of(DESC, [DESC.names[0]])
# Records of one binding of a catch-up: `sources.contract.Limits`.
BINDING = 1_000_000
_NOTES = pa.array([f"a note of some length, number {i:03}" for i in range(200)])
_NAMES = pa.array([f"name {i}" for i in range(1000)])


class _Nothing:
    """A collection that is never asked: what the bench needs is in the cache."""

    since = 0
    length = 0

    def snapshot(self, as_of: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        raise AssertionError("the cache missed")

    def updates(self, lower: int, upper: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        raise AssertionError("the cache is behind")


def _rows(keys: np.ndarray, rng: np.random.Generator) -> pa.RecordBatch:
    count = len(keys)
    columns = [
        pa.array(keys),
        _NAMES.take(pa.array(rng.integers(0, len(_NAMES), count))),
        pa.array(rng.random(count)),
        _NOTES.take(pa.array(rng.integers(0, len(_NOTES), count))),
        pa.array(rng.integers(0, 5, count).astype(np.int32)),
        pa.array(rng.integers(0, 10**15, count), pa.timestamp("us")),
    ]
    return pa.record_batch(columns, schema=SHAPE.schema)


def _records(keys: np.ndarray, rng: np.random.Generator) -> pa.RecordBatch:
    return _rows(keys, rng).append_column(TOMBSTONE_COLUMN, pa.array(rng.random(len(keys)) < 0.01))


def _exchange(batches: list[pa.RecordBatch]) -> dict[int, pa.Table]:
    slices: dict[int, list[bytes]] = {}
    for n, batch in enumerate(batches):
        for bucket, table in partition_by_key(batch, SHAPE.key).items():
            slices.setdefault(bucket, []).append(encode(table, (0, n)))
    return {bucket: gather(values) for bucket, values in slices.items()}


def _tick(store: StateStore, upper: int, batches: list[pa.RecordBatch], at: int) -> tuple[float, float, int]:
    """One binding; the seconds of the exchange and of the state, and how many updates there were."""
    began = time.perf_counter()
    slices = _exchange(batches)
    cut = time.perf_counter()
    states = prepare(store, "bench", SHAPE, range(BUCKETS), upper, _Nothing()).states
    updates = 0
    for bucket, state in states.items():
        if bucket in slices:
            updates += sum(batch.num_rows for batch in state.apply(slices[bucket], at))
        if not state.commit(at + 1):
            raise AssertionError("the disk refused the state")
    return cut - began, time.perf_counter() - cut, updates


def _catch_up(folder: str, records: int, keys: int) -> list[Figure]:
    rng = np.random.default_rng(1)
    store = StateStore(folder)
    hydrate(store, "bench", SHAPE, range(BUCKETS), 1, ())
    exchange = state = 0.0
    for n in range(0, records, BINDING):
        batches = [
            _records(rng.integers(0, keys, min(MAX_BATCH_ROWS, records - at)), rng)
            for at in range(n, min(n + BINDING, records), MAX_BATCH_ROWS)
        ]
        a, b, _ = _tick(store, n + 1, batches, n + BINDING)
        exchange, state = exchange + a, state + b
    store.settle()
    store.close()
    rate = records / (exchange + state)
    return [
        Figure(
            f"catch-up, {records:,} records over {keys:,} keys, rows/s",
            f"{rate:,.0f} (exchange {records / exchange:,.0f}, state {records / state:,.0f})",
            ">= 400,000",
            rate >= 400_000,
        )
    ]


def _snapshot(keys: int, rng: np.random.Generator) -> Iterator[pa.Table]:
    for first in range(0, keys, 1 << 18):
        rows = pa.Table.from_batches([_rows(np.arange(first, min(first + (1 << 18), keys)), rng)])
        yield rows.append_column("mz_diff", pa.array(np.ones(rows.num_rows, dtype=np.int64)))


def _timed(tables: Iterator[pa.Table], away: list[float]) -> Iterator[pa.Table]:
    """The tables; how long it took to make them goes to `away`."""
    while True:
        began = time.perf_counter()
        table = next(tables, None)
        away[0] += time.perf_counter() - began
        if table is None:
            return
        yield table


def _ticks(folder: str, keys: int, ticks: int) -> tuple[list[float], list[float], float]:
    """The seconds of each tick of 1,000 keys: of this thread on a core, by the clock; and of hydrating."""
    rng = np.random.default_rng(2)
    store = StateStore(folder)
    away = [0.0]
    began = time.perf_counter()
    hydrate(store, "bench", SHAPE, range(BUCKETS), 1, _timed(_snapshot(keys, rng), away))
    hydration = time.perf_counter() - began - away[0]
    upper = 1
    busy: list[float] = []
    whole: list[float] = []
    for n in range(ticks):
        chosen = rng.choice(keys, 1000, replace=False) if keys < 100_000 else rng.integers(0, keys, 1000)
        records = [_records(chosen, rng)]
        used = time.thread_time()
        a, b, updates = _tick(store, upper, records, upper + 999)
        used = time.thread_time() - used
        if updates < 1000:
            raise AssertionError("the tick lost its updates")
        upper += 1000
        if n >= ticks // 10:
            busy.append(used)
            whole.append(a + b)
    store.close()
    return busy, whole, hydration


def measure(*, quick: bool = False) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        figures += _catch_up(folder, *((100_000, 25_000) if quick else (2_000_000, 500_000)))
    medians: list[float] = []
    sizes = (1_000, 10_000) if quick else (10_000, 1_000_000, 10_000_000)
    for keys in sizes:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            busy, whole, hydration = _ticks(folder, keys, 20 if quick else 300)
        medians.append(statistics.median(busy))
        figures.append(
            Figure(
                f"tick of 1,000 keys at {keys:,} keys, {BUCKETS} buckets",
                f"{p50_p99(whole)}; on the core p50 {ms(statistics.median(busy))}",
                "p50 <= 10 ms",
                statistics.median(whole) <= 0.010,
            )
        )
        figures.append(Figure(f"... hydrating {keys:,} keys, keys/s", f"{keys / hydration:,.0f}", "", None))
    ratio = max(medians) / min(medians)
    figures.append(
        Figure("tick on the core: slowest size against fastest", f"{ratio:.2f}x", "<= 1.3x", ratio <= 1.3)
    )
    return figures
