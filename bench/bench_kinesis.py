"""The Kinesis source: a stream of four shards to a table, beside boto3 that reads it and does nothing else.

The upstream is kinesis-local, whose speed bounds both; they take turns in one run. Our side is a real server
process that is spoken to over SQL; it has read when the table has every record.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.ours import CATCH_UP_SECONDS, OurServer, started
from bench.peers.programs import HERE, environment
from bench.report import Figure, print_table
from tidemill.dev.kinesis import KinesisLocal, create_stream, put_records

STREAM = "load"
SHARDS = 4
# The local server takes about a millisecond of processor time for each record that it is given.
RECORDS, QUICK_RECORDS = 100_000, 20_000
DATA_BYTES = 150
WRITERS = 4
# Of larger loads there is one turn.
TURNS = 3
AIM = 0.5
PACKAGES = ("boto3==1.44.5",)


def measure(*, quick: bool = False, sizes: Sequence[int] = ()) -> list[Figure]:
    """`sizes`: another number of records."""
    records = sizes[0] if sizes else QUICK_RECORDS if quick else RECORDS
    python = environment("boto3", PACKAGES)
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-kinesis-") as folder:
        kinesis = KinesisLocal(Path(folder), persist=False)
        try:
            kinesis.start()
            _load(kinesis, records)
            figures = _compare(kinesis, records, python)
        finally:
            kinesis.kill()
    print_table(figures)
    return figures


def _load(kinesis: KinesisLocal, records: int) -> None:
    began = time.monotonic()
    create_stream(kinesis.client(), STREAM, SHARDS)
    share = records // WRITERS

    def put(writer: int) -> None:
        data = b"x" * DATA_BYTES
        lot = [(f"k{n % 100_000}", b"%d.%d %s" % (writer, n, data)) for n in range(share)]
        put_records(kinesis.client(), STREAM, lot)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"  {records:,} records were put in {time.monotonic() - began:.0f} s", flush=True)


def _compare(kinesis: KinesisLocal, records: int, python: Path) -> list[Figure]:
    theirs: list[float] = []
    mine: list[float] = []
    with started() as (server, scratch):
        ours = OurServer(server, scratch)
        endpoint = kinesis.options["endpoint"]
        ours.execute("CREATE SECRET key AS 'x'")
        place = f"ENDPOINT '{endpoint}', ACCESS KEY ID 'x', SECRET ACCESS KEY = SECRET key"
        ours.execute(f"CREATE CONNECTION a TO AWS ({place})")
        for turn in range(1 if records > RECORDS else TURNS):
            theirs.append(_boto3(python, endpoint, records))
            mine.append(_ours(ours, f"s{turn}", records))
        ours.close()
    ratio = statistics.median(t / m for t, m in zip(theirs, mine, strict=True))
    return [
        Figure(f"boto3 alone, {SHARDS} shards", _rates(records, theirs), ""),
        Figure("to a table, visible", _rates(records, mine), ""),
        Figure("ratio", f"{ratio:.2f}", f">= {AIM}x", ratio >= AIM),
    ]


def _rates(records: int, seconds: list[float]) -> str:
    rates = ", ".join(f"{records / s:,.0f}" for s in seconds)
    return f"{rates} records/s"


def _boto3(python: Path, endpoint: str, records: int) -> float:
    command = [str(python), str(HERE / "kinesis_boto3.py"), endpoint, STREAM, str(records)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=CATCH_UP_SECONDS, check=True)
    return float(run.stdout.split()[0])


def _ours(ours: OurServer, name: str, records: int) -> float:
    began = time.monotonic()
    ours.execute(f"CREATE SOURCE {name} FROM KINESIS CONNECTION a (STREAM '{STREAM}') FORMAT TEXT")
    ours.created(name)
    ours.until(name, records)
    seconds = time.monotonic() - began
    ((found, distinct),) = ours.execute(f"SELECT count(*), count(DISTINCT text) FROM {name}")
    if (found, distinct) != (records, records):
        raise SystemExit(f"{name} has {found} rows, {distinct} different ones, of {records}")
    ours.drop(name)
    return seconds
