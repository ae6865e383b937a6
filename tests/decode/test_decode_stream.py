"""Messages of a CDCv2 stream to statements: formats, schemas of other writers, and what is no message."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.cdcv2 import AvroCodec, InvalidMessage, JsonCodec, Progress, UpdateColumns, sealed
from tidemill.cdcv2.avro_schema import same_layout
from tidemill.decode.registry import Registry, RegistryError
from tidemill.decode.stream import AvroStream, JsonStream, open_stream_decoder, stream_shape
from tidemill.errors import InvalidValue, TidemillError
from tidemill.types.json import canonical_json

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us")),
    ]
)
ROWS = [
    {"id": 1, "name": "a", "price": None, "at": None},
    {"id": 2, "name": None, "price": 3, "at": 5},
]
UPDATES = UpdateColumns.of(
    pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2], pa.int64()),
            pa.array(["a", None]),
            pa.array([None, 3], pa.decimal128(10, 2)),
            pa.array([None, 5], pa.timestamp("us")),
        ],
        schema=SCHEMA,
    ),
    [7, 8],
    [1, -2],
)
SAID = Progress([0], [9], [(7, 1), (8, 1)])


def avro(schema: str, *, framed: bool = False) -> dict[str, Any]:
    return {"format": "avro", "schema": schema, "framed": framed, "registry": None}


def shown(said: Any) -> Any:
    if isinstance(said, UpdateColumns):
        return said.rows()
    return (said.lower, said.upper, said.counts) if isinstance(said, Progress) else said.primary


def test_avro_as_our_sinks_write_it() -> None:
    codec = AvroCodec(SCHEMA)
    decoder = open_stream_decoder(avro(codec.avro_schema))
    assert [c.name for c in decoder.shape.columns] == SCHEMA.names and not decoder.shape.digests
    assert same_layout(json.loads(codec.avro_schema), json.loads(AvroCodec(decoder.shape.schema).avro_schema))
    messages = [*codec.encode(UPDATES), b"", *codec.encode(SAID), b"\x00\x02\xff"]
    found = decoder.decode(messages, ["a", "b", "c", "d"])
    assert shown(found[0]) == UPDATES.rows() and shown(found[2]) == ([0], [9], [(7, 1), (8, 1)])
    assert [shown(found[1]), shown(found[3])] == ["not a CDCv2 message in Avro"] * 2
    assert isinstance(found[3], InvalidMessage) and found[3].detail is not None and "In d." in found[3].detail


def test_a_frame_is_looked_at() -> None:
    codec = AvroCodec(SCHEMA, schema_id=9)
    decoder = open_stream_decoder(avro(codec.avro_schema, framed=True))
    (message,) = codec.encode(SAID)
    found = decoder.decode([message, message[5:], b"\x00"], ["a", "b", "c"])
    assert shown(found[0]) == ([0], [9], [(7, 1), (8, 1)])
    assert [shown(f) for f in found[1:]] == ["not a message in Confluent's framing"] * 2


def test_other_names_and_orders_are_resolved() -> None:
    """A writer whose records are called otherwise, have a column more, one less, and in another order."""
    data = {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "extra", "type": "int"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "id", "type": "int"},
        ],
    }
    update = {
        "type": "record",
        "name": "u",
        "namespace": "other",
        "fields": [
            {"name": "data", "type": data},
            {"name": "time", "type": "long"},
            {"name": "diff", "type": "long"},
        ],
    }
    longs = {"type": "array", "items": "long"}
    count = {
        "type": "record",
        "name": "n",
        "fields": [{"name": "time", "type": "long"}, {"name": "count", "type": "long"}],
    }
    fields = [("lower", longs), ("upper", longs), ("counts", {"type": "array", "items": count})]
    progress = {
        "type": "record",
        "name": "p",
        "namespace": "other",
        "fields": [{"name": n, "type": t} for n, t in fields],
    }
    writer = [{"type": "array", "items": update}, progress]
    reader = json.loads(
        AvroCodec(pa.schema([("id", pa.int64()), ("name", pa.string()), ("late", pa.string())])).avro_schema
    )
    for field in reader[0]["items"]["fields"][0]["type"]["fields"]:
        if field["name"] == "late":
            field |= {"type": ["null", "string"], "default": None}
    out = io.BytesIO()
    record = [{"data": {"extra": 1, "name": "x", "id": 5}, "time": 3, "diff": 2}]
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), record)
    said = io.BytesIO()
    told = {"lower": [0], "upper": [4], "counts": [{"time": 3, "count": 1}]}
    fastavro.schemaless_writer(said, fastavro.parse_schema(writer), told)
    decoder = open_stream_decoder(avro(json.dumps(reader)), json.dumps(writer))
    found = decoder.decode([out.getvalue(), said.getvalue()], ["a", "b"])
    assert shown(found[0]) == [((5, "x", None), 3, 2)]
    assert shown(found[1]) == ([0], [4], [(3, 1)])


class Registered:
    """A registry with these schemas."""

    def __init__(self, *schemas: str) -> None:
        self._schemas = schemas

    def schema_text(self, number: int) -> str:
        if number >= len(self._schemas):
            raise RegistryError(f"schema {number} is not there", status=404)
        return self._schemas[number]


def test_a_schema_that_changes_in_the_middle_of_a_stream() -> None:
    """Each message is read by the schema whose number it has, and gives the columns of the source."""
    wide = SCHEMA.append(pa.field("note", pa.string()))
    codecs = AvroCodec(SCHEMA, schema_id=0), AvroCodec(wide, schema_id=1)
    shape = stream_shape(avro(codecs[0].avro_schema))
    known = Registered(*(codec.avro_schema for codec in codecs))
    schema = codecs[0].avro_schema
    decoder = AvroStream(shape, schema, schema, framed=True, registry=cast("Registry", known))
    noted = UPDATES.data.append_column(wide.field("note"), pa.array(["x", None]))
    later = UpdateColumns.of(noted, [9, 9], [5, 6])
    messages = [m for codec, said in zip(codecs, (UPDATES, later), strict=True) for m in codec.encode(said)]
    messages += [codec.encode(SAID)[0] for codec in codecs]
    found = decoder.decode(messages, ["a", "b", "c", "d"])
    rows = UPDATES.rows()
    assert shown(found[0]) == rows
    assert shown(found[1]) == [(rows[0][0], 9, 5), (rows[1][0], 9, 6)]
    assert shown(found[2]) == shown(found[3]) == ([0], [9], [(7, 1), (8, 1)])
    # What a number means that nobody knows, no message can tell: the source waits.
    with pytest.raises(RegistryError, match="is not there"):
        decoder.decode([b"\x00\x00\x00\x00\x07\x00"], ["e"])


def test_json_is_jsonb() -> None:
    decoder = JsonStream(stream_shape({"format": "json"}))
    first = '{"bb":1.10,"a":12345678901234567890.1234567}'
    second = '[null,"], \\"diff\\": 3"]'
    rows = f'[{{"time":5,"diff":-1,"data":{first}}},{{"data":{second},"time":6,"diff":2}}]'
    messages = [rows.encode(), b"[]", b'{"lower":[0],"upper":[],"counts":[{"time":5,"count":1}]}']
    found = decoder.decode(messages, ["a", "b", "c"])
    assert shown(found[0]) == [((canonical_json(first),), 5, -1), ((canonical_json(second),), 6, 2)]
    assert "12345678901234567890.1234567" in shown(found[0])[0][0][0]
    assert shown(found[1]) == [] and shown(found[2]) == ([0], [], [(5, 1)])


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                        inner,
                        max_size=3,
                    )
                ),
                max_leaves=6,
            ),
            st.integers(0, 2**63 - 1),
            st.integers(-(2**62), 2**62),
        ),
        max_size=4,
    )
)
def test_any_json_keeps_its_value(rows: list[tuple[Any, int, int]]) -> None:
    decoder = JsonStream(stream_shape({"format": "json"}))
    message = json.dumps([{"data": d, "time": t, "diff": n} for d, t, n in rows]).encode()
    (found,) = decoder.decode([message], ["a"])
    assert isinstance(found, UpdateColumns)
    assert [(json.loads(str(d[0])), t, n) for d, t, n in found.rows()] == rows


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"nonsense",
        b"[",
        b"[1]",
        b'[{"data":1,"time":2}]',
        b'[{"data":1,"time":2,"diff":1,"more":1}]',
        b'[{"data":1,"time":"2","diff":1}]',
        b'[{"data":1,"time":2.5,"diff":1}]',
        b'[{"data":1,"time":9223372036854775808,"diff":1}]',
        b'[{"data":1,"time":-1,"diff":1}]',
        b'{"lower":[0],"upper":[1]}',
        b'{"lower":[0],"lower":[1],"upper":[1],"counts":[]}',
        b'{"lower":0,"upper":[1],"counts":[]}',
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_message_is_told(message: bytes) -> None:
    decoder = JsonStream(stream_shape({"format": "json"}))
    (found,) = decoder.decode([message], ["a"])
    assert isinstance(found, InvalidMessage)


def test_a_seal_is_compared_in_json() -> None:
    decoder = JsonStream(stream_shape({"format": "json"}))
    codec = JsonCodec(SCHEMA, digests=True)
    good = codec.encode_progress(sealed(SAID, [1, 2]))
    bad = good.replace(b'"count":1', b'"count":2')
    found = decoder.decode([good, bad], ["a", "b"])
    assert shown(found[0]) == ([0], [9], [(7, 1), (8, 1)])
    assert shown(found[1]) == "a statement does not match its own digest"


def test_digests_of_avro_are_told() -> None:
    assert stream_shape(avro(AvroCodec(SCHEMA, digests=True).avro_schema)).digests


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "the schema is not JSON"),
        ('"int"', "not that of a CDCv2 stream"),
        ('["null", "int"]', "not that of a CDCv2 stream"),
        (AvroCodec(SCHEMA, 2).avro_schema, "stream are products"),
        (AvroCodec(SCHEMA).avro_schema.replace('"diff"', '"dif"').replace('"time"', '"tim"'), "has no field"),
        (
            AvroCodec(SCHEMA).avro_schema.replace(
                '"name":"time","type":"long"', '"name":"time","type":"int"'
            ),
            "not long",
        ),
    ],
)
def test_other_schemas_are_refused(schema: str, text: str) -> None:
    with pytest.raises(TidemillError) as caught:
        stream_shape(avro(schema))
    assert text in f"{caught.value.primary} {caught.value.detail}"


def test_other_formats_are_refused() -> None:
    with pytest.raises(TidemillError, match="requires that FORMAT is AVRO or JSON"):
        stream_shape({"format": "text"})


def test_a_decoder_is_of_its_kind() -> None:
    assert isinstance(open_stream_decoder(avro(AvroCodec(SCHEMA).avro_schema)), AvroStream)


def test_products_are_read_where_it_is_said_of_how_many_numbers() -> None:
    codec = AvroCodec(SCHEMA, 2)
    updates = UpdateColumns.of(UPDATES.data, [(1, 2)] * 2)
    form = {**avro(codec.avro_schema), "components": 2}
    said = [
        *codec.encode_updates(updates),
        *codec.encode(Progress([(0, 0)], [(1, 3), (2, 0)], [((1, 2), 1)])),
    ]
    rows, progress = open_stream_decoder(form).decode(said, ["0", "1"])
    assert isinstance(rows, UpdateColumns) and rows.times.tolist() == [[1, 2]] * 2
    assert isinstance(progress, Progress) and list(progress.upper) == [(1, 3), (2, 0)]
    with pytest.raises(InvalidValue, match="not that of a CDCv2 stream"):
        stream_shape({**avro(AvroCodec(SCHEMA).avro_schema), "components": 2})
    with pytest.raises(InvalidValue, match="times cannot have 17 components"):
        stream_shape({"format": "json", "components": 17})
    decoder = open_stream_decoder({"format": "json", "components": 2})
    texts = [b'[{"data":{"a":[1,2]},"time":[3, 4],"diff":1}]', b'[{"data":1,"time":3,"diff":1}]']
    good, bad = decoder.decode(texts, ["0", "1"])
    assert isinstance(good, UpdateColumns) and good.rows() == [(('{"a": [1, 2]}',), (3, 4), 1)]
    assert isinstance(bad, InvalidMessage)
