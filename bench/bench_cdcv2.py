"""CDCv2 without server and Spark: recovery of everything twice and shuffled, and the codecs, on one core; the
same recovery in the tick on Spark (`cdcv2_spark`); and a server's sink (`sink`).

A row has a number, a name and an amount. "Updates/s" counts what comes out; twice as many go in. Shuffled
through and through, nearly all of the history is stashed before the first time is complete: the worst there
is. Shuffled within 20 times, as a transport does, the stash holds those. Beside ours the iterator of
differential-dataflow on the same messages, built by cargo. Parts are chosen with `--only`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import cdcv2_spark
from bench.peers.programs import RUN_SECONDS, Missing, built
from bench.report import Figure, print_table
from bench.sink import to_kafka
from tidemill.cdcv2 import AvroCodec, ColumnRecovery, JsonCodec, Progress, UpdateColumns

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
NAMES = pa.array([f"name {i}" for i in range(1000)])
PER_MESSAGE = 10_000
# Times that a transport mixes.
NEAR = 20
PLOT_WIDTH = 64
BARS = " ▁▂▃▄▅▆▇█"


# A message as numbers: those of its updates; or the time of a statement.
Plan = list[np.ndarray | int]


def _data(ids: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(ids), NAMES.take(pa.array(ids % len(NAMES))), pa.array(ids / 4)]
    return pa.record_batch(columns, schema=SCHEMA)


def _plan(updates: int, times: int, near: int | None) -> Plan:
    """Everything twice: updates in messages of `PER_MESSAGE`, a statement for each time."""
    rng = np.random.default_rng(1)
    per_time = updates // times
    ids = np.concatenate([np.arange(updates)] * 2)
    # When each row and each statement passes by, in rows of the original order.
    spread = 2 * updates if near is None else near * per_time
    when = (np.zeros(2 * updates) if near is None else ids.astype(float)) + rng.random(2 * updates) * spread
    order = np.argsort(when)
    ids, when = ids[order], when[order]
    placed: list[tuple[float, np.ndarray | int]] = []
    for first in range(0, len(ids), PER_MESSAGE):
        placed.append((float(when[first]), ids[first : first + PER_MESSAGE]))
    for t in range(times):
        for _ in range(2):
            at = 0 if near is None else (t + 1) * per_time
            placed.append((at + float(rng.random()) * spread, t))
    placed.sort(key=lambda p: p[0])
    return [message for _, message in placed]


def _messages(plan: Plan, times: int, per_time: int) -> list[Any]:
    return [
        Progress([m], [m + 1] if m < times - 1 else [], [(m, per_time)])
        if isinstance(m, int)
        else UpdateColumns.of(_data(m), m // per_time)
        for m in plan
    ]


def _peer(plan: Plan, updates: int, times: int, ours: float) -> Figure:
    """differential-dataflow's iterator on the same messages."""
    what = "... differential-dataflow's iterator (Rust) on the same messages, updates/s"
    try:
        program = built("capture")
    except Missing as e:
        return Figure(what, f"not measured: {e}", "")
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        path = Path(folder) / "messages"
        with path.open("wb") as out:
            for m in plan:
                head = [0, m] if isinstance(m, int) else [len(m)]
                out.write(np.array(head, "<u8").tobytes())
                if not isinstance(m, int):
                    out.write(m.astype("<u8").tobytes())
        command = [str(program), str(path), str(times), str(updates // times)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if run.returncode != 0:
        return Figure(what, f"it ended with {run.returncode}: {run.stderr[-200:]}", "")
    told = json.loads(run.stdout)
    rate = told["released"] / told["seconds"]
    lost = updates - told["released"]
    # It counts a repetition within one message twice, so that a time is closed before all of it came.
    wrong = f"; {lost:,} updates lost" if lost else ""
    shown = f"{rate:,.0f} (ours {ours / rate:.2f} of it), {told['peak_kb'] / 1e6:.1f} GB{wrong}"
    return Figure(what, shown, "")


def _plot(sizes: Sequence[int]) -> str:
    """A line of bars: how large the stash was, from the first message to the last."""
    top = max(max(sizes), 1)
    cells = np.array_split(np.array(sizes), min(PLOT_WIDTH, len(sizes)))
    return "".join(BARS[round(int(c.max()) / top * (len(BARS) - 1))] for c in cells)


def _recover(updates: int, times: int, near: int | None) -> list[Figure]:
    plan = _plan(updates, times, near)
    messages = _messages(plan, times, updates // times)
    recovery = ColumnRecovery(SCHEMA)
    released = 0
    sizes: list[int] = []
    began, used = time.perf_counter(), time.process_time()
    for number, message in enumerate(messages):
        # What was read is let go, as a transport would.
        messages[number] = None
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
        _peer(plan, updates, times, rate),
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


def _near(*, quick: bool) -> list[Figure]:
    return _recover(*_size(quick), NEAR)


def _far(*, quick: bool) -> list[Figure]:
    return _recover(*_size(quick), None)


def _size(quick: bool) -> tuple[int, int]:
    return (100_000, 100) if quick else (10_000_000, 1_000)


def _codecs(*, quick: bool) -> list[Figure]:
    count = 50_000 if quick else 1_000_000
    ids = np.arange(count)
    data = _data(ids)
    plain = UpdateColumns.of(data, ids // 1000)
    pairs = UpdateColumns.of(data, np.stack([ids // 1000, ids % 7], axis=1))
    figures = _codec("Avro", AvroCodec(SCHEMA, schema_id=1), plain, 1_000_000)
    figures += _codec("Avro, pairs as times", AvroCodec(SCHEMA, 2, schema_id=1), pairs, 1_000_000)
    return figures + _codec("JSON", JsonCodec(SCHEMA), plain, None)


def _sink(*, quick: bool) -> list[Figure]:
    return to_kafka(200_000 if quick else 10_000_000)


PARTS: dict[str, Callable[..., list[Figure]]] = {
    "near": _near,
    "far": _far,
    "codecs": _codecs,
    "spark": cdcv2_spark.rate,
    "batches": cdcv2_spark.later,
    "sink": _sink,
}


def measure(*, quick: bool = False, only: Collection[str] = ()) -> list[Figure]:
    unknown = set(only) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: list[Figure] = []
    for name, part in PARTS.items():
        if not only or name in only:
            began = time.monotonic()
            found = part(quick=quick)
            print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
            print_table(found)
            figures += found
    return figures
