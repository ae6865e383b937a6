"""The two halves of a unit whose records must meet by key: upserts, and (`recovery`) CDCv2 streams.

`part_by_key` reads each record and sends it to its key's bucket. `apply_buckets` gets all records of some
buckets, looks up the rows of the keys in the state, and writes the changes. Between them is Spark's shuffle,
or a dictionary. If any reader of a unit failed, the unit is not applied: half of a time's records would
produce a state that never existed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidemill import failpoints
from tidemill.envelope.keys import KeyShape
from tidemill.ingest.changes import incomplete_changes
from tidemill.ingest.exchange import BUCKETS, encode, gather, partition_by_key
from tidemill.ingest.history import CollectionHistory
from tidemill.ingest.recovery.partition import Spread
from tidemill.ingest.recovery.shares import recover_here
from tidemill.ingest.recovery.values import FoundUpdates
from tidemill.ingest.state import KeyNotUnique, prepare, shared
from tidemill.ingest.task import FP_READ, FP_WRITTEN, PartWriter, named, piece_changes, read, stamped
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure, UnitTarget, UpsertWork
from tidemill.sources.contract import OFFSET_COLUMN, SourceBatch, SourcePiece
from tidemill.types.names import physical_names

# Records of one target that are partitioned together: fewer and larger slices for the shuffle.
EXCHANGE_ROWS = 262_144

# Updates that one task reads to fill a missing state: a second of its core, during which the sources that
# share its job wait. If there are more, the unit gives up, and its work is divided.
FILL_ROWS = 200_000

# (position of the target, bucket, the slice as bytes)
Slice = tuple[int, int, bytes]
# For one unit: (position of the target, bucket) -> slices.
Slices = Mapping[tuple[int, int], Sequence[bytes]]


def part_by_key(unit: Unit, pieces: Sequence[SourcePiece], send: Callable[[Slice], None]) -> UnitFacts:
    """Read the pieces, `send` the slices of keyed targets, and write the parts of the others."""
    facts = UnitFacts()
    try:
        writers = {
            index: PartWriter(unit, index, target, facts)
            for index, target in enumerate(unit.targets)
            if target is not None and not target.keyed
        }
        for index, _ in unit.recovers:
            facts.found[index] = FoundUpdates()
        for piece in pieces:
            gathered: dict[int, list[pa.RecordBatch]] = {}
            spreads = {
                index: Spread(recover, piece.partition, partial(_send_slice, send, index), facts.found[index])
                for index, recover in unit.recovers
            }
            changes = piece_changes(unit, piece, facts)
            for batch in read(unit, [piece], facts):
                target = unit.targets[batch.output]
                if target is None:
                    continue
                if batch.output in changes:
                    found = changes[batch.output]
                    if target.upsert is None:
                        for updates in found.updates(batch.rows, unit.time):
                            writers[batch.output].add(updates)
                        continue
                    batch = replace(batch, rows=found.records(batch.rows))
                if target.recover is not None:
                    spreads[batch.output].add(batch)
                elif target.upsert is None:
                    writer = writers[batch.output]
                    writer.add(stamped(batch.rows, writer.names, unit.time))
                else:
                    _gather(batch, gathered, target, piece, send)
            for output, batches in gathered.items():
                target = unit.targets[output]
                if target is not None:
                    _send(output, batches, target, piece, send)
            for spread in spreads.values():
                spread.flush()
        failpoints.hit(FP_READ)
        for writer in writers.values():
            writer.flush()
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    return facts


def _send_slice(send: Callable[[Slice], None], output: int, bucket: int, data: bytes) -> None:
    send((output, bucket, data))


def _gather(
    batch: SourceBatch,
    gathered: dict[int, list[pa.RecordBatch]],
    target: UnitTarget,
    piece: SourcePiece,
    send: Callable[[Slice], None],
) -> None:
    batches = gathered.setdefault(batch.output, [])
    if batch.rows.num_rows:
        batches.append(batch.rows)
    if sum(b.num_rows for b in batches) >= EXCHANGE_ROWS:
        _send(batch.output, batches, target, piece, send)
        batches.clear()


def _send(
    output: int,
    batches: list[pa.RecordBatch],
    target: UnitTarget,
    piece: SourcePiece,
    send: Callable[[Slice], None],
) -> None:
    if not batches or target.upsert is None:
        return
    table = pa.concat_tables(map(_table, batches), promote_options="default").combine_chunks()
    # A column that is not null in the source may be null in its collection, because an error has no values.
    names = named(table, physical_names(target.desc))
    fields = [f.with_nullable(True).with_name(n) for f, n in zip(table.schema, names, strict=True)]
    table = pa.table(table.columns, schema=pa.schema(fields))
    rank = piece.partition if isinstance(piece.partition, int) else 0
    order = (rank, int(table.column(OFFSET_COLUMN)[0].as_py()))
    for bucket, rows in partition_by_key(table, _shape(target, target.upsert).key).items():
        send((output, bucket, encode(rows, order)))


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _shape(target: UnitTarget, upsert: UpsertWork) -> KeyShape:
    return KeyShape.of(target.desc, upsert.key, upsert.order)


def buckets_of(share: int, shares: int) -> list[int]:
    """The buckets of one of `shares` tasks. Every unit has all buckets: a state that is not advanced now
    would have to be filled from the collection later."""
    return [bucket for bucket in range(BUCKETS) if bucket % shares == share]


def apply_buckets(unit: Unit, share: int, shares: int, slices: Slices, folder: str) -> UnitFacts:
    """Write the changes that the records of some buckets cause, as parts. `folder` holds the worker's
    states."""
    facts = UnitFacts()
    try:
        for index, target in enumerate(unit.targets):
            if target is not None and target.upsert is not None:
                _apply(unit, index, target, buckets_of(share, shares), slices, folder, facts)
        failpoints.hit(FP_WRITTEN)
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    return facts


def _apply(
    unit: Unit,
    index: int,
    target: UnitTarget,
    buckets: Sequence[int],
    slices: Slices,
    folder: str,
    facts: UnitFacts,
) -> None:
    if target.upsert is None:
        return
    began = time.monotonic()
    shape = _shape(target, target.upsert)
    history = CollectionHistory(unit.blobs, target.shard)
    most = FILL_ROWS if unit.shares == 1 else None
    try:
        prepared = prepare(shared(folder), target.shard, shape, buckets, target.upsert.upper, history, most)
    except KeyNotUnique as e:
        raise e if target.changes is None else incomplete_changes(target.changes.place, e) from e
    facts.hits += prepared.hits
    facts.misses += prepared.misses + prepared.behind
    writer = PartWriter(unit, index, target, facts)
    for bucket in buckets:
        state = prepared.states[bucket]
        own = slices.get((index, bucket))
        if own:
            for updates in state.apply(gather(own), unit.time):
                writer.add(updates)
        state.commit(unit.time + 1)
        facts.state_bytes += state.bytes
    facts.state_seconds += time.monotonic() - began
    writer.flush()


def discard_states(unit: Unit, folder: str) -> None:
    """Remove the states of changes that are no longer upserts."""
    for target in unit.targets:
        if target is not None and target.changes is not None and target.upsert is None:
            shared(folder).discard(target.shard)


def run_here(unit: Unit, folder: str) -> UnitFacts:
    """Run both halves in this process."""
    slices: dict[tuple[int, int], list[bytes]] = {}

    def send(item: Slice) -> None:
        slices.setdefault(item[:2], []).append(item[2])

    facts = part_by_key(unit, unit.pieces, send)
    if facts.failure is None and unit.upserts and unit.stands(facts):
        facts.add(apply_buckets(unit, 0, 1, slices, folder))
    if facts.failure is None and unit.recovers:
        recover_here(unit, range(BUCKETS), slices, folder, facts)
    return facts


def grouped(items: Iterable[tuple[int, Slice]]) -> dict[int, dict[tuple[int, int], list[bytes]]]:
    """Slices of several units, by unit."""
    found: dict[int, dict[tuple[int, int], list[bytes]]] = {}
    for unit, (target, bucket, data) in items:
        found.setdefault(unit, {}).setdefault((target, bucket), []).append(data)
    return found


def sent(unit: Unit, pieces: Sequence[SourcePiece]) -> Iterator[Slice | UnitFacts]:
    """`part_by_key` as a stream: first slices, then the facts."""
    waiting: list[Slice] = []
    facts = UnitFacts()
    for piece in pieces:
        facts.add(part_by_key(unit, [piece], waiting.append))
        yield from waiting
        waiting.clear()
        if facts.failure is not None:
            break
    yield facts
