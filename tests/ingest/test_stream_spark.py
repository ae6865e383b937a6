"""CDCv2 on Spark: local == Spark, for any partitioning, batch boundary and restart point; and in a program of
one's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdcv2.cdcv2_oracle import Oracle, stream
from ingest.streamed import StreamHouse, StreamSource
from ingest.test_stream_batches import as_json, told
from ingest.test_stream_recovery import check, rows
from support.shards import memory_folder
from support.spark import SparkHost
from tidemill import failpoints
from tidemill.cdcv2 import Message, Progress, Updates
from tidemill.ingest.recovery.batches import MicroBatches
from tidemill.ingest.spark_runner import SparkRunner

pytestmark = pytest.mark.spark


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as found:
        yield Path(found)


@pytest.mark.parametrize("seed", range(2))
def test_the_tick_on_spark_gives_the_history(spark: SparkHost, folder: Path, seed: int) -> None:
    rng = Random(seed)
    kind, side = rng.choice([(0, 4), (2, 3)])
    messages = stream(rng, kind, side, size=8)
    house = StreamHouse(folder / "data", StreamSource(kind), SparkRunner(spark, str(folder / "state")))
    oracle = Oracle(kind, side)
    while messages:
        size = rng.randint(8, 16)
        chunk, messages = messages[:size], messages[size:]
        for message in chunk:
            house.source.produce([message], rng.randint(0, 2))
            oracle.take(message)
        house.tick(rng.choice([1, 2, 8]))
        check(house, oracle)
        if rng.random() < 0.5:
            house.again()
    assert house.frontier == [] and house.stashed() == []
    house.close()


def test_a_contradiction_is_found_between_tasks(spark: SparkHost, folder: Path) -> None:
    house = StreamHouse(folder / "data", StreamSource(), SparkRunner(spark, str(folder / "state")))
    house.source.produce([Updates([("a", 1, 1), ("b", 2, 1)])], 0)
    house.source.produce([Updates([("b", 2, 2)]), Progress([0], [3], [(1, 1), (2, 1)])], 1)
    house.tick(2)
    assert rows(house) == [("", 1), ("a", 1)] and house.frontier == [2]
    assert "(('b',), 2, +1) in partition 0, offset 0; (('b',), 2, +2) in partition 1" in house.errors()[0]
    house.close()


def frame(spark: SparkHost, messages: list[Message], slices: int) -> Any:
    records = [(as_json(m), n % 3, n) for n, m in enumerate(messages)]
    session = spark.session
    return session.createDataFrame(
        session.sparkContext.parallelize(records, slices), "value binary, partition int, offset long"
    )


@pytest.mark.parametrize("step", ["", "tick.recovery.tallied=error"])
def test_micro_batches_of_a_program(spark: SparkHost, folder: Path, step: str) -> None:
    """Every batch is delivered twice; where it fails, the program begins anew, and cuts otherwise."""
    rng = Random(7)
    messages = stream(rng, 0, 4, size=9)
    oracle = Oracle(0, 4)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as place:
        form = {"format": "json"}
        batches = MicroBatches.open(spark.session, f"{place}/data", "orders", form)
        while messages:
            size = rng.randint(8, 16)
            chunk, messages = messages[:size], messages[size:]
            failpoints.arm(step)
            try:
                batches.push(frame(spark, chunk, 2))
            except failpoints.FailpointError:
                batches.close()
                batches = MicroBatches.open(spark.session, f"{place}/data", "orders", form)
            finally:
                failpoints.arm("")
            rng.shuffle(chunk)
            found = batches.push(frame(spark, chunk, 3))
            for message in chunk:
                oracle.take(message)
            assert tuple(found.frontier or ()) == oracle.frontier() or found.frontier is None
            expected = sorted((d, n) for d, _, n in oracle.released(oracle.frontier()))
            assert told(batches) == expected
        assert batches.frontier == [] and batches.stalls() == []
        batches.close()


@pytest.mark.timeout(600)
def test_a_structured_streaming_query_delivers_a_batch_again(spark: SparkHost, folder: Path) -> None:
    """`push` in `foreachBatch`: what was taken in when the query failed comes again with the same number."""
    messages = stream(Random(3), 0, 4, size=9)
    incoming = folder / "incoming"
    incoming.mkdir()
    for n in range(3):
        (incoming / f"{n}").write_bytes(b"\n".join(as_json(m) for m in messages[n::3]))
    batches = MicroBatches.open(spark.session, str(folder / "data"), "orders", {"format": "json"})
    seen: list[int] = []

    def take(rows: Any, number: int) -> None:
        batches.push(rows.selectExpr("cast(value AS binary) AS value"))
        seen.append(number)
        if len(seen) == 2:
            raise ValueError("planned")

    def run() -> None:
        lines = spark.session.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(incoming))
        writer = lines.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="planned"):
        run()
    run()
    assert seen == [0, 1, 1, 2]
    oracle = Oracle(0, 4)
    for message in messages:
        oracle.take(message)
    assert batches.frontier == [] and batches.stalls() == []
    assert told(batches) == sorted((d, n) for d, _, n in oracle.released(()))
    batches.close()
