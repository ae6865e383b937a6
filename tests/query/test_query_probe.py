"""The probe never misses a row that is equal to a given one, whatever its type; strangers seldom pass. Then
the search over parts with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import DataCorrupted, QueryCanceled
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.query.probe import Probe
from tidemill.query.retraction_matches import find
from tidemill.query.row_filter import alike
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

_SCHEMA = pa.schema(
    [
        ("i8", pa.int64()),
        ("i2", pa.int16()),
        ("b", pa.bool_()),
        ("f8", pa.float64()),
        ("f4", pa.float32()),
        ("n", pa.decimal128(38, 18)),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("r", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
_FLOATS = st.sampled_from([0.0, -0.0, math.nan, math.inf, -1.5, 3.0])
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i8": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    "i2": st.integers(-3, 3),
    "b": st.booleans(),
    "f8": _FLOATS,
    "f4": _FLOATS,
    "n": st.integers(-(10**37), 10**37).map(lambda n: Decimal(n).scaleb(-18)),
    "s": st.text(max_size=20) | st.text("ab", min_size=6, max_size=10),
    "y": st.binary(max_size=20),
    "d": st.integers(-1000, 1000),
    "t": st.integers(0, 10**15),
    "l": st.lists(st.integers(0, 2), max_size=3),
    "m": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)).map(lambda d: list(d.items())),
    "r": st.fixed_dictionaries({"x": st.none() | st.integers(0, 2), "y": st.none() | st.text(max_size=3)}),
}
_ROWS = st.lists(st.fixed_dictionaries({k: st.none() | v for k, v in _VALUES.items()}), min_size=1)


def other_form(row: dict[str, Any]) -> dict[str, Any]:
    """An equal row, spelt otherwise."""
    changed = dict(row)
    for name in ("f8", "f4"):
        if row[name] == 0:
            changed[name] = -row[name]
        elif row[name] is not None and math.isnan(row[name]):
            changed[name] = -math.nan
    if row["m"] is not None:
        changed["m"] = row["m"][::-1]
    return changed


@settings(max_examples=150, deadline=None)
@given(rows=_ROWS, data=st.data())
def test_equal_rows_are_never_missed(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True))
    columns = data.draw(st.lists(st.sampled_from(_SCHEMA.names), min_size=1, unique=True))
    retracted = pa.Table.from_pylist([other_form(rows[i]) for i in chosen], schema=_SCHEMA)
    # A slice, in chunks: buffers do not begin where columns do.
    whole = pa.Table.from_pylist([rows[0], *rows, rows[0]], schema=_SCHEMA)
    table = whole.slice(1, len(rows))
    if len(rows) > 2:
        table = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    places = Probe(retracted, columns).places(table)
    assert set(chosen) <= set(places.tolist())
    assert places.tolist() == sorted(set(places.tolist()))


@pytest.mark.parametrize("column", ["i", "f", "s", "json"])
def test_strangers_seldom_pass(column: str) -> None:
    ids = np.arange(50_000)
    table = pa.table(
        {
            "i": ids,
            "f": ids.astype(np.float64),
            "s": ids.astype(str),
            # Alike at both ends: only the hash tells them apart.
            "json": [f'{{"kind":"order","id":{i:08d},"state":"delivered"}}' for i in ids],
        }
    )
    places = Probe(table.slice(0, 500), [column]).places(table)
    assert places[:500].tolist() == list(range(500))
    assert len(places) < 500 + len(ids) / 100


DESC = RelationDesc((Column("k", INT8), Column("s", TEXT)))


def shard_of(folder: Path, parts: Sequence[Sequence[tuple[int, str, int, int, str | None]]]) -> Shard:
    """(k, s, time, diff, error) of each part; no cache of parts, so that a damaged file is seen."""
    cache = PartCache(max_bytes=0)
    shard = Shard.create(open_blobs(str(folder)), "u1", DESC, epoch=1, cache=cache)
    written: list[Part] = []
    for part in parts:
        k, s, time, diff, error = (list(values) for values in zip(*part, strict=True))
        table = pa.table(
            {
                "k": pa.array(k, pa.int64()),
                "s": pa.array(s, pa.string()),
                "mz_timestamp": pa.array(time, pa.int64()),
                "mz_diff": pa.array(diff, pa.int64()),
                "mz_error": pa.array(error, pa.string()),
            }
        )
        written.append(shard.write_part(table, job="test"))
    shard.compare_and_append(written, 0, max(part.max_time for part in written) + 1)
    return shard


def search(shard: Shard, as_of: int, wanted: list[int], *, limit: int = 1 << 20, check: Any = None) -> Any:
    rows = pa.table({"k": pa.array(wanted, pa.int64())})
    with shard.snapshot(as_of) as snapshot:
        return find(
            snapshot,
            snapshot.parts,
            Probe(rows, ["k"]),
            ["s", "k"],
            threads=2,
            limit=limit,
            check=check or (lambda: None),
        )


def test_only_live_insertions_are_found_each_at_its_place(tmp_path: Path) -> None:
    shard = shard_of(
        tmp_path / "data",
        [
            [(1, "a", 1, 1, None), (2, "b", 1, 1, None), (1, "c", 1, 1, None)],
            [(2, "d", 2, 1, None), (1, "e", 2, -1, None), (1, "f", 2, 4, None), (1, "g", 3, 1, None)],
            [(1, "h", 3, 1, None), (1, "", 3, 1, "bad")],
        ],
    )
    found = search(shard, 2, [1])
    first, second, _ = (part.path for part in shard.parts)
    assert {path: places.tolist() for path, places in found.places.items()} == {first: [0, 2], second: [2]}
    assert found.rows.to_pylist() == [
        {"s": "a", "k": 1, "mz_diff": 1},
        {"s": "c", "k": 1, "mz_diff": 1},
        {"s": "f", "k": 1, "mz_diff": 4},
    ]
    later = search(shard, 3, [1])
    assert later.rows.column("s").to_pylist() == ["a", "c", "f", "g", "h"]
    nothing = search(shard, 3, [77])
    assert nothing.places == {} and nothing.rows.num_rows == 0


def test_places_count_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.persist.part.ROW_GROUP_ROWS", 10)
    monkeypatch.setattr("tidemill.query.retraction_matches._PIECE_ROWS", 25)
    shard = shard_of(tmp_path / "data", [[(i % 7, str(i), 1, 1, None) for i in range(95)]])
    found = search(shard, 1, [3])
    (places,) = found.places.values()
    assert places.tolist() == [i for i in range(95) if i % 7 == 3]
    assert found.rows.column("s").to_pylist() == [str(i) for i in places]


def test_the_search_ends_at_its_limit_when_told_to_and_at_damage(tmp_path: Path) -> None:
    rows = [[(i % 7, "x" * 50, 1, 1, None) for i in range(500)] for _ in range(4)]
    shard = shard_of(tmp_path / "data", rows)
    assert search(shard, 1, [3], limit=1000) is None

    def cancelled() -> None:
        raise QueryCanceled("canceling statement due to user request")

    with pytest.raises(QueryCanceled):
        search(shard, 1, [3], check=cancelled)
    with shard.snapshot(1) as snapshot:
        path = Path(snapshot.locate(shard.parts[2]))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataCorrupted, match=path.name):
        search(shard, 1, [3])


def test_parts_of_one_size_are_never_in_one_scan(tmp_path: Path) -> None:
    (part,) = shard_of(tmp_path / "data", [[(1, "a", 1, 1, None)]]).parts
    parts = [replace(part, path=f"parts/x/{i}.parquet", bytes=100 + i // 3) for i in range(300)]
    scans = alike(parts)
    assert sorted(p.path for scan in scans for p in scan) == sorted(p.path for p in parts)
    for scan in scans:
        assert len({p.bytes for p in scan}) == len(scan) <= 64
    assert len(scans) <= 6
