"""Parquet files and Avro container files of a folder as rows, however they are cut into ranges."""

from __future__ import annotations

import datetime
import decimal
import io
import itertools
import os
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sources.contract import SourcePiece, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.objects import tables as tables_module
from tidemill.sources.objects.folder import FolderStore
from tidemill.sources.objects.layout import PLACE_COLUMN
from tidemill.sources.objects.tables import table_columns

UTC = datetime.UTC
ROWS = 4000
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "d", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "e", "type": {"type": "int", "logicalType": "date"}},
        {"name": "f", "type": {"type": "enum", "name": "en", "symbols": ["x", "y"]}},
        {"name": "g", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "h", "type": "double"},
    ],
}


def record(n: int) -> dict[str, Any]:
    return {
        "a": n,
        "b": None if n % 3 else f"text {n}",
        "c": decimal.Decimal(n) / 100,
        "d": datetime.datetime(2020, 1, 1, tzinfo=UTC) + datetime.timedelta(seconds=n),
        "e": datetime.date(2020, 1, 1) + datetime.timedelta(days=n % 100),
        "f": "xy"[n % 2],
        "g": str(uuid.UUID(int=n)),
        "h": n / 2,
    }


def write_avro(path: Path, codec: str = "deflate", schema: Any = None) -> None:
    with open(path, "wb") as out:
        parsed = fastavro.parse_schema(schema or AVRO)
        fastavro.writer(out, parsed, map(record, range(ROWS)), codec=codec, sync_interval=4000)
    os.utime(path, (1, 1))


def write_parquet(path: Path, **more: Any) -> None:
    columns = {name: [record(n)[name] for n in range(ROWS)] for name in record(0)}
    table = pa.table(columns)
    decimals = table.column("c").cast(pa.decimal128(10, 2))
    table = table.set_column(2, "c", decimals).set_column(5, "f", table.column("f").dictionary_encode())
    pq.write_table(table, path, row_group_size=700, **more)
    os.utime(path, (1, 1))


WRITE = {"avro": write_avro, "parquet": write_parquet}


def columns(root: Path, form: str, name: str) -> list[list[str]]:
    store = FolderStore(str(root / "in"))
    return table_columns(form, name, store.stat(name).size, partial(store.stream, name, ""))


def opened(root: Path, form: str, kinds: list[list[str]]) -> UpstreamSource:
    output = {"name": "in", "value": {"format": form, "columns": kinds}, "include": []}
    outputs = [{**output, "envelope": {"kind": "none"}}]
    chosen = {"matching": None, "compression": "auto", "tailed": False}
    return open_source({"kind": "files", "path": "in", **chosen, "outputs": outputs, "started": 0}, str(root))


def rows(source: UpstreamSource, edges: list[int] | None = None) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for key, end in sorted(source.frontier(0).items()):
        for lower, upper in itertools.pairwise(edges or [0, end]):
            for batch in source.reader().read(SourcePiece(key, lower, upper)):
                found += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("form", WRITE)
def test_rows_are_those_of_the_file_however_it_is_cut(folder: Path, tmp_path: Path, form: str) -> None:
    WRITE[form](folder / "a")
    kinds = columns(tmp_path, form, "a")
    assert [name for name, _ in kinds] == list(record(0))
    types = dict(kinds)
    assert types["a"] == "bigint" and types["c"] == "numeric(10,2)" and types["e"] == "date"
    assert types["f"] == types["g"] == "text" and types["h"] == "double precision"
    source = opened(tmp_path, form, kinds)
    wanted = [tuple(record(n).values()) for n in range(ROWS)]
    found = [(*row[:3], row[3].replace(tzinfo=UTC), *row[4:]) for row in rows(source)]
    assert found == wanted
    size = source.frontier(0)["a"]

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.integers(0, size), max_size=6))
    def run(cuts: list[int]) -> None:
        assert len(rows(source, sorted({0, size, *cuts}))) == ROWS

    run()


@pytest.mark.parametrize("form", WRITE)
def test_columns_are_taken_by_their_names(folder: Path, tmp_path: Path, form: str) -> None:
    """Those that a file lacks are null; those that it has more are left out; others are converted."""
    WRITE[form](folder / "a")
    found = rows(
        opened(tmp_path, form, [["h", "double precision"], ["none", "text"], ["a", "numeric(20,0)"]])
    )
    assert found[3] == (1.5, None, decimal.Decimal(3)) and len(found) == ROWS
    (wrong,) = rows(opened(tmp_path, form, [["b", "bigint"]]))
    assert 'its column "b" of' in wrong[1] and "is no bigint" in wrong[1] and 'File "a"' in wrong[1]


@pytest.mark.parametrize("form", WRITE)
def test_a_file_that_is_cut_is_an_error_row(folder: Path, tmp_path: Path, form: str) -> None:
    WRITE[form](folder / "a")
    kinds = columns(tmp_path, form, "a")
    data = (folder / "a").read_bytes()
    (folder / "a").write_bytes(data[: len(data) // 2])
    os.utime(folder / "a", (1, 1))
    found = rows(opened(tmp_path, form, kinds))
    assert "Decode error: " in found[-1][-1]
    good = [row[0] for row in found[:-1]]
    assert good == list(range(len(good))) and bool(good) == (form == "avro")


def test_a_block_of_avro_that_is_damaged_is_an_error_row(folder: Path, tmp_path: Path) -> None:
    write_avro(folder / "a", "null")
    kinds = columns(tmp_path, "avro", "a")
    data = bytearray((folder / "a").read_bytes())
    marker = bytes(data[-16:])
    second = data.find(marker, data.find(marker) + 16)
    data[second : second + 16] = bytes(16)
    (folder / "a").write_bytes(data)
    os.utime(folder / "a", (1, 1))
    found = rows(opened(tmp_path, "avro", kinds))
    assert "has no end" in found[-1][-1]


@pytest.mark.parametrize(
    ("t", "named"),
    [
        (pa.decimal256(50, 2), "a"),
        (pa.duration("s"), "a"),
        (pa.list_(pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.duration("s"))])), "a.y"),
        (pa.map_(pa.date32(), pa.int32()), "a"),
    ],
    ids=str,
)
def test_what_cannot_be_a_column_is_refused(folder: Path, tmp_path: Path, t: pa.DataType, named: str) -> None:
    pq.write_table(pa.table({"b": pa.array([1]), "a": pa.nulls(1, t)}), folder / "a", store_schema=True)
    with pytest.raises(Unsupported, match=f'column "{named}" is of a type that is not supported') as caught:
        columns(tmp_path, "parquet", "a")
    assert "the first file does not have" in str(caught.value.hint)


def test_what_is_no_such_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "b").write_bytes(b"nothing of the kind")
    for form in WRITE:
        with pytest.raises(InvalidValue, match=f'"b" is no {form.capitalize()} file'):
            columns(tmp_path, form, "b")


@pytest.mark.parametrize(
    ("schema", "primary", "detail"),
    [
        ("long", '"a" is no Avro file', "its schema has no columns"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]},
            '"a" is no Avro file',
            "its schema has no columns",
        ),
        ({"type": "record", "name": "r", "fields": []}, '"a" has no columns', ""),
    ],
    ids=["no record", "contains itself", "empty"],
)
def test_schemas_without_columns_are_refused(
    folder: Path, tmp_path: Path, schema: Any, primary: str, detail: str
) -> None:
    with open(folder / "a", "wb") as out:
        fastavro.writer(out, fastavro.parse_schema(schema), [])
    with pytest.raises(InvalidValue) as caught:
        columns(tmp_path, "avro", "a")
    assert caught.value.primary == primary and (caught.value.detail or "").startswith(detail)


def test_a_column_that_is_there_twice_is_an_error(folder: Path, tmp_path: Path) -> None:
    """In a later file: it is not known which one is meant."""
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, folder / "a")
    os.utime(folder / "a", (1, 1))
    (wrong,) = rows(opened(tmp_path, "parquet", [["a", "bigint"]]))
    assert 'it has 2 columns "a"' in wrong[1]


# -- nested values

ITEM = {
    "type": "record",
    "name": "item",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
}
NESTED: dict[str, tuple[Any, str, list[Any], list[Any]]] = {
    "list": (
        {"type": "array", "items": ["null", "string"]},
        "text list",
        [["a", None], []],
        [["a", None], []],
    ),
    "record": (
        ["null", ITEM],
        "record(x integer, y text)",
        [{"x": 1, "y": None}, None],
        [{"x": 1, "y": None}, None],
    ),
    # In the order of their keys, as everywhere.
    "map": (
        {"type": "map", "values": "long"},
        "map[text=>bigint]",
        [{"b": 2, "a": 1}, {}],
        [[("a", 1), ("b", 2)], []],
    ),
    "list of records": (
        {"type": "array", "items": {**ITEM, "name": "other"}},
        "record(x integer, y text) list",
        [[{"x": 1, "y": "z"}], []],
        [[{"x": 1, "y": "z"}], []],
    ),
    "union": (
        ["null", "int", "string"],
        "record(int integer, string text)",
        [1, "s", None],
        [{"int": 1, "string": None}, {"int": None, "string": "s"}, None],
    ),
    "time": (
        {"type": "int", "logicalType": "time-millis"},
        "time without time zone",
        [datetime.time(0, 0, 1)],
        [1_000_000],
    ),
    "times in a list": (
        {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}},
        "timestamp with time zone list",
        [[datetime.datetime(2020, 1, 1, tzinfo=UTC)]],
        [[datetime.datetime(2020, 1, 1, tzinfo=UTC)]],
    ),
    "duration": (
        {"type": "fixed", "size": 12, "name": "d", "logicalType": "duration"},
        "interval",
        [bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])],
        [{"months": 1, "days": 2, "micros": 3000}],
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_of_avro(folder: Path, tmp_path: Path, name: str) -> None:
    kind, shown, given, wanted = NESTED[name]
    fields = [{"name": "id", "type": "int"}, {"name": "v", "type": kind}]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    with open(folder / "a", "wb") as out:
        fastavro.writer(out, schema, [{"id": n, "v": v} for n, v in enumerate(given)])
    os.utime(folder / "a", (1, 1))
    kinds = columns(tmp_path, "avro", "a")
    assert kinds == [["id", "integer"], ["v", shown]]
    assert rows(opened(tmp_path, "avro", kinds)) == list(enumerate(wanted))


def test_nested_values_of_parquet(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of list, keys that are numbers or come twice, and slices of all of them."""
    monkeypatch.setattr(tables_module, "MAX_BATCH_ROWS", 1000)
    count = 2500
    lists = [None if n % 7 == 0 else [n] * (n % 4) for n in range(count)]
    maps = [None if n % 7 == 0 else [(n, "old"), (n, "new")][: n % 3] for n in range(count)]
    of = [None if n % 7 == 0 else {"l": [n], "M": n} for n in range(count)]
    record_type = pa.struct([pa.field("l", pa.large_list(pa.int32())), pa.field("M", pa.uint64())])
    table = pa.table(
        {
            "lists": pa.array(lists, pa.large_list(pa.int64())),
            "fixed": pa.array([[n, None] for n in range(count)], pa.list_(pa.int32(), 2)),
            "maps": pa.array(maps, pa.map_(pa.int32(), pa.dictionary(pa.int32(), pa.string()))),
            "records": pa.array(of, record_type),
            "none": pa.nulls(count),
            "time": pa.array([n * 1000 for n in range(count)], pa.time64("ns")),
        }
    )
    pq.write_table(table, folder / "a")
    os.utime(folder / "a", (1, 1))
    kinds = columns(tmp_path, "parquet", "a")
    assert dict(kinds) == {
        "lists": "bigint list",
        "fixed": "integer list",
        "maps": "map[text=>text]",
        "records": 'record(l integer list, "M" uint8)',
        "none": "text",
        "time": "time without time zone",
    }
    found = rows(opened(tmp_path, "parquet", kinds))
    assert [row[0] for row in found] == lists
    assert [row[1] for row in found] == [[n, None] for n in range(count)]
    last = [None if m is None else list({str(k): v for k, v in m}.items()) for m in maps]
    assert [row[2] for row in found] == last
    assert [row[3] for row in found] == of
    assert {row[4] for row in found} == {None} and [row[5] for row in found] == list(range(count))


def test_values_of_slices_are_their_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block with more records than a batch has rows."""
    monkeypatch.setattr(tables_module, "MAX_BATCH_ROWS", 1000)
    count = 2500
    kinds: list[Any] = [["null", "int", "string"], {"type": "map", "values": "int"}, ["null", {**ITEM}]]
    fields = [{"name": f"v{n}", "type": kind} for n, kind in enumerate(kinds)]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})

    def record(n: int) -> dict[str, Any]:
        value = None if n % 5 == 0 else n if n % 2 else f"t{n}"
        return {"v0": value, "v1": {"k": n}, "v2": None if n % 3 == 0 else {"x": n, "y": None}}

    with open(folder / "a", "wb") as out:
        fastavro.writer(out, schema, map(record, range(count)), sync_interval=1 << 30)
    os.utime(folder / "a", (1, 1))
    for n, row in enumerate(rows(opened(tmp_path, "avro", columns(tmp_path, "avro", "a")))):
        given = record(n)
        one, other = row[0] and row[0]["int"], row[0] and row[0]["string"]
        assert (one if one is not None else other) == given["v0"]
        assert row[1] == [("k", n)] and row[2] == given["v2"]


def test_nested_columns_are_taken_by_their_names(folder: Path, tmp_path: Path) -> None:
    """Also the fields of records; a value of another shape is an error."""
    pq.write_table(pa.table({"r": [{"b": 1, "c": 2}], "l": [[1]]}), folder / "a")
    os.utime(folder / "a", (1, 1))
    kinds = [["r", "record(a text, b numeric(20,0))"], ["l", "numeric(20,0) list"]]
    assert rows(opened(tmp_path, "parquet", kinds)) == [({"a": None, "b": 1}, [1])]
    for name, kind in (("r", "text"), ("l", "bigint"), ("l", "map[text=>bigint]"), ("r", "text list")):
        (wrong,) = rows(opened(tmp_path, "parquet", [[name, kind]]))
        assert f'its column "{name}" of' in wrong[1] and f"is no {kind}" in wrong[1]


def test_the_last_of_equal_keys_is_the_row(folder: Path, tmp_path: Path) -> None:
    """The order of upserts rises with each row, also within a block of Avro."""
    for form, write in WRITE.items():
        write(folder / "a")
        output = {"name": "in", "value": {"format": form, "columns": [["f", "text"], ["a", "bigint"]]}}
        output |= {"include": [], "envelope": {"kind": "upsert", "key": ["f"]}}
        of = {"kind": "files", "path": "in", "matching": None, "compression": "auto", "tailed": False}
        source = open_source({**of, "outputs": [output], "started": 0}, str(tmp_path))
        end = source.frontier(0)["a"]
        batches = [b.rows for b in source.reader().read(SourcePiece("a", 0, end))]
        places = [at for batch in batches for at in batch.column(PLACE_COLUMN).to_pylist()]
        assert len(places) == ROWS and all(a < b for a, b in itertools.pairwise(places))


def test_an_empty_file_has_no_rows(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), folder / "a")
    os.utime(folder / "a", (1, 1))
    assert rows(opened(tmp_path, "parquet", [["a", "bigint"]])) == []
    data = io.BytesIO()
    fastavro.writer(data, fastavro.parse_schema(AVRO), [])
    (folder / "a").write_bytes(data.getvalue())
    os.utime(folder / "a", (1, 1))
    assert rows(opened(tmp_path, "avro", [["a", "bigint"]])) == []


@pytest.mark.parametrize(("count", "good"), [(1, True), (3, False)])
def test_a_block_that_counts_other_records_ends(folder: Path, tmp_path: Path, count: int, good: bool) -> None:
    """The reader never ends behind the last record of a block with bytes left."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    data = io.BytesIO()
    fastavro.writer(data, fastavro.parse_schema(schema), [{"a": 1}, {"a": 2}])
    octets = bytearray(data.getvalue())
    block = len(octets) - 16 - 2 - 2
    assert octets[block : block + 4] == bytes([4, 4, 2, 4])
    octets[block] = 2 * count
    (folder / "a").write_bytes(octets + octets[block:])
    os.utime(folder / "a", (1, 1))
    found = rows(opened(tmp_path, "avro", [["a", "bigint"]]))
    assert found == [(1,), (1,)] if good else "a block cannot be read" in found[-1][-1]
