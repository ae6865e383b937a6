"""Execution of a bound query, and its streamed result.

The engine calls `run` on a worker thread. Its arguments are the Spark SQL text, the inputs by the names that
the text uses, and the columns promised to the client. It returns a `ResultStream`: Arrow batches in the
storage forms of `types.arrow`, in the query's order, with bounded memory. Any thread can cancel it. `collect`
returns the same as one table, for statements that write what they read.

`DataFrame.toArrow` is not used, because it holds the whole result. Its JVM side also writes to the socket
from Spark's one scheduler thread, so a client that reads slowly would stop every other query. Here the
partitions of the result are computed in waves. Each wave is an ordinary job whose bytes wait in a separate
thread. The next wave runs while the last one is read, and no further ahead. A client that stops reading holds
two waves and no core.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import Internal, LimitExceeded, Unavailable
from tidemill.persist.part import ROW_GROUP_BYTES
from tidemill.query.job import Job
from tidemill.query.result_size import Growth, growth
from tidemill.query.spool import Spool
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import Column, RelationDesc

if TYPE_CHECKING:
    from tidemill.query.read import ConstantInput, Input
    from tidemill.query.relation import PreparedRelation
    from tidemill.query.session_slots import SessionSlot
    from tidemill.query.spark import SparkHost

# A wave starts with as many partitions as there are cores, and doubles while one returns less than this.
# Results of a few rows from many partitions then take few jobs; large ones stay at two waves of some tens of
# megabytes.
SMALL_WAVE_BYTES = 4 << 20
# What the partitions of a wave may return in all, at their maximum size (`session_slots.pieces`), by the
# driver's heap: it holds two waves at once, and Spark makes some copies of a task's result in transit.
WAVE_SHARE = 1 / 8

# What UPDATE, DELETE and INSERT ... SELECT may read into the server's memory before they write it out as
# parts.
COLLECT_LIMIT_BYTES = 1 << 30


def run(
    host: SparkHost,
    sql_text: str,
    inputs: Mapping[str, Input | ConstantInput | PreparedRelation],
    columns: Sequence[Column],
    *,
    job: Job | None = None,
) -> ResultStream:
    """Start the query; blocks until its plan is made and its shuffles, if any, have run. With `job` the
    caller can cancel before this returns. Raises what reading the inputs raises, Spark's errors as mapped by
    `map_spark_error`, `QueryCanceled`, `Unavailable`."""
    job = job or Job(host)
    with planned(host, sql_text, inputs, job) as (slot, frame):
        schema = arrow_schema(RelationDesc(tuple(columns)))
        return ResultStream(host, job, frame, schema, spooled=slot.growth is not Growth.NONE)


@contextmanager
def planned(
    host: SparkHost, sql_text: str, inputs: Mapping[str, Input | ConstantInput | PreparedRelation], job: Job
) -> Generator[tuple[SessionSlot, Any]]:
    """The query as a Dataset of the JVM, which computes nothing until rows are requested, and its slot.
    Raises as `run` does."""
    from tidemill.query.read import prepare
    from tidemill.query.relation import PreparedRelation

    host.metrics.add(queries=1)
    prepared = {
        name: given if isinstance(given, PreparedRelation) else prepare(host, given, job)
        for name, given in inputs.items()
    }
    small = all(p.small for p in prepared.values())
    grown = growth(sql_text, small=small)
    if grown is Growth.NONE and any(p.repeats for p in prepared.values()):
        grown = Growth.ROWS
    with job.running(), host.lease(small=small) as slot:
        slot.grow(grown, max((p.row_bytes for p in prepared.values()), default=0), host.heap_bytes)
        views: list[str] = []
        try:
            for name, relation in prepared.items():
                relation.dataframe(slot).createOrReplaceTempView(name)
                views.append(name)
            frame = slot.jsession.sql(sql_text)
        finally:
            # The analysed plan holds the relations themselves; the names are free again.
            for name in views:
                slot.jsession.catalog().dropTempView(name)
        yield slot, frame


def collect(
    host: SparkHost,
    sql_text: str,
    inputs: Mapping[str, Input | ConstantInput],
    columns: Sequence[Column],
    *,
    job: Job | None = None,
    limit_bytes: int = COLLECT_LIMIT_BYTES,
) -> pa.Table:
    """The whole result; `LimitExceeded` when it is larger than `limit_bytes` in Arrow form."""
    batches: list[pa.RecordBatch] = []
    size = 0
    with run(host, sql_text, inputs, columns, job=job) as stream:
        for batch in stream:
            size += batch.nbytes
            if size > limit_bytes:
                raise LimitExceeded(
                    f"the rows that the statement reads exceed {limit_bytes >> 20} MB",
                    hint="write in several statements, each over a part of the rows",
                    sqlstate="54000",
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=stream.schema)


class ResultStream:
    """Iterate for `pa.RecordBatch`es of `schema`; close (or exhaust) it to release the job. Iteration from
    several threads is allowed, one at a time; `cancel` at any time."""

    def __init__(
        self, host: SparkHost, job: Job, frame: Any, schema: pa.Schema, *, spooled: bool = False
    ) -> None:
        """`spooled`: the size of a partition is unknown."""
        self.schema = schema
        self._host = host
        self._job = job
        self._source = _spark_arrow_schema(frame, schema)
        # RDD of byte arrays, one per batch: computes the plan's shuffles now, its last stage wave by wave.
        batches = frame.toArrowBatchRdd()
        self._rdd = batches.toJavaRDD()
        self._spool = Spool(host, job, batches) if spooled else None
        self._partitions = int(self._rdd.getNumPartitions())
        self._next_partition = 0
        self._widest = max(2, int(host.heap_bytes * WAVE_SHARE) // ROW_GROUP_BYTES)
        self._width = min(max(2, host.cores), self._widest)
        if spooled:
            # Each has its own part of the disk, and takes a connection.
            self._widest = self._width
        # The wave after the one that is read now; None if no further wave remains.
        self._ahead: Future[_Wave | _SpooledWave] | None = None
        self._wave: _Wave | _SpooledWave | None = None
        self._closed = False
        host.metrics.add(active=1)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            while True:
                self._job.check()
                if self._closed:
                    raise StopIteration
                if self._wave is None and not self._open_wave():
                    self.close()
                    raise StopIteration
                batch = self._read()
                if batch is not None:
                    return batch
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Stop the query; the reader gets `QueryCanceled`."""
        self._job.cancel()
        wave = self._wave
        if wave is not None:
            wave.interrupt()

    def close(self) -> None:
        """Release everything; idempotent. Unread work is stopped."""
        if self._closed:
            return
        self._closed = True
        self._host.metrics.add(active=-1)
        unfinished = self._wave is not None or self._ahead is not None
        if self._wave is not None:
            self._wave.interrupt()
            self._wave = None
        if self._ahead is not None:
            # Its job may still run: its bytes are thrown away when it is done, or it is cancelled before.
            self._ahead.add_done_callback(_discard)
            self._ahead = None
        if unfinished and not self._job.cancelled:
            self._job.stop_jobs()
        self._rdd = None
        if self._spool is not None:
            self._spool.close()

    # -- waves -----------------------------------------------------------------------------------------

    def _open_wave(self) -> bool:
        """Make the next wave current and start the one after it. Returns False when all are read."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self._wave = ahead.result()
        elif self._next_partition < self._partitions:
            self._wave = self._run_wave(*self._take())
        else:
            return False
        if self._next_partition < self._partitions:
            self._ahead = self._host.background(self._run_wave, *self._take())
        return True

    def _take(self) -> tuple[int, int]:
        first = self._next_partition
        self._next_partition = min(self._partitions, first + self._width)
        return first, self._next_partition

    def _run_wave(self, first: int, end: int) -> _Wave | _SpooledWave:
        with self._job.running() as session:
            context = session.sparkContext
            self._host.metrics.add(jobs=1)
            if self._spool is not None:
                return _SpooledWave(self._spool, context, first, end)
            served = context._jvm.PythonRDD.runJob(context._jsc.sc(), self._rdd, list(range(first, end)))
            return _Wave(served)

    def _read(self) -> pa.RecordBatch | None:
        """The next batch of the current wave; None when the wave is done."""
        wave = self._wave
        if wave is None:
            raise Internal("no wave is open")
        with self._job.guarded():
            data = wave.read()
        if data is None:
            if wave.bytes < SMALL_WAVE_BYTES:
                self._width = min(self._widest, self._width * 2)
            self._wave = None
            return None
        batch = pa.ipc.read_record_batch(data, self._source)
        self._host.metrics.add(rows=batch.num_rows, bytes=data.size)
        return _conform(batch, self.schema)


class _Wave:
    """The bytes of one job's partitions, in order, waiting in the JVM behind a local socket."""

    def __init__(self, served: Any) -> None:
        from pyspark.util import local_connect_and_auth

        address, secret, self._server = served
        # The array holds the server, and the server the whole wave.
        served._detach()
        self.bytes = 0  # read so far
        # The JVM waits only some seconds for this connection, and then as long as it takes for us to read.
        self._file, self._socket = local_connect_and_auth(address, secret)
        self._socket.settimeout(None)

    def read(self) -> pa.Buffer | None:
        """One message; None at the end, which is only believed when the JVM confirms that it sent all."""
        head = self._file.read(4)
        if len(head) == 0:
            try:
                self._server.getResult()
            finally:
                self._close()
            return None
        (size,) = struct.unpack(">i", head) if len(head) == 4 else (-1,)
        if size < 0:
            raise Unavailable("the connection to Spark broke", hint="run the statement again")
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer)
        done = 0
        while done < size:
            got = self._file.readinto(view[done:])
            if not got:
                raise EOFError("Spark ended in the middle of a result")
            done += got
        self.bytes += size
        return buffer

    def interrupt(self) -> None:
        """Wake a reader and free the JVM's thread; safe from any thread, any number of times."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    def _close(self) -> None:
        self._file.close()
        self._socket.close()
        # A call puts py4j's object into a reference cycle: until Python's next cycle collection, which may be
        # much later, the JVM would keep this wave and all later ones.
        self._server._detach()


class _SpooledWave:
    """As `_Wave`, of partitions that wait on disk: one after the other is read from there."""

    def __init__(self, spool: Spool, context: Any, first: int, end: int) -> None:
        self._spool = spool
        self._context = context
        self._left = list(range(first, end))
        self._open: _Wave | None = None
        self._over = threading.Event()
        self.bytes = 0
        self._fill(self._left)

    def read(self) -> pa.Buffer | None:
        while not self._over.is_set():
            if self._open is None:
                if not self._left:
                    return None
                self._open = self._next()
            data = self._open.read()
            if data is not None:
                self.bytes += data.size
                return data
            self._open = None
            self._spool.drop(self._left.pop(0))
        return None

    def interrupt(self) -> None:
        self._over.set()
        reading = self._open
        if reading is not None:
            reading.interrupt()

    def _fill(self, partitions: list[int]) -> None:
        nothing = _Wave(self._spool.fill(self._context, partitions))
        if nothing.read() is not None:
            raise Internal("a partition that was put aside came along")

    def _next(self) -> _Wave:
        partition = self._left[0]
        served = self._spool.serve(partition)
        if served is None:
            self._fill([partition])
            served = self._spool.serve(partition)
        if served is None:
            raise Unavailable("a part of the result was lost", hint="run the statement again")
        return _Wave(served)


def _discard(future: Future[_Wave | _SpooledWave]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().interrupt()


def _spark_arrow_schema(frame: Any, promised: pa.Schema) -> pa.Schema:
    """The schema in which the JVM writes the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    spark = StructType.fromJson(json.loads(frame.schema().json()))
    if len(spark) != len(promised):
        raise Internal(f"the query gives {len(spark)} columns, {len(promised)} were promised")
    return to_arrow_schema(spark, timezone="UTC")


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the promised storage forms."""
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
