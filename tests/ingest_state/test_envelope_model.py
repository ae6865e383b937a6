"""UPSERT with errors, ORDER BY, values that were left out, and TRUNCATE, against folds in plain Python;
through the exchange, the state and its hydration."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.envelope.keys import KeyShape
from tidemill.envelope.unavailable import UNKNOWN_TEXT
from tidemill.ingest.exchange import BUCKETS, encode, gather, partition_by_key
from tidemill.ingest.history import CollectionHistory
from tidemill.ingest.state import StateStore, prepare
from tidemill.persist.local import LocalBlobs
from tidemill.persist.part import conform
from tidemill.persist.shard import Shard
from tidemill.query.multiset import check_errors
from tidemill.types.identity import consolidate
from tidemill.types.model import BYTEA, INT8, TEXT, Column, RelationDesc

COLUMNS = (Column("k", INT8), Column("a", TEXT), Column("b", TEXT))
PLAIN = RelationDesc(COLUMNS, (Column("mz_key", BYTEA),))
ORDERED = RelationDesc(
    COLUMNS, (Column("mz_key", BYTEA), Column("mz_order1", INT8), Column("mz_order2", INT8))
)
SHAPES = {
    False: KeyShape.of(PLAIN, ["k", "mz_key"]),
    True: KeyShape.of(ORDERED, ["k", "mz_key"], ["mz_order1", "mz_order2"]),
}


@dataclass(frozen=True)
class Record:
    """`slot` names an error's slot in place of a key. Without values and error it is a deletion."""

    key: int | None = None
    slot: bytes | None = None
    values: tuple[str | None, str | None] | None = None
    error: str | None = None
    lacking: tuple[int, ...] = ()
    stamp: int = 0
    truncate: bool = False


@dataclass(frozen=True)
class Row:
    values: tuple[str | None, str | None] | None  # None: an error, or a deletion that is remembered
    error: str | None
    order: tuple[int, int]


Key = tuple[int | None, bytes | None]


def fold(rows: dict[Key, Row], record: Record, offset: int, ordered: bool) -> None:
    """One record after the other, as the documents tell it."""
    if record.truncate:
        rows.clear()
        return
    key = (record.key, record.slot)
    old = rows.get(key)
    order = (record.stamp, offset)
    if record.error is None and record.values is None:
        if not ordered or record.slot is not None:
            rows.pop(key, None)
        elif old is None or old.error is not None or order > old.order:
            rows[key] = Row(None, None, order)
        return
    new = Row(record.values, record.error, order)
    if record.lacking and record.values is not None:
        new = filled(record, old, order)
    elif ordered and record.error is None and old is not None and old.error is None and order <= old.order:
        return
    rows[key] = new


def filled(record: Record, old: Row | None, order: tuple[int, int]) -> Row:
    assert record.values is not None
    values = list(record.values)
    for column in record.lacking:
        if old is None or old.values is None:
            name = COLUMNS[record.lacking[0]].name
            return Row(None, UNKNOWN_TEXT.format(column=name), order)
        values[column - 1] = old.values[column - 1]
    return Row((values[0], values[1]), None, order)


def table_of(records: Sequence[Record], first: int, ordered: bool) -> pa.Table:
    table = pa.table(
        {
            "k": pa.array([r.key for r in records], pa.int64()),
            "a": pa.array([None if r.values is None else r.values[0] for r in records], pa.string()),
            "b": pa.array([None if r.values is None else r.values[1] for r in records], pa.string()),
            "mz_error": pa.array([r.error for r in records], pa.string()),
            "mz_key": pa.array([r.slot for r in records], pa.binary()),
        }
    )
    if ordered:
        table = table.append_column("mz_order1", pa.array([r.stamp for r in records], pa.int64()))
        table = table.append_column(
            "mz_order2", pa.array([first + i for i in range(len(records))], pa.int64())
        )
    table = table.append_column("mz_offset", pa.array([first + i for i in range(len(records))], pa.int64()))
    gone = [r.values is None and r.error is None and not r.truncate for r in records]
    table = table.append_column("mz_tombstone", pa.array(gone, pa.bool_()))
    if any(r.lacking for r in records):
        lacking = pa.array([list(r.lacking) for r in records], pa.list_(pa.int32()))
        table = table.append_column("mz_unavailable", lacking)
    if any(r.truncate for r in records):
        table = table.append_column("mz_truncate", pa.array([r.truncate for r in records], pa.bool_()))
    return table


@dataclass
class Collection_:
    """The shard, as `History` wants it."""

    since: int = 0
    updates_: list[pa.Table] = field(default_factory=list[pa.Table])

    @property
    def length(self) -> int:
        return sum(table.num_rows for table in self.updates_)

    def snapshot(self, as_of: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        return iter(self.updates_)

    def updates(self, lower: int, upper: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        raise AssertionError("never behind")


def tick(
    folder: Path, shard: Collection_, desc: RelationDesc, ordered: bool, upper: int, batches: list[pa.Table]
) -> None:
    shape = SHAPES[ordered]
    states = prepare(StateStore(str(folder)), "s", shape, range(BUCKETS), upper, shard).states
    slices: dict[int, list[bytes]] = {}
    for batch in batches:
        order = (0, int(batch.column("mz_offset")[0].as_py()))
        for bucket, rows in partition_by_key(batch, shape.key).items():
            slices.setdefault(bucket, []).insert(0, encode(rows, order))
    for bucket, state in states.items():
        if bucket in slices:
            for updates in state.apply(gather(slices[bucket]), upper):
                shard.updates_.append(conform(pa.Table.from_batches([updates]), desc))
        state.commit(upper + 1)


def seen(shard: Collection_) -> tuple[Counter[Any], Counter[str]]:
    """The relation's rows, and its errors."""
    if not shard.updates_:
        return Counter(), Counter()
    table = pa.concat_tables(shard.updates_).select(["k", "a", "b", "mz_diff", "mz_error"])
    table = consolidate(table, RelationDesc(()))
    errors: Counter[str] = Counter()
    rows: Counter[Any] = Counter()
    for row in table.to_pylist():
        assert row["mz_diff"] > 0
        if row["mz_error"] is None:
            rows[(row["k"], row["a"], row["b"])] += row["mz_diff"]
        elif row["mz_error"]:
            errors[row["mz_error"]] += row["mz_diff"]
    return rows, errors


keys = st.integers(0, 4)
texts = st.sampled_from(["x", "y", None])
stamps = st.integers(0, 6)
values = st.tuples(texts, texts)
records = st.one_of(
    st.builds(Record, key=keys, values=values, stamp=stamps),
    st.builds(Record, key=keys, values=values, stamp=stamps),
    st.builds(Record, key=keys, stamp=stamps),
    st.builds(Record, key=keys, error=st.sampled_from(["bad 1", "bad 2"]), stamp=stamps),
    st.builds(Record, slot=st.sampled_from([b"\0", b"\1r"]), error=st.just("no key"), stamp=stamps),
    st.builds(Record, slot=st.sampled_from([b"\0", b"\1r"]), stamp=stamps),
)
debezium = st.one_of(
    records,
    st.builds(Record, key=keys, values=values, lacking=st.sampled_from([(1,), (2,), (1, 2)])),
    st.builds(Record, truncate=st.just(True)),
)


def check(folder: Path, ordered: bool, ticks: list[tuple[list[Record], int, bool]]) -> None:
    desc = ORDERED if ordered else PLAIN
    shard, rows = Collection_(), dict[Key, Row]()
    offset = 0
    for upper, (said, cut, lose) in enumerate(ticks, start=1):
        if lose:
            shutil.rmtree(folder, ignore_errors=True)
        batches: list[pa.Table] = []
        for at in range(0, len(said), cut):
            batches.append(table_of(said[at : at + cut], offset + at, ordered))
        for i, record in enumerate(said):
            fold(rows, record, offset + i, ordered)
        offset += len(said)
        tick(folder, shard, desc, ordered, upper, batches)
        live, errors = seen(shard)
        visible = {key: row.values for key, row in rows.items() if row.values is not None}
        assert live == Counter((k, *v) for (k, _), v in visible.items())
        assert errors == Counter(row.error for row in rows.values() if row.error is not None)


def ticks_of(record: st.SearchStrategy[Record]) -> st.SearchStrategy[list[tuple[list[Record], int, bool]]]:
    one = st.tuples(st.lists(record, min_size=1, max_size=12), st.integers(1, 12), st.booleans())
    return st.lists(one, min_size=1, max_size=5)


@given(ticks_of(records))
@settings(max_examples=60, deadline=None)
def test_upsert_with_errors(tmp_path_factory: pytest.TempPathFactory, ticks: Any) -> None:
    check(tmp_path_factory.mktemp("state"), False, ticks)


@given(ticks_of(records))
@settings(max_examples=80, deadline=None)
def test_upsert_order_by(tmp_path_factory: pytest.TempPathFactory, ticks: Any) -> None:
    check(tmp_path_factory.mktemp("state"), True, ticks)


@given(ticks_of(debezium))
@settings(max_examples=80, deadline=None)
def test_debezium_upsert(tmp_path_factory: pytest.TempPathFactory, ticks: Any) -> None:
    check(tmp_path_factory.mktemp("state"), False, ticks)


def test_the_four_cases_of_the_picture(tmp_path: Path) -> None:
    """As the document draws them: key, value, timestamp and offset before, what comes, and what is left."""
    shard = Collection_()
    before = [
        Record(1, values=("old1", None), stamp=100),
        Record(2, values=("old2", None), stamp=201),
        Record(3, error="some_error1"),
        Record(4, values=("old4", None), stamp=300),
    ]
    tick(tmp_path, shard, ORDERED, True, 1, [table_of(before, 1, True)])
    after = [
        Record(1, values=("new1", None), stamp=200),
        Record(2, values=("new2", None), stamp=200),
        Record(3, error="some_error2"),
        Record(4, values=("new4", None), stamp=300),
    ]
    tick(tmp_path, shard, ORDERED, True, 2, [table_of(after, 5, True)])
    rows, errors = seen(shard)
    assert rows == Counter([(1, "new1", None), (2, "old2", None), (4, "new4", None)])
    assert errors == Counter(["some_error2"])


def test_a_deleted_key_does_not_come_back_by_an_older_record(tmp_path: Path) -> None:
    shard = Collection_()
    row = Record(1, values=("v", None), stamp=5)
    tick(tmp_path, shard, ORDERED, True, 1, [table_of([row], 0, True)])
    tick(tmp_path, shard, ORDERED, True, 2, [table_of([Record(1, stamp=9)], 1, True)])
    shutil.rmtree(tmp_path)
    tick(tmp_path, shard, ORDERED, True, 3, [table_of([replace(row, stamp=8)], 2, True)])
    assert seen(shard) == (Counter(), Counter())
    # Nobody takes what is remembered of it for an error.
    updates = pa.concat_tables(shard.updates_).select(["k", "a", "b", "mz_diff", "mz_error"])
    assert check_errors(consolidate(updates, RelationDesc(()))).num_rows == 0
    tick(tmp_path, shard, ORDERED, True, 4, [table_of([replace(row, stamp=10)], 3, True)])
    assert seen(shard)[0] == Counter([(1, "v", None)])


def test_what_is_remembered_of_deleted_keys_goes_with_the_history(tmp_path: Path) -> None:
    """In a real shard: compaction lets it go when nobody can read the deletion's time any more. A state that
    still has it, and retracts it later, does no harm."""
    blobs = LocalBlobs(str(tmp_path / "data"))
    shard = Shard.create(blobs, "s", ORDERED, epoch=1)
    state = tmp_path / "state"

    def history(as_of: int) -> list[pa.Table]:
        return list(CollectionHistory(blobs, "s").snapshot(as_of, ()))

    def write(time: int, *said: Record) -> None:
        memory = Collection_(updates_=history(time - 1))
        before = len(memory.updates_)
        tick(state, memory, ORDERED, True, time, [table_of(said, 10 * time, True)])
        new = memory.updates_[before:]
        parts = [shard.write_part(pa.concat_tables(new), job="test")] if new else []
        shard.compare_and_append(parts, shard.upper, time + 1)

    def hidden() -> int:
        rows = consolidate(pa.concat_tables(history(shard.state.upper)), ORDERED, time=False)
        return sum(row["mz_diff"] for row in rows.to_pylist() if row["mz_error"] == "")

    row = Record(1, values=("v", None), stamp=5)
    write(1, row, Record(2, values=("w", None), stamp=1))
    write(2, Record(1, stamp=9))
    assert hidden() == 1
    shard.downgrade_since(1, record=True)
    shard.compact(everything=True)
    assert hidden() == 1, "the deletion's time can still be read"
    write(3, Record(2, values=("w", None), stamp=2))
    shard.downgrade_since(2, record=True)
    shard.compact(everything=True)
    assert hidden() == 0
    write(4, replace(row, stamp=10))
    assert hidden() == -1
    shutil.rmtree(state)
    write(5, replace(row, values=("again", None), stamp=11))
    shard.downgrade_since(5, record=True)
    shard.compact(everything=True)
    assert hidden() == 0
    with shard.snapshot(5) as snapshot:
        rows = check_errors(snapshot.read(["k", "a"]))
    assert sorted((r["k"], r["a"]) for r in rows.to_pylist()) == [(1, "again"), (2, "w")]
