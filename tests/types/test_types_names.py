"""Type names, physical column names and the Delta schema: what is written down reads back the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TYPES, texts

from tidemill.errors import DataCorrupted, TidemillError
from tidemill.types import model
from tidemill.types.arrow import arrow_schema, shard_schema
from tidemill.types.delta import delta_schema, delta_schema_string, relation_of, uses_timestamp_ntz
from tidemill.types.model import Column, RelationDesc, SqlType, type_name
from tidemill.types.names import physical_names, physical_names_of
from tidemill.types.parse_name import parse_type

types = st.recursive(
    st.sampled_from(TYPES),
    lambda inner: st.one_of(
        inner.map(model.list_),
        inner.map(model.map_),
        st.sampled_from(TYPES).filter(lambda t: t.kind is not model.Kind.ARRAY).map(model.array),
        st.lists(st.tuples(texts.filter(bool), inner), min_size=1, max_size=3).map(
            lambda fields: model.record(*(Column(n, t) for n, t in fields))
        ),
    ),
    max_leaves=4,
)


@given(types)
@settings(max_examples=80, deadline=None)
def test_names_read_back(t: SqlType) -> None:
    assert parse_type(type_name(t)) == t
    assert parse_type(f"  {type_name(t)}\n") == t


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INT", model.INT4),
        ("int8", model.INT8),
        ("varchar", model.VARCHAR),
        ("VarChar(10)", model.varchar(10)),
        ("character varying (10)", model.varchar(10)),
        ("national character varying(2)", model.varchar(2)),
        ("char", model.char(1)),
        ("character(7)", model.char(7)),
        ("double  precision", model.FLOAT8),
        ("float", model.FLOAT8),
        ("float(24)", model.FLOAT4),
        ("decimal(10)", model.numeric(10)),
        ("dec", model.NUMERIC),
        ("numeric(38,38)", model.numeric(38, 38)),
        ("timestamp with time zone", model.TIMESTAMPTZ),
        ("timestamp(6) with time zone", model.TIMESTAMPTZ),
        ("timestamp", model.TIMESTAMP),
        ("time without time zone", model.TIME),
        ("pg_catalog.int4", model.INT4),
        ('"int4"', model.INT4),
        ("text[]", model.array(model.TEXT)),
        ("text[3][]", model.array(model.TEXT)),
        ("int array", model.array(model.INT4)),
        ("int list list", model.list_(model.list_(model.INT4))),
        ("map[text => numeric(3,1)]", model.map_(model.numeric(3, 1))),
        (
            'record("A b" int, c text[])',
            model.record(Column("A b", model.INT4), Column("c", model.array(model.TEXT))),
        ),
        ("mz_timestamp", model.MZ_TIMESTAMP),
    ],
)
def test_spellings(text: str, expected: SqlType) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    ("text", "sqlstate", "primary"),
    [
        ("foo", "42704", 'type "foo" does not exist'),
        ("json", "0A000", "type json is not supported"),
        ("serial", "0A000", "type serial is not supported"),
        ("regclass", "0A000", "type regclass is not supported here"),
        ("pg_catalog.money", "0A000", "type money is not supported"),
        ("public.foo", "42704", 'type "public.foo" does not exist'),
        ('"Int4"', "42704", 'type "Int4" does not exist'),
        ("numeric(39)", "22023", "NUMERIC precision 39 must be between 1 and 38"),
        ("numeric(0)", "22023", "NUMERIC precision 0 must be between 1 and 38"),
        ("numeric(5,6)", "22023", "NUMERIC scale 6 must be between 0 and precision 5"),
        ("numeric(5,-1)", "22023", "NUMERIC scale -1 must be between 0 and precision 5"),
        ("varchar(0)", "22023", "length for type varchar must be at least 1"),
        ("char(10485761)", "22023", "length for type char cannot exceed 10485760"),
        ("int4(3)", "42601", 'type modifier is not allowed for type "int4"'),
        ("", "42601", "syntax error at end of input"),
        ("int int", "42601", 'syntax error at or near "int"'),
        ("varchar(", "42601", "syntax error at end of input"),
        ("int;", "42601", 'syntax error at or near ";"'),
        ("timestamp(3)", "0A000", "timestamp with a precision other than 6 is not supported"),
        ("time with time zone", "0A000", "type time with time zone is not supported"),
        ("map[int=>int]", "0A000", "map keys of type integer are not supported"),
        ("list", "42704", 'type "list" does not exist'),
        ("map[text=>" * 40 + "int" + "]" * 40, "54001", "type names nest at most 32 deep"),
    ],
)
def test_no_types(text: str, sqlstate: str, primary: str) -> None:
    with pytest.raises(TidemillError) as caught:
        parse_type(text)
    assert (caught.value.sqlstate, caught.value.primary) == (sqlstate, primary)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_type_or_an_error(text: str) -> None:
    try:
        parse_type(text)
    except TidemillError as error:
        assert error.sqlstate in ("42601", "42704", "22023", "0A000", "54001")


@given(
    st.lists(
        st.one_of(
            texts,
            st.sampled_from(["a", "A", "a b", "a%20b", "mz_diff", "MZ_x", "%mz_diff", "a%~2", "é", "É"]),
        ),
        max_size=8,
    )
)
def test_physical_names(names: list[str]) -> None:
    found = physical_names_of(names)
    assert len({name.lower() for name in found}) == len(names)
    for name, physical in zip(names, found, strict=True):
        assert physical and not set(physical) & set(" ,;{}()\n\t=")
        assert not physical.lower().startswith("mz_")
        if (
            name
            and not set(name) & set(" ,;{}()\n\t=%`")
            and name.isprintable()
            and not name.lower().startswith("mz_")
        ):
            assert physical == name or physical.startswith(f"{name}%~")
    # What comes later changes nothing before it.
    assert physical_names_of([*names, "a", "a b"])[: len(names)] == found


def test_plain_names_stay() -> None:
    desc = RelationDesc(
        (Column("id", model.INT4), Column("OrderId", model.INT4), Column("größe.x", model.INT4))
    )
    assert physical_names(desc) == ["id", "OrderId", "größe.x"]


names_of_columns = st.lists(texts.filter(lambda s: "\0" not in s), min_size=1, max_size=6, unique=True)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_table_tells_its_relation(data: st.DataObject) -> None:
    names = data.draw(names_of_columns)
    desc = RelationDesc(tuple(Column(n, data.draw(types), data.draw(st.booleans())) for n in names))
    assert relation_of(delta_schema_string(desc)) == desc
    hidden = RelationDesc(desc.columns, (Column("mz_key", model.BYTEA), Column("mz_order1", model.INT8)))
    assert relation_of(delta_schema(hidden)) == hidden


@pytest.mark.parametrize(
    "bad", ["", "[]", "{}", '{"fields": [{"metadata": {"tidemill.name": "a", "tidemill.type": "foo"}}]}']
)
def test_a_schema_that_is_not_ours(bad: str) -> None:
    with pytest.raises(DataCorrupted):
        relation_of(bad)


def test_delta_takes_every_type_and_name(tmp_path: Path) -> None:
    """deltalake reads a table whose log entry we wrote: the schema it sees is the Arrow schema of the
    shard."""
    odd = ["a", "A", "b c", "x=y", "mz_diff", "", "q`t"]
    wanted = [Column(odd[i] if i < len(odd) else f"c{i}", t) for i, t in enumerate(TYPES)]
    desc = RelationDesc(tuple(wanted))
    assert uses_timestamp_ntz(desc)
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
    entries: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": delta_schema_string(desc),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text("\n".join(json.dumps(entry) for entry in entries))
    seen = pa.schema(deltalake.DeltaTable(str(tmp_path)).schema().to_arrow())
    expected = shard_schema(desc)
    assert seen.names == expected.names
    assert [_loose(f.type) for f in seen] == [_loose(f.type) for f in expected]
    assert relation_of(deltalake.DeltaTable(str(tmp_path)).schema().to_json()) == desc


def _loose(t: pa.DataType) -> str:
    """A type without the names of what lies in lists and maps, which each library chooses for itself."""
    if pa.types.is_map(t):
        return f"map<{_loose(t.item_type)}>"
    if pa.types.is_list(t):
        return f"list<{_loose(t.value_type)}>"
    if pa.types.is_struct(t):
        return "struct<" + ", ".join(f"{f.name}: {_loose(f.type)}" for f in t) + ">"
    return str(t)


def test_a_query_result_may_repeat_names() -> None:
    desc = RelationDesc((Column("a", model.INT4), Column("a", model.TEXT, nullable=False)))
    schema = arrow_schema(desc)
    assert schema.names == ["a", "a"]
    assert [f.nullable for f in schema] == [True, False]
