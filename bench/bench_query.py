"""What a query costs: a small one, a large scan at a time, a large result.

Every figure that is a ratio compares two things in the same
run, in turns, so that a busy machine hits both alike; the medians are printed. Aims:

- SELECT over 10M rows (two sums, grouped): at most 1.3 times what Spark needs for the same rows in plain
  Parquet when every update is +1, at most 3 times with 1% of the rows retracted;
- point SELECT on a small table: p50 at most 150 ms;
- 1M rows of 6 columns reach Python at 1M rows/s or more.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import Figure, ms, p50_p99
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.query import Input, SparkHost, collect, run
from tidemill.types.model import FLOAT8, INT8, TEXT, TIMESTAMP, Column, RelationDesc

DESC = RelationDesc(
    (Column("id", INT8), Column("g", INT8), Column("a", INT8), Column("b", FLOAT8), Column("s", TEXT))
)
GROUPED = "select g, sum(a) as a, sum(b) as b from t group by g"
GROUPED_COLUMNS = [Column("g", INT8), Column("a", INT8), Column("b", FLOAT8)]
PART_ROWS = 1_000_000
NUMBERS = [Column("id", INT8)]


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "g": ids * 2654435761 % 1000,
            "a": ids * 40503 % 100_003,
            "b": (ids * 69069 % 1_000_003) / 7.0,
            "s": pa.array(np.char.add("name ", (ids % 5000).astype(str))),
        }
    )


def updates(table: pa.Table, at: int, diff: int) -> pa.Table:
    return (
        table.append_column("mz_timestamp", pa.array(np.full(table.num_rows, at)))
        .append_column("mz_diff", pa.array(np.full(table.num_rows, diff)))
        .append_column("mz_error", pa.nulls(table.num_rows, pa.string()))
    )


def build(folder: Path, count: int, retracted: int) -> tuple[Shard, list[str]]:
    """A shard with `count` rows at time 1, of which `retracted` are gone at time 2; and the same rows as
    plain Parquet."""
    shard = Shard.create(open_blobs(str(folder / "data")), "u1", DESC, epoch=1)
    plain: list[str] = []
    parts: list[Any] = []
    for first in range(0, count, PART_ROWS):
        table = rows(first, min(PART_ROWS, count - first))
        parts.append(shard.write_part(updates(table, 1, 1), job="bench"))
        plain.append(str(folder / f"plain-{first}.parquet"))
        pq.write_table(table, plain[-1], compression="zstd", row_group_size=256 * 1024)
    shard.compare_and_append(parts, 0, 2)
    gone = np.random.default_rng(1).choice(count, retracted, replace=False)
    table = pa.concat_tables([rows(int(first), 1) for first in gone]) if retracted < 100 else pick(gone)
    shard.compare_and_append([shard.write_part(updates(table, 2, -1), job="bench")], 2, 3)
    return shard, plain


def pick(ids: np.ndarray[Any, Any]) -> pa.Table:
    everything = rows(0, int(ids.max()) + 1)
    return everything.take(pa.array(np.sort(ids)))


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median of each, measured in turns after one unmeasured round."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 1):
        for name, call in calls.items():
            seconds = timed(call)
            if i:
                taken[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def bench_scan(host: SparkHost, folder: Path, count: int, repeats: int) -> list[Figure]:
    shard, files = build(folder, count, count // 100)

    def plain() -> object:
        # As the query layer runs it, less the query layer's reading.
        with host.lease(small=False) as slot:
            slot.session.read.parquet(*files).createOrReplaceTempView("t")
            return slot.session.sql(GROUPED).toArrow()

    def at(time_: int) -> object:
        with shard.snapshot(time_) as snapshot:
            return collect(host, GROUPED, {"t": Input(snapshot, ["g", "a", "b"])}, GROUPED_COLUMNS)

    calls = {"plain": plain, "all +1": lambda: at(1), "1% retracted": lambda: at(2)}
    seconds = in_turns(calls, repeats)
    base = seconds["plain"]
    figures = [Figure(f"{count:,} rows, two sums grouped, from plain Parquet", ms(base), "")]
    for name, aim in (("all +1", 1.3), ("1% retracted", 3.0)):
        ratio = seconds[name] / base
        measured = f"{ratio:.2f}x ({ms(seconds[name])})"
        figures.append(Figure(f"... the same rows at a time, {name}", measured, f"<= {aim}x", ratio <= aim))
    return figures


def bench_small(host: SparkHost, folder: Path, repeats: int) -> list[Figure]:
    shard = Shard.create(open_blobs(str(folder / "data")), "u2", DESC, epoch=1)
    for i in range(10):
        part = shard.write_part(updates(rows(i * 100, 100), i, 1), job="bench")
        shard.compare_and_append([part], i, i + 1)
    texts = {
        "point SELECT on a small table": ("select id from t where id = 77", NUMBERS, ["id"]),
        "join, group, order on it": (
            "select x.g as id from t x join t y on x.id = y.id group by x.g order by x.g",
            NUMBERS,
            ["id", "g"],
        ),
    }
    figures: list[Figure] = []
    for name, (text, columns, used) in texts.items():
        taken: list[float] = []
        for _ in range(repeats):
            with shard.snapshot(9) as snapshot:
                given = {"t": Input(snapshot, used)}
                taken.append(timed(lambda g=given, t=text, c=columns: collect(host, t, g, c)))
        taken = taken[repeats // 4 :]
        figures.append(Figure(name, p50_p99(taken), "p50 <= 150 ms", statistics.median(taken) <= 0.15))
    return figures


def bench_result(host: SparkHost, count: int, repeats: int) -> list[Figure]:
    columns = [
        *(Column(f"c{i}", INT8) for i in range(3)),
        Column("f", FLOAT8),
        Column("s", TEXT),
        Column("d", TIMESTAMP),
    ]
    text = f"""select id as c0, id * 2 as c1, id % 7 as c2, cast(id as double) / 3 as f,
        concat('row ', cast(id as string)) as s,
        timestamp_ntz'2020-01-01 00:00:00' + make_dt_interval(0, 0, 0, id) as d
        from range(0, {count}, 1, 8)"""

    def stream() -> None:
        with run(host, text, {}, columns) as batches:
            assert sum(batch.num_rows for batch in batches) == count

    def whole() -> None:
        assert host.session.sql(text).toArrow().num_rows == count

    seconds = in_turns({"stream": stream, "toArrow": whole}, repeats)
    rate = count / seconds["stream"]
    ratio = seconds["stream"] / seconds["toArrow"]
    return [
        Figure(
            f"{count:,} rows of 6 columns to Python", f"{rate / 1e6:.2f}M rows/s", ">= 1M rows/s", rate >= 1e6
        ),
        Figure("... against DataFrame.toArrow", f"{ratio:.2f}x of its time", ""),
    ]


def measure(*, quick: bool = False) -> list[Figure]:
    repeats = 2 if quick else 7
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        host = SparkHost(scratch=Path(folder) / "spark")
        try:
            host.wait(300)
            started = f"{host.started_seconds:.1f} s / {host.ready_seconds:.1f} s"
            return [
                Figure("Spark started / warm", started, ""),
                *bench_small(host, Path(folder), 40 if quick else 200),
                *bench_scan(host, Path(folder), 200_000 if quick else 10_000_000, repeats),
                *bench_result(host, 50_000 if quick else 1_000_000, repeats),
            ]
        finally:
            host.stop()
