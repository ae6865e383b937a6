"""UPSERT as a function: what the records of one time do to the rows that were there; by every type of key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from upsert_world import applied

from tidemill.envelope.keys import KeyShape, key_hash, rows_equal
from tidemill.envelope.upsert import FoundRows, upsert
from tidemill.errors import Internal
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.state import StateStore
from tidemill.persist.part import conform
from tidemill.types import model
from tidemill.types.arrow import arrow_type, shard_schema
from tidemill.types.identity import row_hash
from tidemill.types.model import INT8, TEXT, Column, RelationDesc, SqlType
from tidemill.types.wire import decode_text

DESC = RelationDesc((Column("v", TEXT), Column("k", INT8)))
SHAPE = KeyShape.of(DESC, ["k"])


class Rows:
    """A state that is a list of rows."""

    def __init__(self, *rows: tuple[str | None, int | None]) -> None:
        self.rows = rows

    def lookup(self, rows: pa.RecordBatch, hashes: np.ndarray) -> FoundRows:
        assert (np.diff(hashes.astype(np.float64)) >= 0).all()
        keys = rows.column(1).to_pylist()
        found = [row for row in reversed(self.rows) if row[1] in keys]
        columns = [
            pa.array([v for v, _ in found], pa.string()),
            pa.array([k for _, k in found], pa.int64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SHAPE.schema)
        return FoundRows(batch, np.array([keys.index(row[1]) for row in found], dtype=np.int64))


def run(
    state: Rows, *records: tuple[str | None, int | None, bool]
) -> list[tuple[str | None, int | None, int]]:
    table = pa.table(
        {
            "k": pa.array([r[1] for r in records], pa.int64()),
            "mz_tombstone": pa.array([r[2] for r in records], pa.bool_()),
            "v": pa.array([r[0] for r in records], pa.string()),
        }
    )
    changed = upsert(table, SHAPE, 7, state)
    assert conform(changed.updates, DESC).column("mz_timestamp").to_pylist() == [7] * changed.updates.num_rows
    assert changed.rows.num_rows == len(changed.hashes) == len(changed.deleted)
    return sorted(((r["v"], r["k"], r["mz_diff"]) for r in changed.updates.to_pylist()), key=str)


def test_a_new_key_is_inserted_and_a_known_one_replaced() -> None:
    assert run(Rows(("old", 1)), ("a", 1, False), ("b", 2, False)) == [
        ("a", 1, 1),
        ("b", 2, 1),
        ("old", 1, -1),
    ]


def test_equal_rows_cancel() -> None:
    assert run(Rows(("a", 1), (None, 2)), ("a", 1, False), (None, 2, False)) == []


def test_a_tombstone_deletes_and_an_unknown_key_is_nothing() -> None:
    assert run(Rows(("a", 1)), (None, 1, True), (None, 2, True)) == [("a", 1, -1)]


def test_only_the_last_record_of_a_key_counts() -> None:
    records = [("x", 1, False), (None, 1, True), ("y", 1, False), ("z", 2, False), (None, 2, True)]
    assert run(Rows(("a", 1)), *records) == [("a", 1, -1), ("y", 1, 1)]


def test_back_to_the_row_that_was_there_is_no_change() -> None:
    assert run(Rows(("a", 1)), ("x", 1, False), ("a", 1, False)) == []


def test_null_is_a_key_like_any_other() -> None:
    assert run(Rows(("a", None)), ("b", None, False), ("c", 1, False)) == [
        ("a", None, -1),
        ("b", None, 1),
        ("c", 1, 1),
    ]


def test_no_records_change_nothing() -> None:
    assert run(Rows(("a", 1))) == []


def test_hidden_columns_stand_behind_time_and_diff_and_may_be_keys() -> None:
    desc = RelationDesc(DESC.columns, (Column("mz_key", model.BYTEA),))
    shape = KeyShape.of(desc, ["k", "mz_key"])
    assert shape.update_schema.names == ["v", "k", "mz_timestamp", "mz_diff", "mz_error", "mz_key"]
    assert shape.update_schema.names == shard_schema(desc).names
    assert shape.fingerprint != SHAPE.fingerprint
    with pytest.raises(Internal):
        KeyShape.of(DESC, ["mz_key"])


# Texts of values; those in one tuple are the same key, others are not.
KEYS: list[tuple[SqlType, list[tuple[str, ...]]]] = [
    (model.BOOL, [("t", "true"), ("f",)]),
    (model.INT2, [("1",), ("-1",), ("32767",)]),
    (model.INT4, [("1",), ("-1",), ("2147483647",)]),
    (model.INT8, [("1",), ("-1",), ("9223372036854775807",)]),
    (model.UINT2, [("1",), ("65535",)]),
    (model.UINT4, [("1",), ("4294967295",)]),
    (model.UINT8, [("1",), ("18446744073709551615",)]),
    (model.FLOAT4, [("0", "-0"), ("NaN", "NaN"), ("Infinity",), ("1.5",)]),
    (model.FLOAT8, [("0", "-0"), ("NaN", "NaN"), ("-Infinity",), ("1e300",)]),
    (model.NUMERIC, [("1", "1.0", "1.000"), ("1.000000000000000001",), ("-1",)]),
    (model.numeric(10, 2), [("1", "1.00"), ("1.01",), ("-0", "0")]),
    (model.TEXT, [("",), (" ",), ("é漢🙂",), ("x" * 100,), ("x" * 99 + "y",)]),
    (model.VARCHAR, [("",), ("a",), ("a ",)]),
    (model.char(3), [("a", "a  "), ("b",)]),
    (model.NAME, [("a",), ("b",)]),
    (model.BYTEA, [("\\x",), ("\\x00",), ("\\x0000",)]),
    (model.DATE, [("2020-01-01",), ("infinity",), ("-infinity",)]),
    (model.TIME, [("00:00",), ("23:59:59.999999",)]),
    (model.TIMESTAMP, [("2020-01-01 00:00",), ("2020-01-01 00:00:00.000001",), ("infinity",)]),
    (model.TIMESTAMPTZ, [("2020-01-01 00:00+00", "2020-01-01 01:00+01"), ("2020-01-01 00:00+01",)]),
    (model.INTERVAL, [("1 month",), ("30 days",), ("720 hours",)]),
    (model.UUID, [("00000000-0000-0000-0000-000000000000",), ("00000000-0000-0000-0000-000000000001",)]),
    (model.JSONB, [('{"a": 1, "b": 2}', '{"b":2.0,"a":1.0}'), ('{"a": 1}',), ("null",), ('""',)]),
    (model.MZ_TIMESTAMP, [("1",), ("2",)]),
    (model.OID, [("1",), ("4294967295",)]),
    (model.array(INT8), [("{}",), ("{NULL}",), ("{1,NULL}",), ("{1,2}",), ("{2,1}",)]),
    (model.list_(model.list_(TEXT)), [("{}",), ("{{}}",), ("{{a},{}}",), ("{{},{a}}",)]),
    (model.list_(model.FLOAT8), [("{0,1}", "{-0,1}"), ("{NaN}", "{NaN}"), ("{NULL}",)]),
    (model.map_(INT8), [("{}",), ("{a=>1,b=>2}", "{b=>2,a=>1}"), ("{a=>NULL}",)]),
    (
        model.record(Column("a", model.INT4), Column("b", model.map_(TEXT))),
        [('(1,"{a=>x,b=>y}")', '(1,"{b=>y,a=>x}")'), ("(1,)",), ("(,)",)],
    ),
]


NAMES = [str(t) for t, _ in KEYS]


def _one_hash(longs: list[np.ndarray]) -> np.ndarray:
    return longs[0] * np.uint64(0)


def test_every_kind_is_a_key_here() -> None:
    assert {t.kind for t, _ in KEYS} == set(model.Kind) - {
        model.Kind.UNKNOWN,
        model.Kind.QCHAR,
        model.Kind.REGPROC,
        model.Kind.REGTYPE,
        model.Kind.REGTYPE,
        model.Kind.VOID,
    }


@pytest.mark.parametrize(("t", "groups"), KEYS, ids=NAMES)
@pytest.mark.parametrize("crowded", [False, True], ids=["", "one hash"])
def test_keys_of_every_type(
    t: SqlType, groups: list[tuple[str, ...]], crowded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each spelling of a key, and NULL, replaces the row of any other spelling, and of no other key; through
    files, with a second column of the key beside it."""
    spelt = [(g, text) for g, group in enumerate(groups) for text in group]
    column = decode_text(pa.array([text for _, text in spelt] + [None], pa.string()), t)
    group = [g for g, _ in spelt] + [len(groups)]
    desc = RelationDesc((Column("k", t), Column("part", TEXT), Column("v", INT8)))
    shape = KeyShape.of(desc, ["k", "part"])
    if crowded:
        monkeypatch.setattr("tidemill.envelope.keys.fold", _one_hash)
    rows: dict[tuple[int, str], int] = {}
    for n, chosen in enumerate([range(len(group)), reversed(range(len(group))), range(1, len(group), 2)]):
        at = list(chosen)
        records = pa.table(
            {
                "k": column.take(pa.array(at)),
                "part": pa.array(["a" if i % 2 else "b" for i in at]),
                "v": pa.array([100 * n + i for i in at]),
                "mz_tombstone": pa.array([n == 2 and i % 3 == 0 for i in at]),
            }
        )
        state = StateStore(str(tmp_path)).open("s", 0, shape, n) or StateStore(str(tmp_path)).empty(
            "s", 0, shape, n
        )
        updates = applied(state, records, n)
        assert state.commit(n + 1)
        after = dict(rows)
        for i in at:
            key = (group[i], "a" if i % 2 else "b")
            if n == 2 and i % 3 == 0:
                after.pop(key, None)
            else:
                after[key] = 100 * n + i
        expected = [(v, -1) for k, v in rows.items() if after.get(k) != v]
        expected += [(v, 1) for k, v in after.items() if rows.get(k) != v]
        found = [(r["v"], r["mz_diff"]) for r in updates.select(["v", "mz_diff"]).to_pylist()]
        assert sorted(found) == sorted(expected)
        conform(updates, desc).validate(full=True)
        rows = after


@pytest.mark.parametrize(("t", "groups"), KEYS, ids=NAMES)
def test_the_hash_of_a_key_is_the_row_hash(t: SqlType, groups: list[tuple[str, ...]]) -> None:
    """So that a bucket is the same wherever it is computed, Spark included."""
    texts = [text for group in groups for text in group]
    column = decode_text(pa.array([*texts, None], pa.string()), t)
    assert column.type == arrow_type(t)
    table = pa.table({"x": pa.nulls(len(column), pa.int64()), "c": column})
    expected = row_hash(table, RelationDesc((Column("c", t),)), ["c"])
    assert (key_hash(table, [1]).view(np.int64) == expected).all()
    numbers = [g for g, group in enumerate(groups) for _ in group] + [-1]
    pairs = [(i, j) for i in range(len(numbers)) for j in range(len(numbers))]
    left, right = (column.take(pa.array([p[side] for p in pairs])) for side in (0, 1))
    same = rows_equal([left], [right], len(pairs))
    assert same.tolist() == [numbers[i] == numbers[j] for i, j in pairs]


def test_a_state_never_goes_back(tmp_path: Path) -> None:
    state = StateStore(str(tmp_path)).empty("s", BUCKETS - 1, SHAPE, 10)
    with pytest.raises(Internal):
        applied(state, SHAPE.schema.empty_table(), 9)
    with pytest.raises(Internal):
        state.commit(9)
