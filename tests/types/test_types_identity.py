"""Row identity: golden hashes, equal rows equal hashes, consolidation against a model in plain Python."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from golden import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TYPES, columns
from test_types_wire import column_of

import tidemill.types.hash as hash_module
import tidemill.types.identity as identity
from tidemill.errors import Internal
from tidemill.types import model
from tidemill.types.arrow import arrow_type, shard_schema
from tidemill.types.hash import fold, hash_column
from tidemill.types.identity import canonical, consolidate, row_hash
from tidemill.types.model import Column, RelationDesc, SqlType
from tidemill.types.wire import decode_text, encode_binary


def desc_of(*types: SqlType) -> RelationDesc:
    return RelationDesc(tuple(Column(f"c{i}", t) for i, t in enumerate(types)))


@given(st.lists(st.binary(max_size=200), max_size=20))
@settings(max_examples=60, deadline=None)
def test_bytes_are_hashed_as_xxh64(rows: list[bytes]) -> None:
    hashed = hash_column(pa.array([b"skipped", *rows], pa.binary()).slice(1))
    assert hashed.tolist() == [xxhash.xxh64_intdigest(row, seed=42) for row in rows]


def test_long_values_are_hashed_as_xxh64() -> None:
    rows = [bytes(range(256)) * n + b"x" * m for n in (0, 1, 40) for m in range(40)] + [b"z" * 100_003]
    assert hash_column(pa.array(rows)).tolist() == [xxhash.xxh64_intdigest(row, seed=42) for row in rows]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), max_size=20))
@settings(max_examples=60, deadline=None)
def test_wide_decimals_are_hashed_as_their_shortest_bytes(rows: list[int]) -> None:
    def shortest(n: int) -> bytes:
        return n.to_bytes((n + (n < 0)).bit_length() // 8 + 1, "big", signed=True)

    column = pa.array(
        [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), 0)) for n in rows], pa.decimal128(38, 0)
    )
    assert hash_column(column).tolist() == [xxhash.xxh64_intdigest(shortest(n), seed=42) for n in rows]


def test_longs_and_ints_are_hashed_as_their_bytes() -> None:
    for n in (0, 1, -1, 2**31 - 1, -(2**31), 12345):
        wide = xxhash.xxh64_intdigest(struct.pack("<q", n), seed=42)
        narrow = xxhash.xxh64_intdigest(struct.pack("<i", n), seed=42)
        assert hash_column(pa.array([n], pa.int64())).tolist() == [wide]
        assert hash_column(pa.array([n], pa.int32())).tolist() == [narrow]


def test_the_values_that_are_one() -> None:
    payload = struct.unpack("<d", struct.pack("<Q", 0x7FF8DEADBEEF0001))[0]
    nans = pa.array(np.array([math.nan, -math.nan, payload]))
    assert len(set(hash_column(nans).tolist())) == 1
    assert len(set(hash_column(pa.array([0.0, -0.0])).tolist())) == 1
    assert len(set(hash_column(pa.array([0.0, -0.0], pa.float32())).tolist())) == 1
    maps = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], arrow_type(model.map_(model.INT4)))
    assert len(set(hash_column(maps).tolist())) == 1


@pytest.mark.parametrize(
    ("t", "rows"),
    [
        (model.array(model.INT4), [None, [], [None], [None, None], [1, None], [None, 1], [1, 2], [2, 1]]),
        (model.map_(model.INT4), [None, [], [("a", None)], [("b", None)], [("a", 1)], [("a", 1), ("b", 1)]]),
        (
            model.record(Column("x", model.INT4), Column("y", model.INT4)),
            [None, {"x": None, "y": None}, {"x": 1, "y": None}, {"x": None, "y": 1}, {"x": 1, "y": 1}],
        ),
        (model.list_(model.array(model.INT4)), [[[], [1]], [[1], []], [[1]], [[], []], [[]], []]),
        (model.TEXT, [None, "", "a", "a\u0000", "b"]),
        (
            model.NUMERIC,
            [None, Decimal(0), Decimal(1), Decimal(-1), Decimal(256), Decimal("0.000000000000000001")],
        ),
    ],
    ids=str,
)
def test_near_values_are_told_apart(t: SqlType, rows: list[Any]) -> None:
    hashes = hash_column(pa.array(rows, arrow_type(t)))
    assert len(set(hashes.tolist())) == len(rows)


def test_a_null_has_its_place() -> None:
    table = pa.table({"c0": pa.array([None, 1], pa.int64()), "c1": pa.array([1, None], pa.int64())})
    first, second = row_hash(table, desc_of(model.INT8, model.INT8)).tolist()
    assert first != second


def test_golden() -> None:
    """Hashes that may be stored somewhere by now. Spark gives the same (test_types_spark_hash)."""
    wrong: list[str] = []
    for t, text, expected in GOLDEN:
        column = pa.table([decode_text(pa.array([text], pa.string()), t)], names=["c"])
        found = row_hash(column, desc_of(t), ["c"]).tolist()
        if found != [expected]:
            wrong.append(f"{t} {text!r}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)
    assert len(GOLDEN) > 100


@pytest.mark.parametrize("t", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_hash_follows_identity(t: SqlType, data: st.DataObject) -> None:
    """Slicing, hashing by pieces, repeating and canonical form change no hash; distinct values (by their
    canonical bytes) differ."""
    rows = data.draw(columns(t))
    column = column_of([*rows, *rows], t)
    hashes = hash_column(column)
    assert hashes.tolist() == hash_column(canonical(column, t)).tolist()
    assert hashes[1:].tolist() == hash_column(column.slice(1)).tolist()
    whole = fold([hashes, hashes[::-1]]).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_module, "PIECE_ROWS", 3)
        assert hashes.tolist() == hash_column(column).tolist()
        assert whole == fold([hashes, hashes[::-1]]).tolist()
    spelt = encode_binary(canonical(column, t), t).to_pylist()
    assert len(set(spelt)) == len(set(hashes.tolist()))


def shard_table(t: SqlType, rows: Sequence[tuple[Any, int, int, str | None]]) -> pa.Table:
    schema = shard_schema(desc_of(t))
    parts = [column_of([row[0] for row in rows], t)]
    parts += [pa.array([row[i] for row in rows], schema.field(i).type) for i in (1, 2, 3)]
    return pa.table(parts, schema=schema)


def multiset(table: pa.Table, t: SqlType, *, time: bool = True) -> Counter[tuple[Any, ...]]:
    keys = encode_binary(canonical(table.column(0), t), t).to_pylist()
    times = table.column("mz_timestamp").to_pylist() if time else [0] * len(keys)
    counted: Counter[tuple[Any, ...]] = Counter()
    errors, diffs = table.column("mz_error").to_pylist(), table.column("mz_diff").to_pylist()
    for key, at, error, diff in zip(keys, times, errors, diffs, strict=True):
        counted[key, at, error] += diff
    return Counter({key: n for key, n in counted.items() if n != 0})


@pytest.mark.parametrize("t", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_consolidate_against_a_model(t: SqlType, data: st.DataObject) -> None:
    pool = data.draw(columns(t, max_size=4)) or [None]
    one_row = st.tuples(
        st.sampled_from(pool), st.integers(0, 1), st.integers(-2, 2), st.sampled_from([None, "", "bad"])
    )
    rows = data.draw(st.lists(one_row, max_size=30))
    table = shard_table(t, rows)
    for time in (True, False):
        result = consolidate(table, desc_of(t), time=time)
        result.validate(full=True)
        assert ("mz_timestamp" in result.column_names) == time
        expected = multiset(table, t, time=time)
        assert multiset(result, t, time=time) == expected
        assert result.num_rows == len(expected)
    assert consolidate(consolidate(table, desc_of(t)), desc_of(t)).num_rows == len(multiset(table, t))


def test_consolidate_does_not_trust_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows in three buckets of one hash each: the result is the same."""
    rng = np.random.default_rng(7)
    rows = [(int(v), int(m), int(d), None) for v, m, d in rng.integers(-2, 3, (400, 3))]
    table = shard_table(model.INT8, rows)
    expected = consolidate(table, desc_of(model.INT8))
    monkeypatch.setattr(identity, "fold", lambda longs: longs[0] % np.uint64(3))  # pyright: ignore[reportUnknownLambdaType]
    crowded = consolidate(table, desc_of(model.INT8))
    assert crowded.equals(expected)
    assert multiset(crowded, model.INT8) == multiset(table, model.INT8)


def test_consolidate_keeps_the_order_of_first_appearance() -> None:
    rows = [(3, 0, 1, None), (1, 0, 1, None), (2, 0, 1, None), (1, 0, 1, None), (2, 0, -1, None)]
    result = consolidate(shard_table(model.INT8, rows), desc_of(model.INT8))
    assert result.column("c0").to_pylist() == [3, 1]
    assert result.column("mz_diff").to_pylist() == [1, 2]
    assert result.schema.equals(shard_schema(desc_of(model.INT8)))


def test_consolidate_refuses_what_it_cannot_add_up() -> None:
    with pytest.raises(Internal):
        consolidate(shard_table(model.INT8, [(1, 0, 2**62, None), (1, 0, 2**62, None)]), desc_of(model.INT8))
    with pytest.raises(Internal):
        consolidate(pa.table({"c0": [1]}), desc_of(model.INT8))


def test_a_relation_without_columns() -> None:
    table = pa.table({"mz_timestamp": [0, 0], "mz_diff": [1, 1]})
    assert consolidate(table, desc_of()).column("mz_diff").to_pylist() == [2]
    assert consolidate(table, desc_of(), time=False).column("mz_diff").to_pylist() == [2]
    assert row_hash(table, desc_of()).tolist() == [42, 42]
