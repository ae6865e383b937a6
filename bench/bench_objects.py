"""Folders of files as sources, beside Spark that reads the same folder and writes Parquet; and a folder of
very many files: a restart, and one file more.

Ours is a real server that is spoken to over SQL, with two cores; Spark is a session of its own with as many,
warm, in the same run. Spark is given the columns, so that it reads once. Parts are chosen with `--only`.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv

from bench.busy import core_seconds
from bench.ours import OurServer, Stalled, started
from bench.report import Figure, ms, percentile, print_table
from support.server import ServerError

CORES = 2
# The aim is Spark's rate times this.
SHARE = 0.7
# Lines of about a hundred bytes.
LINE_BYTES = 104
SECONDS = 1800.0

_SPARK = """
import sys, time
from pyspark.sql import SparkSession
form, path, out, columns = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
read = lambda p: getattr(spark.read.schema(columns), form)(p, **({"header": True} if form == "csv" else {}))
read(path + "/../warm").write.parquet(out + "-warm")
began = time.monotonic()
read(path).write.parquet(out)
print("seconds", time.monotonic() - began)
"""


def measure(*, quick: bool = False, only: Collection[str] = ()) -> list[Figure]:
    parts: dict[str, Callable[[Path], list[Figure]]] = {
        "json": lambda folder: json_lines(folder, quick=quick),
        "csv": lambda folder: one_csv(folder, quick=quick),
        "known": lambda folder: many_known(folder, quick=quick),
    }
    unknown = set(only) - set(parts)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    figures: list[Figure] = []
    for name, part in parts.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-objects-") as folder:
            try:
                found = part(Path(folder))
            except (Stalled, ServerError) as e:
                found = [Figure(name, f"FAILED: {str(e)[:200]}", "runs, with the right result", False)]
        print(f"  {name}: {time.monotonic() - began:.0f} s")
        print_table(found)
        figures += found
    return figures


# -- beside Spark


def json_lines(folder: Path, *, quick: bool) -> list[Figure]:
    """Many files of one megabyte."""
    files, size = (20, 100_000) if quick else (1000, 1_000_000)
    rows = 0
    for name in ("files/in", "files/warm"):
        (folder / name).mkdir(parents=True)
    for n in range(files):
        text, count = _json(n, size)
        (folder / "files" / "in" / f"{n:05}.json").write_bytes(text)
        rows += count
    (folder / "files" / "warm" / "0.json").write_bytes(_json(0, 10_000)[0])
    columns = "id bigint, name string, amount double, note string"
    return _beside(folder, f"{files:,} files of {size:,} bytes, JSON lines", "json", columns, "JSON", rows)


def one_csv(folder: Path, *, quick: bool) -> list[Figure]:
    """One file of four gigabytes."""
    rows = 200_000 if quick else 40_000_000
    for name in ("files/in", "files/warm"):
        (folder / name).mkdir(parents=True)
    _csv(folder / "files" / "in" / "one.csv", rows)
    _csv(folder / "files" / "warm" / "one.csv", 1000)
    size = (folder / "files" / "in" / "one.csv").stat().st_size
    columns = "id string, name string, amount string, note string"
    label = f"one CSV file of {size / 1e9:.2f} GB"
    return _beside(folder, label, "csv", columns, "CSV WITH HEADER", rows)


def _beside(folder: Path, label: str, form: str, columns: str, our_form: str, rows: int) -> list[Figure]:
    path = folder / "files" / "in"
    theirs = [_spark(form, path, folder / "spark-0", columns)]
    with started("--files-root", str(folder / "files")) as (server, scratch):
        one = OurServer(server, scratch)
        one.execute(f"CREATE SOURCE warm FROM FILES 'warm' FORMAT {our_form}")
        _until(one, "warm", 1)
        peak = _Peak(server.pid)
        used, began = core_seconds(server.pid), time.monotonic()
        one.execute(f"CREATE SOURCE s FROM FILES 'in' FORMAT {our_form}")
        _until(one, "s", rows)
        seconds = time.monotonic() - began
        busy = (core_seconds(server.pid) - used) / seconds
        memory = peak.stop()
        one.close()
    theirs.append(_spark(form, path, folder / "spark-1", columns))
    base = statistics.mean(theirs)
    ratio = base / seconds
    return [
        Figure(f"Spark: {label}, to Parquet", f"{base:.1f} s ({rows / base:,.0f} rows/s)", ""),
        Figure("... as a source", f"{ratio:.2f}x ({seconds:.1f} s)", f">= {SHARE}x", ratio >= SHARE),
        Figure("cores busy meanwhile", f"{busy:.2f} of {CORES}", ""),
        Figure("memory of all processes, at most", f"{memory / 2**30:.2f} GiB", ""),
    ]


def _until(one: OurServer, name: str, rows: int) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        ((error,),) = one.execute(
            "SELECT max(error) FROM mz_internal.mz_source_statuses st JOIN mz_sources s ON s.id = st.id "
            f"WHERE s.name = '{name}'"
        )
        if error is not None and "reach" not in error:
            raise Stalled(error)
        ((done,),) = one.execute(
            "SELECT max(updates_committed) FROM mz_internal.mz_source_statistics st "
            f"JOIN mz_sources s ON s.id = st.id WHERE s.name = '{name}'"
        )
        if int(done or 0) >= rows:
            return
        if time.monotonic() > deadline:
            raise Stalled(f"{done} of {rows} rows after {SECONDS:.0f} s")
        time.sleep(0.1)


def _spark(form: str, path: Path, out: Path, columns: str) -> float:
    command = [sys.executable, "-c", _SPARK, form, str(path), str(out), columns]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    lines = [line for line in found.stdout.splitlines() if line.startswith("seconds ")]
    if not lines:
        raise SystemExit(f"Spark failed:\n{found.stderr[-2000:]}")
    shutil.rmtree(out)
    return float(lines[0].split()[1])


class _Peak:
    """The greatest memory of a process with all below it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            total = 0
            for process in [self._root, *self._root.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self._most = max(self._most, total)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most


def _json(seed: int, size: int) -> tuple[bytes, int]:
    rng = np.random.default_rng(seed)
    count = size // LINE_BYTES
    amounts, numbers = rng.integers(0, 10**6, count), rng.integers(0, 1000, count)
    lines = [
        b'{"id": %9d, "name": "name %3d", "amount": %6d.25, "note": "nothing to say about it, row %8d"}\n'
        % (seed * 10**5 + n, numbers[n], amounts[n], n)
        for n in range(count)
    ]
    return b"".join(lines), count


def _csv(path: Path, rows: int) -> None:
    rng = np.random.default_rng(7)
    options = pa_csv.WriteOptions(include_header=True)
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("note", pa.string())]
    )
    names = pa.array([f"name {n}" for n in range(1000)])
    notes = pa.array(
        [f"nothing to say about it, whatever it may be or have been, row {n:08}" for n in range(1000)]
    )
    with pa_csv.CSVWriter(path, schema, write_options=options) as writer:
        for first in range(0, rows, 100_000):
            count = min(100_000, rows - first)
            columns = [
                pa.array(np.arange(first, first + count)),
                names.take(pa.array(rng.integers(0, 1000, count))),
                pa.array(rng.integers(0, 10**8, count) / 100),
                notes.take(pa.array(rng.integers(0, 1000, count))),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


# -- very many files


def many_known(folder: Path, *, quick: bool) -> list[Figure]:
    """A restart with as many files, to the first tick; then a file more, until its row is there."""
    files, more = (2000, 5) if quick else (100_000, 20)
    path = folder / "files" / "in"
    path.mkdir(parents=True)
    for n in range(files):
        (path / f"{n:06}.txt").write_bytes(b"one line\n")
    with started("--files-root", str(folder / "files")) as (server, scratch):
        one = OurServer(server, scratch)
        began = time.monotonic()
        one.execute("CREATE SOURCE s FROM FILES 'in' FORMAT TEXT")
        _until(one, "s", files)
        first = time.monotonic() - began
        one.close()
        server.terminate()
        began, at = time.monotonic(), int(time.time() * 1000)
        server.start()
        one = OurServer(server, scratch)
        one.created("s")
        # The first tick behind the start.
        while one.frontiers(["s"])["s"] <= at:
            time.sleep(0.1)
        again = time.monotonic() - began
        server.wait_ready()
        ((count,),) = one.execute("SELECT count(*) FROM s_progress")
        took: list[float] = []
        for n in range(more):
            (path / f"more-{n}.txt").write_bytes(b"one line\n")
            began = time.monotonic()
            while one.execute(f"SELECT 1 FROM s_progress WHERE key = 'more-{n}.txt'") != [(1,)]:
                time.sleep(0.02)
            took.append(time.monotonic() - began)
        one.close()
    if count != files:
        raise SystemExit(f"the source has {count} files, not {files}")
    middle = statistics.median(took)
    return [
        Figure(f"{files:,} files, until all are read", f"{first:.1f} s", ""),
        Figure(
            "restart, from the start of the process to the first tick",
            f"{again:.1f} s",
            "<= 10 s",
            again <= 10,
        ),
        Figure(
            "one file more, until it is there",
            f"p50 {ms(middle)}, p99 {ms(percentile(took, 99))}",
            "p50 <= 1 s",
            middle <= 1,
        ),
    ]
