"""CDCv2 in any Spark program: micro-batches of messages in, a definite collection out.

    stream = MicroBatches.open(session, "/data/mirror", "orders", {"format": "json"})
    frame.writeStream.foreachBatch(lambda messages, _: stream.push(messages)).start()

Called by programs, from `foreachBatch` or any other loop; without a server. The collection is a Delta table
of updates under the folder, with its history. The state is stored beside it, and the same code as in a
server's tick does the work. Promises: each update once, even if messages are delivered again, reordered or
batched differently, and however often the program dies.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.catalog.sidecars import FACTS_DESC, MATERIALIZE, stash_desc, stash_id, tally_id
from tidemill.cdcv2.stalls import Stall
from tidemill.cdcv2.tally import Tally
from tidemill.cdcv2.times import Time
from tidemill.errors import Internal, LimitExceeded
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.recovery.deduplicate import stash_index
from tidemill.ingest.recovery.partition import Spread
from tidemill.ingest.recovery.snapshot import snapshot_rows
from tidemill.ingest.recovery.stream import StreamState, error_rows
from tidemill.ingest.recovery.values import FoundUpdates, Settled, Tallied
from tidemill.ingest.spark_runner import in_two_steps, itself
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure, UnitTarget
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.stream_rows import StreamRows, stream_output
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE, PARTITION, OFFSET = "value", "partition", "offset"
# The number of messages that a task decodes together.
AT_ONCE = 1000
# The largest message: more than any transport carries.
MAX_VALUE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a batch: the time of its updates in the collection, their number, the frontier of the
    stream now ([]: without end; None: no statement so far), and any errors."""

    time: int
    updates: int
    frontier: list[Time] | None
    errors: tuple[str, ...]


class MicroBatches:
    """One stream, recovered into one collection. Not thread-safe, and one per folder at a time: a second
    `open` takes over, and the first one's next `push` fails."""

    def __init__(
        self,
        session: SparkSession,
        environment: Environment,
        spec: Mapping[str, Any],
        output: OutputDefinition,
    ) -> None:
        self._session = session
        self._environment = environment
        self._spec = spec
        self._output = output
        name = str(spec["name"])
        self._data = self._shard(name, output.desc)
        kind = 0 if output.stream is None else output.stream.kind
        stash = self._shard(stash_id(name), stash_desc(output.desc, kind))
        self._state = StreamState(self._data, stash, self._shard(tally_id(name), FACTS_DESC))
        self._take_back()
        # A batch failed at an unknown point. Its writes are undone before the next batch.
        self._torn = False
        self._begin_life()

    @staticmethod
    def open(
        session: SparkSession, folder: str, name: str, form: Mapping[str, Any], **options: Any
    ) -> MicroBatches:
        """Open the stream `name` of a folder, or create it. `form` is {"format": "json"}, or {"format":
        "avro", "schema": ..., "framed": ..., "registry": {"url": ...} or None}; "components" gives the number
        of components if times are products. Options are those of `Environment.open`."""
        spec = {"name": name, "envelope": {"kind": MATERIALIZE}, "value": dict(form)}
        output = stream_output(spec, ("partition ", ", offset "))
        environment = Environment.open(folder, **options)
        try:
            return MicroBatches(session, environment, spec, output)
        except BaseException:
            environment.close()
            raise

    def close(self) -> None:
        self._environment.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin_life(self) -> None:
        """Choose where workers cache the stash, on this machine or elsewhere. The cache may be lost."""
        self._folder = tempfile.mkdtemp(prefix="tidemill-stash-")
        self._life = uuid.uuid4().hex

    def _shard(self, name: str, desc: RelationDesc) -> Shard:
        try:
            return self._environment.open_ingested(name)
        except ShardMissing:
            return self._environment.create_shard(name, desc, since=0)

    @property
    def frontier(self) -> list[Time] | None:
        """The stream is complete before this frontier; [] at the end of the stream; None before the first
        statement."""
        return self._state.frontier

    def stalls(self) -> list[Stall]:
        """The reasons why the stream waits."""
        assert self._output.stream is not None
        return self._state.stalls(self._output.stream)

    def updates(self) -> pa.Table:
        """All released updates, as (columns, time in the collection, diff, error). For inspection of small
        collections."""
        as_of = max(upper_of(self._data) - 1, self._data.since)
        with self._data.snapshot(as_of, readable=as_of + 1) as snapshot:
            tables = [snapshot.read_part(part) for part in snapshot.parts]
        return pa.concat_tables(tables) if tables else pa.table({})

    def begin(self, resume_from: Sequence[Time], snapshot: pa.Table) -> bool:
        """Begin in the middle, with the contents of the stream's collection at the frontier `resume_from`;
        only statements beyond it count. `snapshot` has the columns of the data (for JSON one, `data`, with a
        text in each row) and optionally `mz_diff`, the count of a row. Call it before the first batch. After
        that, it has no effect and returns False, so a program may call it at every start."""
        self._mend()
        if self._state.frontier is not None:
            return False
        started = Tally(list(resume_from), content=lambda _: 0)
        settled = Settled(Tallied(started.dump()), (), started.reported, False, ())
        at = self._environment.oracle.write_ts()
        job = self._environment.begin_job()
        try:
            rows = snapshot_rows(snapshot, self._data.desc, at)
            parts = [self._data.write_part(rows, job=job)] if rows.num_rows else []
            self._state.append([], settled, at, job)
            self._data.compare_and_append(parts, upper_of(self._data), at + 1)
            self._state.committed(settled)
        except BaseException:
            self._torn = True
            raise
        finally:
            self._environment.end_job(job)
            self._environment.oracle.complete(at)
        return True

    def push(self, messages: DataFrame) -> Recovered:
        """Process a batch: a column `value` (binary) with a message in each row. Errors name its `partition`
        and `offset`, if it has such columns. Raises the errors of the job; then the batch has no effect: push
        it again, unchanged or not."""
        self._mend()
        at = self._environment.oracle.write_ts()
        job = self._environment.begin_job()
        try:
            facts, unit = self._run(messages, at, job)
            if facts.failure is not None:
                raise facts.failure.error()
            return self._commit(unit, facts)
        except BaseException:
            self._torn = True
            raise
        finally:
            self._environment.end_job(job)
            self._environment.oracle.complete(at)

    def _run(self, messages: DataFrame, at: int, job: str) -> tuple[UnitFacts, Unit]:
        assert self._output.stream is not None
        recover = self._state.recover(self._output.stream)
        context = self._session.sparkContext
        ways = min(BUCKETS, max(2, context.defaultParallelism))
        target = UnitTarget(self._data.id, self._data.desc, recover=recover)
        unit = Unit(
            str(self._spec["name"]), _Nothing(), (), at, (target,), self._data.blobs, job, 3600.0, ways
        )
        columns = [name for name in (PARTITION, OFFSET) if name in messages.columns]
        rows = messages.select(VALUE, *columns).rdd
        packed = pickle.dumps((self._spec, recover))
        parted = rows.mapPartitionsWithIndex(partial(_spread, packed, ways)).partitionBy(ways, itself)
        local = str(context.master).startswith("local[") or str(context.master) == "local"
        folder = self._folder if local else None
        return in_two_steps(unit, parted, ways, folder, self._life), unit

    def _commit(self, unit: Unit, facts: UnitFacts) -> Recovered:
        """Commit stash, tally and data, in the same order as a server's tick (`machine`)."""
        settled = facts.settled[0]
        parts = [*facts.parts.get(0, [])]
        if settled.errors:
            errors = error_rows(self._data.desc, settled.errors, unit.time)
            parts.append(self._data.write_part(errors, job=unit.job))
        self._state.append(facts.parts.get(stash_index(0), []), settled, unit.time, unit.job)
        self._data.compare_and_append(parts, upper_of(self._data), unit.time + 1)
        self._state.committed(settled)
        self._state.allow_compaction()
        return Recovered(unit.time, facts.updates, self.frontier, settled.errors)

    def _mend(self) -> None:
        """Reset to the durable state after a failed batch. Workers may have cached a stash that was never
        committed."""
        if not self._torn:
            return
        self._data.refresh()
        self._state.forget()
        self._take_back()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._begin_life()
        self._torn = False

    def _take_back(self) -> None:
        """Undo a batch that reached stash and tally but not the data, because it may be delivered again in
        another form. Its changes are reverted at a later time; doing so twice changes nothing."""
        beside = (self._state.stash, self._state.tally)
        upper = upper_of(self._data)
        if all(upper_of(shard) <= upper for shard in beside):
            return
        at = self._environment.oracle.write_ts()
        job = self._environment.begin_job()
        try:
            for shard in beside:
                undone = _undone(shard, upper, at)
                if undone is not None:
                    part = shard.write_part(undone, job=job)
                    shard.compare_and_append([part], upper_of(shard), at + 1)
            self._data.compare_and_append([], upper, at + 1)
        finally:
            self._environment.end_job(job)
            self._environment.oracle.complete(at)
        self._state.forget()


def _undone(shard: Shard, since: int, at: int) -> pa.Table | None:
    """The inverse of the shard's updates at times from `since` on, at the time `at`."""
    tables: list[pa.Table] = []
    as_of = upper_of(shard) - 1
    if as_of < since:
        return None
    with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
        for part in snapshot.parts:
            table = snapshot.read_part(part)
            late = table.column(TIME_COLUMN).to_numpy() >= since
            tables.append(table.filter(pa.array(late)))
    if not any(table.num_rows for table in tables):
        return None
    table = pa.concat_tables(tables).drop([TIME_COLUMN])
    net = consolidate(table, RelationDesc(()))
    if not net.num_rows:
        return None
    diffs = pa.array(-net.column(DIFF_COLUMN).to_numpy())
    net = net.set_column(net.schema.get_field_index(DIFF_COLUMN), DIFF_COLUMN, diffs)
    net = net.append_column(TIME_COLUMN, pa.array(np.full(net.num_rows, at, np.int64)))
    return net.select(shard_schema(shard.desc).names)


class _Nothing:
    """The reader of a unit whose messages are passed in. It has no pieces to read."""

    def read(self, piece: Any) -> Iterator[Any]:
        raise Internal("the messages of a micro-batch are brought, not read")


def _spread(packed: bytes, ways: int, index: int, rows: Iterable[Any]) -> Iterator[Any]:
    """The reading half, for messages in Spark rows."""
    spec, recover = pickle.loads(packed)
    facts = UnitFacts()
    facts.found[0] = FoundUpdates()
    slices: list[tuple[int, bytes]] = []
    try:
        maker = StreamRows(0, spec, recover.stream.words)
        spreads: dict[str, Spread] = {}
        for partition, offsets, values in _held(rows, index):
            spread = spreads.setdefault(
                partition, Spread(recover, partition, lambda b, d: slices.append((b, d)), facts.found[0])
            )
            for batch in maker.make(partition, offsets, values, sum(map(len, values))):
                facts.records += batch.records
                facts.bytes += batch.bytes
                facts.rows += batch.rows.num_rows
                spread.add(batch)
            for bucket, data in slices:
                yield bucket % ways, (0, (0, bucket, data))
            slices.clear()
        for spread in spreads.values():
            spread.flush()
        for bucket, data in slices:
            yield bucket % ways, (0, (0, bucket, data))
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    yield 0, (0, facts)
    if facts.failure is not None:
        for way in range(1, ways):
            yield way, (0, UnitFacts(failure=facts.failure))


def _held(rows: Iterable[Any], index: int) -> Iterator[tuple[str, list[int], list[bytes]]]:
    """Messages of one partition, in groups, with their offsets. Rows without partition and offset are
    numbered."""
    partition, offsets, values = "", list[int](), list[bytes]()
    for number, row in enumerate(rows):
        named = row.asDict()
        value = bytes(named[VALUE] or b"")
        if len(value) > MAX_VALUE_BYTES:
            raise LimitExceeded(f"a message of {len(value)} bytes")
        own = str(named.get(PARTITION, f"{index} of the batch"))
        offset = int(named.get(OFFSET, number))
        if values and (own != partition or len(values) >= AT_ONCE):
            yield partition, offsets, values
            offsets, values = [], []
        partition = own
        offsets.append(offset)
        values.append(value)
    if values:
        yield partition, offsets, values
