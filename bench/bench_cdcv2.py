"""CDCv2 without server and Spark: recovery of everything twice and shuffled, and the codecs, on one core.

A row has a number, a name and an amount. "Updates/s" counts what comes out; twice as many go in. Shuffled
through and through, nearly all of the history is stashed before the first time is complete: the worst there
is. Shuffled within 20 times, as a transport does, the stash holds those.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bench.report import Figure
from tidemill.cdcv2 import AvroCodec, ColumnRecovery, JsonCodec, Progress, UpdateColumns

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
NAMES = pa.array([f"name {i}" for i in range(1000)])
PER_MESSAGE = 10_000
# Times that a transport mixes.
NEAR = 20
PLOT_WIDTH = 64
BARS = " ▁▂▃▄▅▆▇█"


def _data(ids: np.ndarray, amounts: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(ids), NAMES.take(pa.array(ids % len(NAMES))), pa.array(amounts[ids])], schema=SCHEMA
    )


def _messages(updates: int, times: int, near: int | None, amounts: np.ndarray) -> list[Any]:
    """Everything twice: updates in messages of `PER_MESSAGE`, a statement for each time."""
    rng = np.random.default_rng(1)
    per_time = updates // times
    ids = np.concatenate([np.arange(updates)] * 2)
    # When each row and each statement passes by, in rows of the original order.
    spread = 2 * updates if near is None else near * per_time
    when = (np.zeros(2 * updates) if near is None else ids.astype(float)) + rng.random(2 * updates) * spread
    order = np.argsort(when)
    ids, when = ids[order], when[order]
    placed: list[tuple[float, Any]] = []
    for first in range(0, len(ids), PER_MESSAGE):
        part = ids[first : first + PER_MESSAGE]
        message = UpdateColumns.of(_data(part, amounts), part // per_time)
        placed.append((float(when[first]), message))
    for t in range(times):
        said = Progress([t], [t + 1] if t < times - 1 else [], [(t, per_time)])
        for _ in range(2):
            at = 0 if near is None else (t + 1) * per_time
            placed.append((at + float(rng.random()) * spread, said))
    placed.sort(key=lambda p: p[0])
    return [message for _, message in placed]


def _plot(sizes: Sequence[int]) -> str:
    """A line of bars: how large the stash was, from the first message to the last."""
    top = max(max(sizes), 1)
    cells = np.array_split(np.array(sizes), min(PLOT_WIDTH, len(sizes)))
    return "".join(BARS[round(int(c.max()) / top * (len(BARS) - 1))] for c in cells)


def _recover(updates: int, times: int, near: int | None) -> list[Figure]:
    amounts = np.random.default_rng(2).random(updates)
    messages = _messages(updates, times, near, amounts)
    recovery = ColumnRecovery(SCHEMA)
    released = 0
    sizes: list[int] = []
    began, used = time.perf_counter(), time.process_time()
    for message in messages:
        for out, _ in recovery.push(message):
            released += len(out)
        sizes.append(recovery.stashed)
    took, used = time.perf_counter() - began, time.process_time() - used
    if released != updates or recovery.frontier or recovery.stashed:
        raise AssertionError(f"{released} of {updates} updates, frontier {recovery.frontier}")
    how = "through and through" if near is None else f"within {near} times"
    rate = updates / took
    print(f"stash, shuffled {how}, at most {max(sizes):,} updates: {_plot(sizes)}", flush=True)
    return [
        Figure(
            f"recovery of {updates:,} updates over {times:,} times, twice, shuffled {how}, updates/s",
            f"{rate:,.0f} ({updates / used:,.0f} per second of a core)",
            ">= 500,000",
            rate >= 500_000,
        ),
        Figure(
            "... stash at its largest, of all updates",
            f"{max(sizes) / updates:.1%}",
            "unreported times only" if near else "",
            None if near is None else max(sizes) <= updates * (2 * near + 4) // times,
        ),
    ]


def _codec(name: str, codec: AvroCodec | JsonCodec, updates: UpdateColumns, aim: int | None) -> list[Figure]:
    encoded: list[bytes] = []
    best = [0.0, 0.0]
    for _ in range(3):
        used = time.process_time()
        encoded = codec.encode_updates(updates)
        best[0] = max(best[0], len(updates) / (time.process_time() - used))
        used = time.process_time()
        decoded = codec.decode(encoded)
        best[1] = max(best[1], len(updates) / (time.process_time() - used))
        if sum(len(d) for d in decoded if isinstance(d, UpdateColumns)) != len(updates):
            raise AssertionError("the codec lost updates")
    size = sum(map(len, encoded)) / len(updates)
    return [
        Figure(
            f"{name} {what}, {size:.0f} bytes each, updates/s of a core",
            f"{rate:,.0f}",
            f">= {aim:,}" if aim else "",
            rate >= aim if aim else None,
        )
        for what, rate in zip(("encode", "decode"), best, strict=True)
    ]


def measure(*, quick: bool = False) -> list[Figure]:
    updates, times = (100_000, 100) if quick else (10_000_000, 1_000)
    figures = _recover(updates, times, None) + _recover(updates, times, NEAR)
    count = 50_000 if quick else 1_000_000
    ids = np.arange(count)
    data = _data(ids, np.random.default_rng(3).random(count))
    plain = UpdateColumns.of(data, ids // 1000)
    pairs = UpdateColumns.of(data, np.stack([ids // 1000, ids % 7], axis=1))
    figures += _codec("Avro", AvroCodec(SCHEMA, schema_id=1), plain, 1_000_000)
    figures += _codec("Avro, pairs as times", AvroCodec(SCHEMA, 2, schema_id=1), pairs, 1_000_000)
    return figures + _codec("JSON", JsonCodec(SCHEMA), plain, None)
