"""Whole topics that a real Debezium wrote, cut and repeated at every point, under ENVELOPE DEBEZIUM in the
tick: the relation is always what a model in plain Python says.

The model remembers every record that it has seen, and so needs no order of positions. Topics are those of
the captures, put together from the snapshot on; one of them has what a connector repeated after kill -9.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.changing import ChangeHouse, ChangingSource
from ingest.test_changes import STEPS
from kafka.kafka_decoders import spec
from kafka.test_kafka_changes import encoded, json_maker, make
from kafka.test_kafka_debezium import captured
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.decode.json import JsonDecoder
from tidemill.errors import TidemillError
from tidemill.ingest.changes import ChangeWork, PieceChanges
from tidemill.sources.contract import SourceBatch, SourcePiece, UpstreamError
from tidemill.sources.kafka.envelopes import plan
from tidemill.sources.kafka.outputs import placed
from tidemill.sources.offsets import Offsets
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN
from tidemill.types.json import canonical_json

LETTERS = [
    *("a_snapshot", "b_crud", "c_pkupdate", "d_tx2tables", "e_multirow", "e2_copy_or_multi_update"),
    *("f_toast", "i_interleaved", "j_incremental", "h1_graceful_restart", "h2_kill9_repeat"),
]
TABLES = ["customers", "orders", "bulk", "bigdoc"]
TOPICS = [f"{place}.{table}" for place in ("pgf.public", "mdb.app") for table in TABLES]

Record = dict[str, Any]
Rows = Counter[tuple[Any, ...]]


@functools.cache
def topic_of(name: str, *more: str) -> tuple[Record, ...]:
    """All that was captured of a topic, in order; the offsets are ours."""
    found = [r for letter in [*LETTERS, *more] for r in captured(f"{name[:3]}_{letter}").get(name, [])]
    found.sort(key=lambda r: r["offset"])
    return tuple({**r, "offset": at} for at, r in enumerate(found))


# -- the model


def model(records: Sequence[Record]) -> Rows:
    """What a table holds behind these records of one partition, each of which counts once."""
    rows: Rows = Counter()
    seen: set[str] = set()
    snapshot: object = None
    for r in records:
        value = r["value"]
        if value is None:
            continue
        source = value["source"]
        place = [source.get(name) for name in ("sequence", "lsn", "file", "pos", "row")]
        identity = json.dumps([source["snapshot"], place, r["key"], value["op"]])
        if source["snapshot"] not in ("false", "incremental"):
            if place[1:4] != snapshot:
                rows.clear()
                seen.clear()
                snapshot = place[1:4]
            identity = json.dumps([r["key"]])
        if identity in seen:
            continue
        seen.add(identity)
        key = canonical_json(json.dumps(r["key"]))
        if source["snapshot"] == "false":
            if value["before"] is not None:
                rows[key, canonical_json(json.dumps(value["before"]))] -= 1
        else:
            for row in [row for row in rows if row[0] == key]:
                del rows[row]
        if value["after"] is not None:
            rows[key, canonical_json(json.dumps(value["after"]))] += 1
    return Counter({row: count for row, count in rows.items() if count})


# -- what is tested


def planned() -> Any:
    decoder = JsonDecoder()
    layout = plan(spec("debezium", key="json", value="json"), decoder.columns, decoder.columns)
    return placed("of.t", layout.output)


def batch_of(records: Sequence[Record], partition: int = 0) -> pa.RecordBatch:
    return make(json_maker(), encoded(records), partition)


def streamed_only(records: Sequence[Record]) -> list[Record]:
    found = [r for r in records if r["value"] is None or r["value"]["op"] != "r"]
    return [{**r, "offset": at} for at, r in enumerate(found)]


def kept(batch: pa.RecordBatch, pieces: Sequence[tuple[int, int]]) -> Rows:
    """The sum of a unit's updates: read once, and again from where its pieces really begin."""
    output = planned()
    offsets = batch.column("mz_offset").to_pylist()
    work = ChangeWork(output.key, {}, {}, False, output.place)
    read = [SourcePiece(0, lower, upper) for lower, upper in pieces]
    while True:
        filters = {(0, piece.lower): PieceChanges(work, output.desc, piece) for piece in read}
        rows: Rows = Counter()
        for piece in read:
            inside = [n for n, offset in enumerate(offsets) if piece.lower <= offset < piece.upper]
            part = batch.take(pa.array(inside, pa.int64()))
            for updates in filters[0, piece.lower].updates(part, 1):
                for row in updates.to_pylist():
                    assert row[ERROR_COLUMN] is None
                    rows[row["key"], row["data"]] += row[DIFF_COLUMN]
        settled = work.settle({name: each.summary for name, each in filters.items()})
        if not settled.starts:
            return Counter({row: count for row, count in rows.items() if count})
        work = ChangeWork(output.key, {}, settled.starts, False, output.place)


@pytest.mark.parametrize("topic", [name for name in TOPICS if name.endswith(("bulk", "customers"))])
def test_streamed_changes_cut_and_repeated_at_every_point(topic: str) -> None:
    """For each i <= j: up to j, then again from i. In one piece, and in one for each of the two."""
    records = streamed_only(topic_of(topic))
    batch, count = batch_of(records), len(records)
    wanted = model(records)
    offsets = batch.column("mz_offset").to_pylist()
    step = 1 if count < 40 else 7
    for i, j in itertools.combinations_with_replacement(range(0, count + 1, step), 2):
        at = [n for n, offset in enumerate(offsets) if offset < j]
        at += [n for n, offset in enumerate(offsets) if offset >= i]
        where = [o for o in offsets if o < j] + [o - i + j for o in offsets if o >= i]
        repeated = batch.take(pa.array(at, pa.int64()))
        names = batch.schema.names
        repeated = repeated.set_column(names.index("mz_offset"), "mz_offset", pa.array(where, pa.int64()))
        end = count - i + j
        assert kept(repeated, [(0, end)]) == wanted, (i, j)
        assert kept(repeated, [(0, j), (j, end)]) == wanted, (i, j)


@dataclass(frozen=True)
class ReplayReader:
    topics: tuple[tuple[Record, ...], ...]
    batch: int

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        assert isinstance(piece.partition, int)
        for first in range(piece.lower, piece.upper, self.batch):
            end = min(first + self.batch, piece.upper)
            rows = batch_of(self.topics[piece.partition][first:end], piece.partition)
            yield SourceBatch(0, rows, end - first, 8 * (end - first))


class ReplaySource(ChangingSource):
    """Topics of records as they were captured."""

    def __init__(self, topics: Sequence[Sequence[Record]]) -> None:
        super().__init__([() for _ in topics])
        self.records = tuple(tuple({**r, "offset": at} for at, r in enumerate(records)) for records in topics)
        self.outputs = (planned(),)

    def reader(self) -> Any:
        return ReplayReader(self.records, self.batch)


def play(seed: int, topics: Sequence[Sequence[Record]], *, crashes: bool) -> None:
    """Read the topics, each one partition, in ticks of random sizes; behind each compare with the model."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        house = ChangeHouse(Path(folder) / "data", ReplaySource(topics))
        try:
            ends = [0] * len(topics)
            while ends != [len(records) for records in topics]:
                most = rng.choice([1, 3, 10, 100])
                ends = [
                    min(len(records), end + rng.randint(0, most))
                    for end, records in zip(ends, topics, strict=True)
                ]
                house.source.stands = Offsets({n: end for n, end in enumerate(ends) if end})
                house.source.batch = rng.choice([1, 2, 7, 100])
                if crashes and rng.random() < 0.5:
                    failpoints.arm(f"{rng.choice(STEPS)}=error")
                    try:
                        house.tick(rng.randint(1, 4))
                    except failpoints.FailpointError:
                        house.again()
                    except TidemillError:
                        pass
                    finally:
                        failpoints.arm("")
                while house.tick(rng.randint(1, 4)):
                    pass
                wanted: Rows = Counter()
                for records, end in zip(topics, ends, strict=True):
                    wanted.update(model(records[:end]))
                assert house.rows() == wanted, (seed, ends)
        finally:
            house.close()


def repeated(records: Sequence[Record], rng: random.Random) -> list[Record]:
    """With some stretches that come again, each ending where the topic stood or further."""
    out: list[Record] = []
    begin = 0
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        end = rng.randint(begin, len(records))
        out += records[begin:end]
        begin = rng.randint(0, end)
    return [*out, *records[begin:]]


def scattered(records: Sequence[Record], partitions: int) -> list[list[Record]]:
    """As a topic of several partitions: each key in one of them."""
    topics: list[list[Record]] = [[] for _ in range(partitions)]
    for r in records:
        topics[sum(json.dumps(r["key"]).encode()) % partitions].append(r)
    return topics


def replay(seed: int, *, crashes: bool) -> None:
    rng = random.Random(seed)
    topics = scattered(topic_of(rng.choice(TOPICS)), rng.choice([1, 1, 2, 3]))
    play(seed, [repeated(records, rng) for records in topics], crashes=crashes)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_any_repetition_in_any_order_of_partitions(seed: int) -> None:
    replay(seed, crashes=False)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_any_restart_point(seed: int) -> None:
    replay(seed, crashes=True)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@settings(max_examples=2000)
@given(st.integers(0, 2**32), st.booleans())
def test_thousands_of_repetitions(seed: int, crashes: bool) -> None:
    replay(seed, crashes=crashes)


def with_source(record: Record, changed: Record) -> Record:
    value = record["value"]
    return record if value is None else {**record, "value": {**value, "source": value["source"] | changed}}


CAPTURED = 'connector "mariadb", name "mdb"'
OTHER_SERVER, NO_PLACE = {"server_id": 223345}, {"pos": None}


@pytest.mark.parametrize("ways", [1, 3])
@pytest.mark.parametrize(
    ("changed", "primary", "found"),
    [
        (
            OTHER_SERVER,
            "the changes come from another upstream than before",
            'server_id 223344; in topic "of.t", partition 0 they come from {connector}, server_id 223345.',
        ),
        (
            NO_PLACE,
            "a change has no position in the log of its upstream",
            "partition 0, offset {offset}, key {key}: source has file mariadb-bin.000001, pos null",
        ),
    ],
    ids=["server_id", "position"],
)
def test_damage_in_a_captured_topic(changed: Record, primary: str, found: str, ways: int) -> None:
    """From any record of the log on; what is before it stays as it was, also after a restart."""
    records = streamed_only(topic_of("mdb.app.customers"))
    for at in [n for n, r in enumerate(records) if n and r["value"] is not None][::9]:
        damaged = [with_source(r, changed) for r in records[at:]]
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            house = ChangeHouse(Path(folder) / "data", ReplaySource([[*records[:at], *damaged]]))
            try:
                house.source.stands = Offsets({0: at})
                while house.tick(ways):
                    pass
                before = house.rows()
                assert before == model(records[:at])
                house.source.stands = Offsets({0: len(records)})
                for _ in range(2):
                    with pytest.raises(UpstreamError) as stopped:
                        house.tick(ways)
                    assert stopped.value.primary == primary and stopped.value.permanent
                    key = canonical_json(json.dumps(records[at]["key"]))
                    assert found.format(offset=at, key=key, connector=CAPTURED) in (
                        stopped.value.detail or ""
                    )
                    assert house.rows() == before
                    house.again()
            finally:
                house.close()


@pytest.mark.parametrize("topic", ["pgf.public.customers", "mdb.app.customers"])
def test_a_column_that_is_added_shows_as_rows_that_are_not_there(topic: str) -> None:
    """A limit of JSON, which the documentation names: the row before has a member that the row that was added
    does not have. Reads fail; they are not silently wrong."""
    records = streamed_only(topic_of(topic, "k_addcolumn"))
    found = kept(batch_of(records), [(0, len(records))])
    assert found == model(records)
    assert any(count < 0 and '"tier": 3' in data for (_, data), count in found.items())


@pytest.mark.parametrize("topic", TOPICS)
def test_the_model_itself(topic: str) -> None:
    """Of the whole topic it says what upserts by key would: no count is negative, none above one."""
    if topic.endswith("bulk"):
        return  # rows that a TRUNCATE took away are still there
    by_key: dict[str, str] = {}
    for r in topic_of(topic):
        key = canonical_json(json.dumps(r["key"]))
        by_key.pop(key, None)
        if r["value"] is not None and r["value"]["after"] is not None:
            by_key[key] = canonical_json(json.dumps(r["value"]["after"]))
    assert model(topic_of(topic)) == dict.fromkeys(by_key.items(), 1)
