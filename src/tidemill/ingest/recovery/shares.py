"""The halves of a unit's CDCv2 targets as tasks run them: errors become facts, and buckets are divided among
tasks.

Called by `keyed` and by the Spark runner, next to the halves of upserts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidemill import failpoints
from tidemill.envelope.keys import HASH_COLUMN
from tidemill.ingest.exchange import COMPRESS_BYTES
from tidemill.ingest.recovery.deduplicate import Fresh, look, release, states_of
from tidemill.ingest.recovery.partition import shape_of
from tidemill.ingest.recovery.values import FoundUpdates, Recover, Settled
from tidemill.ingest.recovery.verdict import settle
from tidemill.ingest.state import BucketState
from tidemill.ingest.task import FP_WRITTEN
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure
from tidemill.types.columns import contiguous

# Updates that one task reads to fill a missing stash, as for upserts (`keyed`).
FILL_ROWS = 200_000

# (position of the target, bucket) -> slices, as in `keyed`.
Slices = Mapping[tuple[int, int], Sequence[bytes]]
# (position of the target, bucket) -> the new updates, as bytes.
Carried = dict[tuple[int, int], bytes]


def look_at(unit: Unit, buckets: Sequence[int], slices: Slices, folder: str) -> tuple[UnitFacts, Carried]:
    """The new updates of the buckets, counted."""
    facts = UnitFacts()
    carried: Carried = {}
    try:
        for index, recover in unit.recovers:
            states = states_of(unit, recover, buckets, folder, facts, None)
            found = facts.found.setdefault(index, FoundUpdates())
            for bucket, fresh in look(recover, states, _own(slices, index), found).items():
                carried[index, bucket] = _encode(fresh)
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    return facts, carried


def settle_unit(unit: Unit, facts: UnitFacts) -> None:
    """Add the verdict over the findings of all shares to the facts."""
    try:
        for index, recover in unit.recovers:
            facts.settled[index] = settle(recover, facts.found.get(index, FoundUpdates()))
    except Exception as e:
        facts.failure = UnitFailure.of(e)


def release_from(
    unit: Unit, buckets: Sequence[int], settled: Mapping[int, Settled], carried: Carried, folder: str
) -> UnitFacts:
    """Write the updates of the buckets that the verdict releases, and those that stay in their stash."""
    facts = UnitFacts()
    try:
        for index, recover in unit.recovers:
            states = states_of(unit, recover, buckets, folder, facts, None)
            fresh = {b: _decode(data, recover) for (i, b), data in carried.items() if i == index}
            release(unit, index, settled[index], states, fresh, facts)
        failpoints.hit(FP_WRITTEN)
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    return facts


def recover_here(unit: Unit, buckets: Sequence[int], slices: Slices, folder: str, facts: UnitFacts) -> None:
    """Run everything in this process, and add the results to the facts of the reading half."""
    fresh: dict[int, dict[int, Fresh]] = {}
    states: dict[int, dict[int, BucketState]] = {}
    try:
        for index, recover in unit.recovers:
            states[index] = states_of(unit, recover, buckets, folder, facts, FILL_ROWS)
            found = facts.found.setdefault(index, FoundUpdates())
            fresh[index] = look(recover, states[index], _own(slices, index), found)
        settle_unit(unit, facts)
        if facts.failure is None:
            for index, _ in unit.recovers:
                release(unit, index, facts.settled[index], states[index], fresh[index], facts)
            failpoints.hit(FP_WRITTEN)
    except Exception as e:
        facts.failure = UnitFailure.of(e)


def _own(slices: Slices, index: int) -> dict[int, Sequence[bytes]]:
    return {bucket: own for (target, bucket), own in slices.items() if target == index}


def _encode(fresh: Fresh) -> bytes:
    sink = pa.BufferOutputStream()
    columns = [*fresh.rows.columns, pa.array(fresh.hashes)]
    batch = pa.RecordBatch.from_arrays(columns, names=[*fresh.rows.schema.names, HASH_COLUMN])
    # Spark sends it three times: from the task, past the verdict, and back.
    codec = "lz4" if batch.nbytes >= COMPRESS_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _decode(data: bytes, recover: Recover) -> Fresh:
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    columns = [contiguous(column) for column in table.columns]
    rows = pa.RecordBatch.from_arrays(columns[:-1], schema=shape_of(recover).schema)
    return Fresh(rows, columns[-1].to_numpy())
