"""The tick: from a binding to visible rows, alone, among ten, and beside one that fails and one that floods;
and how much of Spark's own writing speed is left.

Runs the engine in this process, with its catalog, maintenance and Spark, but without the doors.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report import Figure, p50_p99, percentile
from tidemill.config import load
from tidemill.engine.engine import TidemillEngine
from tidemill.ingest.slot import SourceSlot
from tidemill.ingest.storage import SourceDescription, Storage
from tidemill.sources.generators.definition import normalise
from tidemill.sources.offsets import Offsets

ROWS = 1000
POLL_SECONDS = 0.02


@contextmanager
def engine() -> Generator[TidemillEngine]:
    folder = Path(tempfile.mkdtemp(prefix="bench-tick-"))

    def fatal(error: BaseException) -> None:
        raise SystemExit(f"the engine was lost: {error}")

    settings = {"data_dir": str(folder / "data"), "spark_master": "local[2]"}
    running = TidemillEngine.open(load(settings, {}), on_fatal=fatal)
    try:
        running.spark.wait(300)
        yield running
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


def add(running: TidemillEngine, name: str, **options: int) -> SourceSlot:
    """A counter. `STARTED` is how many milliseconds ago it began."""
    state = running.catalog.state
    schema = next(s for s in state.schemas(state.database("materialize").id) if s.name == "public")
    ago = options.pop("STARTED", 0)
    named = {n.replace("_", " "): v for n, v in options.items()}
    definition = normalise("COUNTER", named, running.environment.oracle.now() - ago)
    storage = Storage(running.environment, running.catalog, running.readiness.ingestion)
    (source_id,) = storage.create_sources([SourceDescription(schema.id, name, definition, sql="")])
    while (slot := running.readiness.ingestion.ticker.slot(source_id)) is None:
        time.sleep(POLL_SECONDS)
    return slot


def watch(slots: Sequence[SourceSlot], seconds: float) -> list[float]:
    """How long each of their ticks took to become visible."""
    seen: dict[str, Any] = {slot.id: slot.report.last for slot in slots}
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        for slot in slots:
            last = slot.report.last
            if last is not None and last is not seen[slot.id]:
                seen[slot.id] = last
                found.append(last.visible)
    return found


def _alone(running: TidemillEngine, seconds: float) -> list[Figure]:
    slot = add(running, "one", TICK_INTERVAL=1_000_000 // ROWS)
    watch([slot], 5)
    found = watch([slot], seconds)
    p50 = percentile(found, 50)
    return [Figure(f"tick of {ROWS:,} rows, one source", p50_p99(found), "p50 <= 250 ms", p50 <= 0.25)]


def _ten(running: TidemillEngine, seconds: float) -> tuple[list[Figure], list[SourceSlot]]:
    slots = [add(running, f"ten{n}", TICK_INTERVAL=1_000_000 // ROWS) for n in range(9)]
    slots += [s for s in running.readiness.ingestion.ticker.slots() if s.name == "one"]
    watch(slots, 5)
    before = sum(s.report.statistics.ticks_skipped for s in slots)
    found = watch(slots, seconds)
    skipped = sum(s.report.statistics.ticks_skipped for s in slots) - before
    p99 = percentile(found, 99)
    what = f"ten sources, {ROWS:,} rows each, every second, {seconds:.0f} s"
    return [
        Figure(what, p50_p99(found), "p99 <= 1 s", p99 <= 1),
        Figure("... ticks", f"{len(found)} seen, {skipped} skipped", "none skipped", skipped == 0),
    ], slots


def _trouble(running: TidemillEngine, slots: Sequence[SourceSlot], backlog: int) -> list[Figure]:
    bad = add(running, "bad", TICK_INTERVAL=1000, FAIL_AT=10)
    flood = add(running, "flood", TICK_INTERVAL=1, UP_TO=backlog, STARTED=backlog // 1000 + 1000)
    calm = slots[:8]
    seen: list[float] = []
    began = time.monotonic()
    while flood.machine.ingested != Offsets.at(backlog) or time.monotonic() - began < 10:
        seen += watch(calm, 1)
    took = time.monotonic() - began
    p99 = percentile(seen, 99)
    status = bad.report.status.state.value
    return [
        Figure(
            f"one fails ({status}), one catches up with {backlog:,} rows in {took:.0f} s: the others",
            p50_p99(seen),
            "p99 <= 1.5 s",
            p99 <= 1.5,
        )
    ]


def _throughput(running: TidemillEngine, rows: int, rounds: int) -> Figure:
    """The counter through job and commit against Spark writing the same columns; in turns."""
    for slot in running.readiness.ingestion.ticker.slots():
        running.readiness.ingestion.ticker.remove(slot.id)
    session = running.spark.session
    ours: list[float] = []
    sparks: list[float] = []
    folder = tempfile.mkdtemp(prefix="bench-tick-parquet-")
    for n in range(rounds):
        began = time.monotonic()
        slot = add(running, f"all{n}", TICK_INTERVAL=1, UP_TO=rows, STARTED=rows // 1000 + 1000)
        while slot.machine.ingested != Offsets.at(rows):
            time.sleep(POLL_SECONDS)
        ours.append(time.monotonic() - began)
        running.readiness.ingestion.ticker.remove(slot.id)
        began = time.monotonic()
        frame = session.range(1, rows + 1).selectExpr(
            "id AS counter", f"{n}L AS mz_timestamp", "1L AS mz_diff", "CAST(NULL AS STRING) AS mz_error"
        )
        frame.write.option("compression", "zstd").parquet(f"{folder}/{n}")
        sparks.append(time.monotonic() - began)
    shutil.rmtree(folder, ignore_errors=True)
    ratio = min(sparks) / min(ours)
    return Figure(
        f"{rows:,} counter rows through job and commit, against Spark writing them as Parquet",
        f"{rows / min(ours):,.0f} rows/s, {ratio:.2f}x",
        ">= 0.6x",
        ratio >= 0.6,
    )


def measure(*, quick: bool = False) -> list[Figure]:
    with engine() as running:
        figures = _alone(running, 5 if quick else 60)
        more, slots = _ten(running, 10 if quick else 600)
        figures += more
        figures += _trouble(running, slots, 500_000 if quick else 10_000_000)
        figures.append(_throughput(running, 1_000_000 if quick else 20_000_000, 2 if quick else 4))
    return figures
