"""A collection at a time, read every way there is, against a model that folds the history in Python."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidemill.errors import DataCorrupted
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.part import ROW_GROUP_BYTES, ROW_GROUP_ROWS, Part
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import Snapshot
from tidemill.query import session_slots
from tidemill.query.job import Job
from tidemill.query.multiset import NegativeMultiplicity, SourceError
from tidemill.query.part_rows import PartRows
from tidemill.query.probe import Places, Probe
from tidemill.query.read import Input, Limits, prepare
from tidemill.query.run import collect, run
from tidemill.query.spark import SparkHost
from tidemill.types.arrow import shard_schema
from tidemill.types.model import FLOAT8, INT8, TEXT, Column, RelationDesc, SqlType, numeric

pytestmark = pytest.mark.spark

DESC = RelationDesc(
    (Column("k", INT8), Column("odd name", TEXT), Column("f", FLOAT8), Column("n", numeric(20, 2)))
)
NAMES = ["k", "odd%20name", "f", "n"]
TYPES = dict(zip(NAMES, DESC.types, strict=True))

WAYS = {
    "driver": Limits(),
    "retractions on the driver": Limits(small_rows=0),
    "retractions by Spark": Limits(small_rows=0, driver_rows=0),
    "hidden by a join": Limits(small_rows=0, driver_rows=0, bitmap_bytes=0),
    "more than the driver takes": Limits(small_rows=0, found_bytes=1),
    "copies by Spark": Limits(small_rows=0, driver_rows=0, expand_rows=0),
    "all summed by Spark": Limits(small_rows=0, driver_rows=0, retractions=0),
}

Row = tuple[Any, ...]


def everything(_: Probe, table: pa.Table) -> Places:
    """A probe that takes every row for a retracted one."""
    return np.arange(table.num_rows)


@dataclass
class History:
    """A shard, and the updates that it was given."""

    shard: Shard
    updates: list[tuple[int, Row, int]] = field(default_factory=list)

    @classmethod
    def create(cls, folder: Path) -> History:
        # No cache of parts: a damaged file shall be seen.
        blobs, cache = open_blobs(str(folder)), PartCache(max_bytes=0)
        return cls(Shard.create(blobs, f"u{uuid.uuid4().hex}", DESC, epoch=1, cache=cache))

    def append(
        self, updates: Sequence[tuple[int, Row, int]], errors: Sequence[tuple[int, str, int]] = ()
    ) -> None:
        """One part, one commit."""
        rows = [
            {**dict(zip(NAMES, row, strict=True)), "mz_timestamp": t, "mz_diff": d} for t, row, d in updates
        ]
        rows += [{"mz_timestamp": t, "mz_diff": d, "mz_error": text} for t, text, d in errors]
        table = pa.Table.from_pylist(rows, schema=shard_schema(DESC))
        upper = self.shard.upper or 0
        part = self.shard.write_part(table, job="test")
        self.shard.compare_and_append([part], upper, max(upper, *(r["mz_timestamp"] + 1 for r in rows)))
        self.updates += updates

    def at(
        self, time: int, columns: Sequence[str] = NAMES, extra: Iterable[tuple[Row, int]] = ()
    ) -> Counter[Row]:
        chosen = [NAMES.index(c) for c in columns]
        counts: Counter[Row] = Counter()
        for row, diff in [*((r, d) for t, r, d in self.updates if t <= time), *extra]:
            counts[same(row[i] for i in chosen)] += diff
        assert min(counts.values(), default=0) >= 0
        return +counts


def same(row: Iterable[Any]) -> Row:
    """Rows that are the same row have the same form."""
    return tuple(("NaN" if math.isnan(v) else v + 0.0) if isinstance(v, float) else v for v in row)


def read(
    spark: SparkHost, history: History, as_of: int, columns: Sequence[str] | None = None, **given: Any
) -> Counter[Row]:
    names = NAMES if columns is None else list(columns)
    wanted = [Column(name, TYPES[name]) for name in names]
    with history.shard.snapshot(as_of) as snapshot:
        table = collect(spark, "select * from t", {"t": Input(snapshot, columns, **given)}, wanted)
        beside = read_by_server(spark, Input(snapshot, columns, **given)) if names else None
    assert table.schema.names == names
    counts = Counter(same(row.values()) for row in table.to_pylist())
    assert beside in (counts, None)
    return counts


def read_by_server(spark: SparkHost, given: Input) -> Counter[Row] | None:
    """The same rows without Spark; None where they cannot be had so."""
    prepared = prepare(spark, given, Job(spark))
    if prepared.sum_all:
        return None
    counts: Counter[Row] = Counter()
    with closing(PartRows(prepared, lambda: None)) as batches:
        for batch in batches:
            for *row, diff in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                assert diff > 0
                counts[same(row)] += diff
    return counts


def test_long_rows_that_resemble_each_other_are_read_by_spark(spark: SparkHost, tmp_path: Path) -> None:
    """A few kilobytes of Parquet, thirty megabytes in memory."""
    history = History.create(tmp_path)
    rows: list[Row] = [(n, "x" * 100_000, None, None) for n in range(300)]
    history.append([(1, row, 1) for row in rows[:200]] + [(2, rows[0], -1)])
    history.append([(3, row, 1) for row in rows[200:]] + [(4, rows[1], -1)])
    limits = Limits(small_rows=0, driver_memory=5 << 20)
    with history.shard.snapshot(4) as snapshot:
        assert snapshot.bytes < 1 << 20
        few = Input(snapshot, limits=Limits(small_memory=5 << 20, driver_memory=5 << 20))
        assert not prepare(spark, few, Job(spark, "test")).small
        prepared = prepare(spark, Input(snapshot, limits=limits), Job(spark, "test"))
        assert prepared.table is not None and prepared.table.nbytes < 5 << 20
    assert read(spark, history, 4, limits=limits) == history.at(4)


def test_a_partition_of_a_result_has_few_rows_however_well_they_compress(
    spark: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's result of a gigabyte is lost on its way: that was sixteen partitions of ten million rows."""
    history = History.create(tmp_path)
    rows: list[Row] = [(n, "x" * 200, None, None) for n in range(5_000)]
    history.append([(1, row, 1) for row in rows])
    history.append([(2, row, -1) for row in rows[:1_000]])
    monkeypatch.setattr("tidemill.persist.part.ROW_GROUP_ROWS", 100)
    given, wanted = Limits(small_rows=0, driver_rows=0, retractions=0), [Column("k", INT8)]
    with history.shard.snapshot(2) as snapshot:
        inputs = {"t": Input(snapshot, ["k"], limits=given)}
        assert 50 < max(batch.num_rows for batch in run(spark, "select k from t", inputs, wanted)) < 500


def test_partitions_are_sized_for_one_query_and_not_for_the_next(spark: SparkHost) -> None:
    names = ("shuffle.partitions", "files.maxPartitionBytes", "adaptive.advisoryPartitionSizeInBytes")

    def settings_of(slot: session_slots.SessionSlot) -> list[int]:
        return [int(slot.session.conf.get(f"spark.sql.{name}")) for name in names]

    with spark.lease(small=False) as slot:
        usual = settings_of(slot)
        slot.expect(100 * ROW_GROUP_ROWS, 0, 20_000_000_000)
        assert settings_of(slot) == [100, *usual[1:]]
        slot.expect(1_000_000, 10 * ROW_GROUP_BYTES, 50_000_000)
        assert settings_of(slot) == [110, 5_000_000, 5_000_000]
        # As few bytes as a row group of rows that resemble each other has.
        slot.expect(1_000_000, 40 * ROW_GROUP_BYTES, 8_000_000)
        assert settings_of(slot) == [150, 200_000, 200_000]
    with spark.lease(small=False) as slot:
        assert settings_of(slot) == usual


def random_history(history: History, seed: int) -> None:
    """Insertions of some rows again and again, retractions of what is there, copies; parts of one and of many
    times."""
    from decimal import Decimal

    rng = random.Random(seed)
    rows: list[Row] = [
        (
            rng.choice([None, *range(20)]),
            rng.choice([None, "", "a", "b", "ü"]),
            rng.choice([None, 0.0, -0.0, math.nan, 1.5]),
            rng.choice([None, Decimal("0.00"), Decimal("1.10"), Decimal("-7.25")]),
        )
        for _ in range(rng.randint(1, 200))
    ]
    live: Counter[Row] = Counter()
    time = 10
    for _ in range(rng.randint(2, 7)):
        part: list[tuple[int, Row, int]] = []
        only_inserts = rng.random() < 0.4
        for _ in range(rng.randint(1, 150)):
            time += rng.random() < 0.05
            if live and not only_inserts and rng.random() < 0.4:
                row = rng.choice(list(live))
                diff = -rng.randint(1, live[row])
            else:
                row = rng.choice(rows)
                diff = 1 if only_inserts or rng.random() < 0.8 else rng.randint(2, 5)
            part.append((time, row, diff))
            live[same(row)] += diff
            live = +live
            rows.append(rng.choice(rows))
        # A row may be retracted in the form that compares equal to the one inserted: NaN for NaN, 0.0 for
        # -0.0.
        history.append([(t, tuple(math.nan if v == "NaN" else v for v in r), d) for t, r, d in part])
        time += 1


# No shrinking: a seed tells enough, and every example is dozens of Spark jobs.
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(seed=st.integers(0, 2**32), pick=st.integers(0, 100))
def test_every_way_of_reading_gives_the_multiset_of_the_model(
    spark: SparkHost, tmp_path: Path, seed: int, pick: int
) -> None:
    history = History.create(tmp_path / "data")
    random_history(history, seed)
    upper = history.shard.upper or 0
    as_of = 9 + pick * (upper - 10) // 100
    columns = random.Random(seed).sample(NAMES, random.Random(seed).randint(1, len(NAMES)))
    # Each way once, in turn at the end with all columns and at some time with some.
    points = ((upper - 1, None), (as_of, columns))
    for i, (way, limits) in enumerate(WAYS.items()):
        time, names = points[(i + seed) % 2]
        assert read(spark, history, time, names, limits=limits) == history.at(time, names or NAMES), way
    with patch.object(Probe, "places", everything):
        assert read(spark, history, upper - 1, limits=WAYS["retractions by Spark"]) == history.at(upper - 1)


def test_count_needs_no_column(spark: SparkHost, tmp_path: Path) -> None:
    history = History.create(tmp_path / "data")
    random_history(history, 7)
    n = [Column("n", INT8)]
    for time in (12, (history.shard.upper or 0) - 1):
        expected = history.at(time).total()
        for limits in WAYS.values():
            with history.shard.snapshot(time) as snapshot:
                given = {"t": Input(snapshot, [], limits=limits)}
                assert collect(spark, "select count(*) as n from t", given, n)["n"].to_pylist() == [expected]


def test_a_transaction_sees_its_own_writes(spark: SparkHost, tmp_path: Path) -> None:
    history = History.create(tmp_path / "data")
    old, new = (1, "old", 1.0, None), (2, "new", None, None)
    history.append([(10, old, 1), (10, new, 1)])
    mine: list[tuple[Row, int]] = [(old, -1), (new, 3)]
    rows = [{**dict(zip(NAMES, row, strict=True)), "mz_diff": d} for row, d in mine]
    schema = pa.schema([f for f in shard_schema(DESC) if f.name not in ("mz_timestamp", "mz_error")])
    extra = pa.Table.from_pylist(rows, schema=schema)
    for way, limits in WAYS.items():
        for names in (NAMES, ["k"]):
            got = read(spark, history, 10, names, extra=extra, limits=limits)
            assert got == history.at(10, names, mine), way


@pytest.mark.parametrize("way", WAYS)
def test_a_retraction_of_what_is_not_there_is_an_error(spark: SparkHost, tmp_path: Path, way: str) -> None:
    history = History.create(tmp_path / "data")
    history.append([(10, (1, "a", None, None), 1)])
    history.append([(11, (2, "b", 1.5, None), -2)])
    assert read(spark, history, 10, limits=WAYS[way]) == Counter({(1, "a", None, None): 1})
    with pytest.raises(NegativeMultiplicity) as caught:
        read(spark, history, 11, limits=WAYS[way])
    assert caught.value.sqlstate == "22000"
    assert caught.value.primary == (
        "Invalid data in source, saw retractions (2) for row that does not exist: (2,b,1.5,)"
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_live_error_fails_the_read_until_it_is_retracted(
    spark: SparkHost, tmp_path: Path, way: str
) -> None:
    history = History.create(tmp_path / "data")
    history.append([(10, (1, "a", None, None), 1)])
    history.append([(11, (2, "b", None, None), 1)], errors=[(11, "bad record at offset 3", 1)])
    history.append([], errors=[(12, "bad record at offset 3", -1)])
    assert read(spark, history, 10, limits=WAYS[way]).total() == 1
    with pytest.raises(SourceError, match="bad record at offset 3"):
        read(spark, history, 11, limits=WAYS[way])
    assert read(spark, history, 12, limits=WAYS[way]).total() == 2


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
@pytest.mark.parametrize("way", ["driver", "retractions on the driver"])
def test_a_damaged_part_is_named_and_hurts_nobody_else(
    spark: SparkHost, tmp_path: Path, way: str, damage: str
) -> None:
    hurt, well = History.create(tmp_path / "data"), History.create(tmp_path / "data")
    for history in (hurt, well):
        history.append([(10, (i, "x" * 50, float(i), None), 1) for i in range(200)])
    path = Path(hurt.shard.snapshot(10).locate(hurt.shard.parts[0]))
    data = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    if damage == "flipped":
        path.write_bytes(bytes([*data[:60], data[60] ^ 0xFF, *data[61:]]))
    with pytest.raises(DataCorrupted) as caught:
        read(spark, hurt, 10, limits=WAYS[way])
    assert path.name in caught.value.primary
    assert read(spark, well, 10, limits=WAYS[way]).total() == 200


def test_a_column_younger_than_the_part_is_null(spark: SparkHost, tmp_path: Path) -> None:
    history = History.create(tmp_path / "data")
    history.append([(10, (1, "a", None, None), 1)])
    young: SqlType = TEXT
    history.shard.evolve(RelationDesc((*DESC.columns, Column("late", young))))
    for limits in WAYS.values():
        with history.shard.snapshot(10) as snapshot:
            given = {"t": Input(snapshot, ["late", "k"], limits=limits)}
            got = collect(spark, "select * from t", given, [Column("late", young), Column("k", INT8)])
        assert got.to_pylist() == [{"late": None, "k": 1}]


def test_parts_that_the_jvm_cannot_open_are_read_in_the_tasks(
    spark: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History.create(tmp_path / "data")
    random_history(history, 5)
    last = (history.shard.upper or 0) - 1
    locate = Snapshot.locate

    def elsewhere(self: Snapshot, part: Part) -> str:
        return "s3:/" + locate(self, part)

    monkeypatch.setattr(Snapshot, "locate", elsewhere)
    for way in ("retractions on the driver", "retractions by Spark"):
        assert read(spark, history, last, ["n", "k"], limits=WAYS[way]) == history.at(last, ["n", "k"])
    (tmp_path / "data" / "shards" / history.shard.id / history.shard.parts[0].path).unlink()
    with pytest.raises(DataCorrupted, match=history.shard.parts[0].path):
        read(spark, history, last, limits=WAYS["all summed by Spark"])


def test_a_probe_that_misses_a_row_makes_an_error_and_no_wrong_answer(
    spark: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History.create(tmp_path / "data")
    history.append([(10, (1, "a", None, None), 1), (10, (2, "b", None, None), 1)])
    history.append([(11, (2, "b", None, None), -1)])

    def nothing(_: Probe, _table: pa.Table) -> Places:
        return np.zeros(0, np.int64)

    monkeypatch.setattr(Probe, "places", nothing)
    with pytest.raises(NegativeMultiplicity):
        read(spark, history, 11, limits=Limits(small_rows=0))


def test_parts_of_the_same_size_are_told_apart(spark: SparkHost, tmp_path: Path) -> None:
    history = History.create(tmp_path / "data")
    rows: list[Row] = [(i, "x", float(i % 7), None) for i in range(300)]
    for time in (10, 11, 12):
        history.append([(time, row, 1) for row in rows])
    history.append([(13, rows[i], -1 - i % 3) for i in range(0, 300, 7)])
    *same_size, _ = history.shard.parts
    assert len({part.bytes for part in same_size}) == 1
    for way, limits in WAYS.items():
        assert read(spark, history, 13, limits=limits) == history.at(13), way


def test_columns_that_hardly_tell_rows_apart(spark: SparkHost, tmp_path: Path) -> None:
    history = History.create(tmp_path / "data")
    rows: list[Row] = [(i, "ab"[i % 2], float(i % 3), None) for i in range(400)]
    history.append([(10, row, 1) for row in rows])
    history.append([(11, row, -1) for row in rows[::9]])
    extra = pa.table(
        {"odd%20name": ["a"], "mz_diff": pa.array([-1], pa.int64())},
    )
    seen: list[int] = []
    places = Probe.places

    def watched(self: Probe, table: pa.Table) -> Places:
        found = places(self, table)
        seen.append(len(found))
        return found

    for names in (["odd%20name"], ["f", "odd%20name"]):
        with patch.object(Probe, "places", watched):
            got = read(spark, history, 11, names, limits=Limits(small_rows=0))
        assert got == history.at(11, names)
        # More columns were looked at, and so only what was retracted was found.
        assert seen.pop() == len(rows[::9])
    # A transaction that gives no more than the query's columns: these must do.
    got = read(spark, history, 11, ["odd%20name"], limits=Limits(small_rows=0), extra=extra)
    assert got == history.at(11, ["odd%20name"], [((None, "a", None, None), -1)])


def test_a_column_with_the_name_of_what_spark_knows_of_a_file(spark: SparkHost, tmp_path: Path) -> None:
    desc = RelationDesc((Column("_metadata", INT8), Column("row_index", TEXT)))
    shard = Shard.create(open_blobs(str(tmp_path / "data")), "u1", desc, epoch=1)

    def updates(ids: list[int], time: int, diff: int) -> pa.Table:
        rows = [{"_metadata": i, "row_index": "x", "mz_timestamp": time, "mz_diff": diff} for i in ids]
        return pa.Table.from_pylist(rows, schema=shard_schema(desc))

    for time, ids, diff in ((1, list(range(50)), 1), (2, [3, 7], -1)):
        part = shard.write_part(updates(ids, time, diff), job="test")
        shard.compare_and_append([part], shard.upper or 0, time + 1)
    for limits in WAYS.values():
        with shard.snapshot(2) as snapshot:
            given = {"t": Input(snapshot, ["_metadata"], limits=limits)}
            got = collect(spark, "select * from t", given, [Column("_metadata", INT8)])
        assert sorted(got.column(0).to_pylist()) == [i for i in range(50) if i not in (3, 7)]
