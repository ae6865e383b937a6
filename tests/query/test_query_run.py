"""Running queries: streams in order and in bounded memory, cancel, errors, several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tidemill.errors import LimitExceeded, QueryCanceled, TidemillError
from tidemill.query.job import Job
from tidemill.query.read import ConstantInput
from tidemill.query.run import ResultStream, collect, run
from tidemill.query.spark import SparkHost
from tidemill.types.model import INT4, INT8, TEXT, Column

pytestmark = pytest.mark.spark

ID = [Column("id", INT8)]
# About half a minute on one core, in tasks of seconds.
LONG = """select count(*) as id from range(0, 4000, 1, 8) a cross join range(0, 10000000, 1, 1) b
where hash(a.id, b.id) = 1"""


def constant(**columns: list[object]) -> dict[str, ConstantInput]:
    return {"t": ConstantInput(pa.table(columns))}


def test_result_has_the_promised_columns_and_types(spark: SparkHost) -> None:
    wanted = [Column("n", INT4, nullable=False), Column("n", TEXT)]
    given = {"t": ConstantInput(pa.table({"a": pa.array([3, 1, 2], pa.int32()), "b": ["c", None, "b"]}))}
    table = collect(spark, "select a as x, b as x from t order by a", given, wanted)
    assert table.schema == pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("n", pa.string())])
    assert table.column(0).to_pylist() == [1, 2, 3]
    assert table.column(1).to_pylist() == [None, "b", "c"]


def test_empty_results_and_inputs(spark: SparkHost) -> None:
    empty = {"t": ConstantInput(pa.table({"id": pa.array([], pa.int64())}))}
    assert collect(spark, "select id from t", empty, ID).num_rows == 0
    assert collect(spark, "select count(*) as id from t", empty, ID)["id"].to_pylist() == [0]


def test_order_survives_many_partitions_and_waves(spark: SparkHost) -> None:
    text = "select id from range(0, 300000, 1, 40) where id % 3 = 0 order by id desc"
    with run(spark, text, {}, ID) as stream:
        got = pa.chunked_array([batch.column(0) for batch in stream])
    assert got.equals(pa.chunked_array([pa.array(range(299997, -1, -3), pa.int64())]))


def test_a_slow_reader_holds_little_and_stops_nobody(spark: SparkHost) -> None:
    """8M rows of 100 bytes in 64 partitions, of which the reader takes a little: the stream keeps no more
    than the waves around it, and another query runs meanwhile."""
    columns = [Column("id", INT8), Column("v", TEXT)]
    text = "select id, repeat('x', 92) as v from range(0, 8000000, 1, 64)"
    jobs = spark.metrics.jobs
    before = pa.total_allocated_bytes()
    with run(spark, text, {}, columns) as stream:
        batches = [next(stream) for _ in range(3)]
        time.sleep(1)
        assert (
            spark.metrics.jobs - jobs <= 2
        )  # this wave and the next, though there is all the time to run more
        assert pa.total_allocated_bytes() - before < 64 << 20
        assert collect(spark, "select 7L as id", {}, ID)["id"].to_pylist() == [7]
    got = [n for b in batches for n in b.column(0).to_pylist()]
    assert got == list(range(len(got)))


def blocks(spark: SparkHost) -> set[str]:
    return {path.name for path in (spark.scratch / "local").glob("**/rdd_*")}


def test_a_partition_may_be_larger_than_what_a_task_returns(spark: SparkHost) -> None:
    """300 MB that one task makes: they pass by way of the disk, a few rows at a time, and are gone then."""
    text = "select id, repeat('x', 1000000) as v from range(0, 300, 1, 1)"
    columns = [Column("id", INT8), Column("v", TEXT)]
    others = blocks(spark)
    before, ids, size = pa.total_allocated_bytes(), list[int](), 0
    with run(spark, text, {}, columns) as stream:
        for batch in stream:
            assert pa.total_allocated_bytes() - before < 192 << 20
            ids += batch.column(0).to_pylist()
            size += batch.nbytes
    assert ids == list(range(300)) and size > 300_000_000
    until(lambda: blocks(spark) <= others, "what was read is still on the disk")


def test_what_is_not_read_is_not_kept(spark: SparkHost) -> None:
    others = blocks(spark)
    text = "select id, repeat('x', 1000) as v from range(0, 200000, 1, 20)"
    with run(spark, text, {}, [Column("id", INT8), Column("v", TEXT)]) as stream:
        assert next(stream).num_rows > 0
        assert blocks(spark) - others
    until(lambda: blocks(spark) <= others, "what nobody reads is still on the disk")


def test_order_survives_what_is_put_aside(spark: SparkHost) -> None:
    text = "select id, repeat('x', 10) as v from range(0, 30000, 1, 13) order by id desc"
    with run(spark, text, {}, [Column("id", INT8), Column("v", TEXT)]) as stream:
        got = [n for batch in stream for n in batch.column(0).to_pylist()]
    assert got == list(range(29999, -1, -1))


def test_an_error_behind_many_rows_is_told(spark: SparkHost) -> None:
    others = blocks(spark)
    text = """select id, repeat('x', cast(100000 / if(id < 900, 1, 0) as int)) as v
    from range(0, 1000, 1, 1)"""
    with pytest.raises(TidemillError) as caught:
        collect(spark, text, {}, [Column("id", INT8), Column("v", TEXT)])
    assert caught.value.sqlstate == "22012"
    until(lambda: blocks(spark) <= others, "what nobody reads is still on the disk")


def until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_cancel_stops_the_job_soon_and_only_it(spark: SparkHost) -> None:
    job = Job(spark)
    other = run(spark, "select id from range(10)", {}, ID)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect, spark, LONG, {}, ID, job=job)
        time.sleep(1.5)
        assert not running.done()
        job.cancel()
        with pytest.raises(QueryCanceled) as caught:
            running.result(timeout=120)
    assert caught.value.sqlstate == "57014"
    assert sum(batch.num_rows for batch in other) == 10
    tracker = spark.session.sparkContext.statusTracker()
    deadline = time.monotonic() + 120
    while tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not tracker.getActiveJobsIds()


def test_cancel_before_the_query_starts(spark: SparkHost) -> None:
    job = Job(spark)
    job.cancel()
    with pytest.raises(QueryCanceled):
        collect(spark, "select 1L as id", {}, ID, job=job)


def test_cancel_wakes_a_reader_of_a_stream(spark: SparkHost) -> None:
    stream = run(spark, "select id from range(0, 8000000, 1, 64)", {}, ID)
    next(stream)
    stream.cancel()
    with pytest.raises(QueryCanceled):
        for _ in stream:
            pass


def test_closing_a_stream_early_stops_its_work(spark: SparkHost) -> None:
    active = spark.metrics.active
    stream = run(spark, "select id from range(0, 8000000, 1, 64)", {}, ID)
    next(stream)
    assert spark.metrics.active == active + 1
    stream.close()
    stream.close()
    assert spark.metrics.active == active
    assert list(stream) == []


def test_errors_of_spark_are_postgres_errors(spark: SparkHost) -> None:
    given = constant(a=[1, 0])
    with pytest.raises(TidemillError) as caught:
        collect(spark, "select cast(1 div a as bigint) as id from t", given, ID)
    assert (caught.value.sqlstate, caught.value.primary) == ("22012", "division by zero")
    # The same inside a task, in a later wave.
    with pytest.raises(TidemillError) as caught:
        collect(spark, "select 1 div (id - 99999) as id from range(0, 100000, 1, 8)", {}, ID)
    assert caught.value.sqlstate == "22012"
    assert collect(spark, "select 1L as id", {}, ID).num_rows == 1


def test_collect_has_a_limit(spark: SparkHost) -> None:
    with pytest.raises(LimitExceeded, match="exceed 1 MB"):
        collect(spark, "select id from range(1000000)", {}, ID, limit_bytes=1 << 20)


def test_queries_of_many_threads_do_not_mix(spark: SparkHost) -> None:
    """The same text and view name over different inputs, at once."""

    def one(n: int) -> list[int]:
        given = constant(id=[n, n + 1, n + 2])
        return collect(spark, "select sum(id) as id from t", given, ID)["id"].to_pylist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(40))) == [[3 * n + 3] for n in range(40)]


def test_a_short_query_is_not_stuck_behind_a_long_one(spark: SparkHost) -> None:
    # Many short tasks: without fair pools all of them would come first.
    text = LONG.replace("0, 4000, 1, 8", "0, 4000, 1, 400").replace("10000000", "500000")
    job = Job(spark)
    done = threading.Event()

    def hog() -> None:
        try:
            collect(spark, text, {}, ID, job=job)
        except QueryCanceled:
            pass
        finally:
            done.set()

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        time.sleep(1)
        assert collect(spark, "select 5L as id", {}, ID)["id"].to_pylist() == [5]
        assert not done.is_set()
    finally:
        job.cancel()
        thread.join(120)


def test_streams_can_be_read_from_changing_threads(spark: SparkHost) -> None:
    def take(stream: ResultStream) -> int:
        batch = next(stream, None)
        return -1 if batch is None else batch.num_rows

    rows = 0
    with run(spark, "select id from range(0, 100000, 1, 12)", {}, ID) as stream:
        while True:
            with ThreadPoolExecutor(1) as pool:
                got = pool.submit(take, stream).result()
            if got < 0:
                break
            rows += got
    assert rows == 100_000
