"""Avro message by message: frames, every error with its text, evolution that does not fit, what Debezium
wrote."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from avro_world import encode, plain, varint

from tidemill.decode import gather
from tidemill.decode.avro.columns import columns_of
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.avro.schema import SchemaError, parse_schema
from tidemill.decode.contract import with_original
from tidemill.decode.formats import open_decoder
from tidemill.types.wire.calendar import TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY

PREFIX = "avro deserialization error: "
DATA = Path(__file__).resolve().parents[1] / "kafka" / "data"


def record(*fields: Any, **more: Any) -> str:
    declared = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    return json.dumps({"type": "record", "name": "R", "fields": declared, **more})


def decode(
    schema: str, messages: Sequence[bytes | None], *, framed: bool = False
) -> tuple[list[list[Any]], list[Any]]:
    """The columns, and the errors without what all begin with."""
    decoded = AvroDecoder(schema, framed=framed).decode(pa.array(messages, pa.binary()))
    errors = [None] * len(messages) if decoded.errors is None else decoded.errors.to_pylist()
    assert all(error is None or error.startswith(PREFIX) for error in errors)
    return [plain(column) for column in decoded.columns], [e and e.removeprefix(PREFIX) for e in errors]


def test_the_text_that_clients_match() -> None:
    decoder = open_decoder({"format": "avro", "schema": '"int"', "framed": True, "registry": None})
    decoded = decoder.decode(pa.array([b"garbage"], pa.binary()))
    assert decoded.errors is not None
    assert f"Decode error: {with_original(decoded.errors[0].as_py(), b'garbage')}" == (
        "Decode error: avro deserialization error: wrong Confluent-style avro serialization magic: "
        'expected 0, got 103 (original text: garbage, original bytes: "67617262616765")'
    )


def test_frames() -> None:
    messages = [
        b"\0\0\0\0\1\2",
        b"\0\0\0\0",
        b"",
        b"\1\0\0\0\1\2",
        None,
        b"\0\0\0\0\1",
        b"\0\xff\xff\xff\xff\4",
    ]
    columns, errors = decode('"int"', messages, framed=True)
    assert columns == [[1, None, None, None, None, None, 2]]
    assert errors == [
        None,
        "Confluent-style avro serialization takes at least 5 bytes, got 4",
        "Confluent-style avro serialization takes at least 5 bytes, got 0",
        "wrong Confluent-style avro serialization magic: expected 0, got 1",
        None,
        "the message ends within a number",
        None,
    ]


def test_bytes_do_not_move_between_messages() -> None:
    """One byte too many and one too few: read one behind the other they would be two good messages."""
    schema = record(("a", "int"), ("b", {"type": "record", "name": "E", "fields": []}))
    columns, errors = decode(schema, [b"\2\4", b"", b"\2"])
    assert columns[0] == [None, None, 1]
    assert errors == [
        "1 bytes are left behind the value",
        'the message ends within a number (in field "a")',
        None,
    ]
    nothing = json.dumps({"type": "record", "name": "E", "fields": []})
    assert decode(nothing, [b"", b"\0", b""])[1] == [None, "1 bytes are left behind the value", None]


LONG_LIST = {"type": "array", "items": "string"}


@pytest.mark.parametrize(
    ("schema", "message", "why"),
    [
        ("string", b"\6ab", '3 bytes should follow, 2 are left (in field "f")'),
        ("string", b"\1", 'a length is negative: -1 (in field "f")'),
        ("string", varint(2**60), '1152921504606846976 bytes should follow, 0 are left (in field "f")'),
        ("string", b"\4\xc3(", 'invalid byte sequence for encoding "UTF8": 0xc3 0x28 (in field "f")'),
        ("string", b"\2\0", 'invalid byte sequence for encoding "UTF8": 0x00 (in field "f")'),
        ("int", b"\x80", 'the message ends within a number (in field "f")'),
        ("int", varint(2**31), 'int out of range: 2147483648 (in field "f")'),
        ("long", b"\xff" * 10, 'a number is longer than 10 bytes (in field "f")'),
        ("long", b"\xff" * 9 + b"\2", 'a number does not fit 64 bits (in field "f")'),
        ("boolean", b"\2", 'a boolean is 2 (in field "f")'),
        ("double", b"\0" * 7, '8 bytes should follow, 7 are left (in field "f")'),
        (["null", "int"], b"\4", 'a union has no branch 2 (in field "f")'),
        (["null", "int"], b"\1", 'a union has no branch -1 (in field "f")'),
        (
            {"type": "enum", "name": "K", "symbols": ["A"]},
            b"\2",
            'enum "K" has no symbol number 1 (in field "f")',
        ),
        (
            {"type": "array", "items": "int"},
            b"\x0e\2",
            '7 items should follow, 1 bytes are left (in field "f")',
        ),
        (
            {"type": "array", "items": "int"},
            b"\1\x06\2\0",
            'a block of 3 bytes should follow, 2 are left (in field "f")',
        ),
        (
            {"type": "array", "items": "int"},
            b"\1\4\2\2\0",
            'a block has 1 bytes more or less than it says (in field "f")',
        ),
        (
            {"type": "array", "items": "null"},
            varint(2**40),
            'more than 1000 items that may take no bytes (in field "f")',
        ),
        ({"type": "map", "values": "int"}, b"\2\2k\x80", 'the message ends within a number (in field "f.k")'),
        (
            {"type": "int", "logicalType": "date"},
            varint(-(2**31) + 5),
            'date out of range: -2147483643 (in field "f")',
        ),
        ({"type": "int", "logicalType": "time-millis"}, varint(-1), 'time out of range: -1 (in field "f")'),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            varint(2**62),
            'timestamp out of range: 4611686018427387904 (in field "f")',
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\6\1\0\0",
            'a decimal of 3 bytes does not fit numeric(4,2) (in field "f")',
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            b"\4xy",
            'invalid input syntax for type uuid: "xy" (in field "f")',
        ),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            b"\xff" * 12,
            'interval out of range (in field "f")',
        ),
        (
            {"type": "string", "connect.name": "io.debezium.data.Json"},
            b"\4{]",
            'invalid input syntax for type json (in field "f")',
        ),
        (
            {"type": "record", "name": "S", "fields": [{"name": "g", "type": LONG_LIST}]},
            b"\2\4x",
            '2 bytes should follow, 1 are left (in field "f.g")',
        ),
    ],
)
def test_every_error(schema: Any, message: bytes, why: str) -> None:
    """Alone, and among sound messages, which it does not harm."""
    text = record(("f", schema))
    assert decode(text, [message]) == ([[None]], [why])
    rng = random.Random(1)
    values = {"boolean": True, "int": 5, "long": 5, "double": 0.5, "string": "sound"}
    if isinstance(schema, str):
        sound = encode(rng, schema, values[schema])
        columns, errors = decode(text, [sound, message, sound] * 30)
        assert columns == [[values[schema], None, values[schema]] * 30]
        assert errors == [None, why, None] * 30


@pytest.mark.parametrize("count", [100, 5000])
def test_long_arrays_beside_short_ones(count: int) -> None:
    """Few messages with many items are read by themselves; the answer is the same."""
    rng = random.Random(2)
    schema = {"type": "array", "items": {"type": "map", "values": "string"}}
    values = [[{"k": str(i), "l": "x"} for i in range(n)] for n in (1, count, 0, 2, count + 1)]
    messages = [encode(rng, schema, value) for value in values]
    columns, errors = decode(record(("f", schema)), messages)
    assert errors == [None] * 5
    assert columns == [[[sorted(item.items()) for item in value] for value in values]]


def test_a_key_twice_counts_once() -> None:
    message = b"\4" + b"\2k\2" + b"\2k\6" + b"\0"
    assert decode(record(("f", {"type": "map", "values": "int"})), [message]) == ([[[("k", 3)]]], [None])


def test_a_message_of_10_mb() -> None:
    rng = random.Random(3)
    schema = record(("a", "int"), ("f", "bytes"), ("l", {"type": "array", "items": "long"}))
    large = encode(rng, json.loads(schema), {"a": 1, "f": b"x" * 10_000_000, "l": list(range(200_000))})
    small = encode(rng, json.loads(schema), {"a": 2, "f": b"y", "l": [1]})
    columns, errors = decode(schema, [small, large, small, large[:-1]])
    assert [error is None for error in errors] == [True, True, True, False]
    assert [len(f) if f else f for f in columns[1]] == [1, 10_000_000, 1, None]
    assert columns[2][1] == list(range(200_000))


@pytest.mark.parametrize(
    ("format_", "sound", "value"),
    [
        ({"format": "avro", "schema": '"bytes"', "framed": False}, b"\2x", b"x"),
        ({"format": "json"}, b"5", "5"),
    ],
)
def test_messages_have_a_limit(
    format_: dict[str, Any], sound: bytes, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "MAX_MESSAGE_BYTES", 1000)
    decoder = open_decoder(format_)
    decoded = decoder.decode(pa.array([sound, b" " * 1001, None, sound], pa.binary()))
    assert decoded.columns[0].to_pylist() == [value, None, None, value]
    assert decoded.errors is not None
    told = f"{format_['format']} deserialization error: message of 1001 bytes is longer than 1000"
    assert decoded.errors.to_pylist() == [None, told, None, None]


def test_long_arrays_of_numbers_are_read_at_once() -> None:
    """Also when a message has many blocks, sized or not, and one of the numbers is wrong."""
    rng = random.Random(5)
    schema = {"type": "array", "items": "int"}
    values = [list(range(-n, n)) for n in (3, 30_000, 0, 2_000)]
    messages = [encode(rng, schema, value) for value in values]
    wrong = varint(5000) + varint(1) * 4999 + varint(2**31) + b"\0"
    columns, errors = decode(record(("f", schema)), [*messages, wrong])
    assert columns == [[*values, None]]
    assert errors == [None] * 4 + ['int out of range: 2147483648 (in field "f")']


class Writers:
    def __init__(self, **schemas: str) -> None:
        self.schemas = schemas

    def schema_text(self, schema_id: int) -> str:
        return self.schemas[f"w{schema_id}"]


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        (record(("a", "string")), record(("a", "int")), '"string" cannot be read as "int" (in field "a")'),
        (record(("a", "long")), record(("a", "int")), '"long" cannot be read as "int" (in field "a")'),
        (
            record(("a", "int")),
            record(("a", "int"), ("b", "int")),
            'the writer has no such field and it has no default (in field "b")',
        ),
        (
            record(("a", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]})),
            record(("a", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "string"}]})),
            '"int" cannot be read as "string" (in field "a.x")',
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 3})),
            'a decimal of scale 2 cannot be read as one of scale 3 (in field "a")',
        ),
        (
            record(("a", "int"), ("n", ["null", "R"])),
            record(("a", "int")),
            'its type contains itself (in field "n")',
        ),
        (
            record(("a", ["string", "bytes"])),
            record(("a", "int")),
            '"string" cannot be read as "int" (in field "a")',
        ),
        (
            record(("a", "int")),
            record(("a", "int"), {"name": "b", "type": "int", "default": "x"}),
            "'x' is no default for int (in field \"b\")",
        ),
    ],
)
def test_evolution_that_does_not_fit(writer: str, reader: str, why: str) -> None:
    """All messages of that writer are errors; those of others are not."""
    decoder = AvroDecoder(reader, framed=True, writers=Writers(w1=writer, w2=reader))
    # A zero byte is an int, a string, some bytes and a record of one of these.
    sound = b"\0\0\0\0\2" + b"\0" * len(json.loads(reader)["fields"])
    decoded = decoder.decode(pa.array([b"\0\0\0\0\1\2", sound], pa.binary()))
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [
        f"{PREFIX}schema 1 cannot be read with the schema of the source: {why}",
        None,
    ]


def test_what_only_some_messages_have() -> None:
    """A branch or a symbol that the reader does not know is an error where it occurs."""
    symbols = [{"type": "enum", "name": "E", "symbols": s} for s in (["A", "B"], ["B"])]
    writer = record(("u", ["null", "string", "int"]), ("e", symbols[0]))
    reader = record(("u", ["null", "int"]), ("e", symbols[1]))
    decoder = AvroDecoder(reader, framed=True, writers=Writers(w1=writer))
    head = b"\0\0\0\0\1"
    messages = [head + b"\4\x0a\2", head + b"\2\2x\2", head + b"\0\2", head + b"\0\0"]
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    assert [c.to_pylist() for c in decoded.columns] == [[5, None, None, None], ["B", None, "B", None]]
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [
        None,
        f'{PREFIX}the union of the source\'s schema has no branch for "string" (in field "u")',
        None,
        f'{PREFIX}enum "E" of the source\'s schema has no symbol "A" (in field "e")',
    ]


def test_units_are_those_of_the_writer() -> None:
    def at(logical: str) -> str:
        return record(("t", {"type": "long", "logicalType": logical}))

    writers = Writers(w1=at("timestamp-millis"), w2=at("timestamp-micros"), w3=record(("t", "long")))
    decoder = AvroDecoder(at("timestamp-micros"), framed=True, writers=writers)
    messages = [b"\0\0\0\0" + bytes([i]) + varint(5_000_000) for i in (1, 2, 3)]
    assert plain(decoder.decode(pa.array(messages, pa.binary())).columns[0]) == [
        5 * 10**9,
        5 * 10**6,
        5 * 10**6,
    ]


@pytest.mark.parametrize(
    ("schema", "primary"),
    [
        ("{", "Avro schema is not JSON"),
        ("5", "Avro schema has no type at the top of the schema"),
        ('"text"', 'Avro schema has no type "text" at the top of the schema'),
        (record(("a", "x.Y")), 'Avro schema has no type "x.Y" at field "a"'),
        (record(("a", [])), 'Avro schema has a union of nothing at field "a"'),
        (record(("a", ["int", ["null"]])), 'Avro schema has a union in a union at field "a"'),
        (record(("a", ["int", "int"])), 'Avro schema has a union with "int" twice at field "a"'),
        (record(("a", "int"), ("a", "int")), 'Avro schema has field "a" twice'),
        ('{"type":"record","name":"R"}', "Avro schema has a record without fields at the top of the schema"),
        ('{"type":"fixed","name":"F"}', "Avro schema has a fixed without size at the top of the schema"),
        ('{"type":"array"}', "Avro schema has no type at the top of the schema"),
        (record({"name": "a"}), "Avro schema has a field without name or type at the top of the schema"),
        (
            record(("a", {"type": "record", "name": "N", "fields": [{"name": "b", "type": ["null", "N"]}]})),
            'Avro type "N" contains itself at field "a.b"',
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0})),
            'decimal of 39 digits is too long at field "a"',
        ),
        ("[" * 70 + '"int"' + "]" * 70, "Avro schema is deeper than 64 types at the top of the schema"),
    ],
)
def test_schemas_that_are_refused(schema: str, primary: str) -> None:
    with pytest.raises(SchemaError) as refused:
        columns_of(parse_schema(schema))
    assert refused.value.primary == primary


def test_a_schema_that_unfolds_without_end() -> None:
    """Each type twice in the next: the text is short, the tree is not."""
    inner: Any = {"type": "record", "name": "T0", "fields": [{"name": "a", "type": "int"}]}
    for i in range(1, 40):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"T{i - 1}"}]
        inner = {"type": "record", "name": f"T{i}", "fields": fields}
    with pytest.raises(SchemaError, match=r"more than 20000 types|deeper than"):
        columns_of(parse_schema(json.dumps(inner)))


def columns_text(schema: Any) -> list[str]:
    text = schema if isinstance(schema, str) and schema.startswith("{") else json.dumps(schema)
    return [f"{c.name} {c.type}{'' if c.nullable else ' not null'}" for c in columns_of(parse_schema(text))]


def test_columns() -> None:
    assert columns_text(["null", "string"]) == ["data text"]
    assert columns_text("long") == ["data bigint not null"]
    line = {"type": "record", "name": "a.Line", "fields": [{"name": "n", "type": "int"}]}
    other = {"type": "record", "name": "b.Line", "fields": []}
    assert columns_text(
        record(
            ("one", {"type": "array", "items": line}),
            ("two", ["null", "a.Line", "int", {"type": "map", "values": "bytes"}]),
            ("three", ["a.Line", other]),
            ("four", "null"),
            ("five", {"type": "long", "logicalType": "timestamp-nanos"}),
            ("six", {"type": "string", "logicalType": "date"}),
        )
    ) == [
        "one record(n integer) list not null",
        'two record("Line" record(n integer), int integer, map map[text=>bytea])',
        'three record("a.Line" record(n integer), "b.Line" record()) not null',
        "four text",
        "five bigint not null",
        "six text not null",
    ]


def test_what_debezium_wrote() -> None:
    """Real messages of Debezium on PostgreSQL, with all of its types."""
    schemas = json.loads((DATA / "pga_avro_schemas.json").read_text())
    writers = Writers(**{f"w{number}": json.dumps(schema) for number, schema in schemas.items()})
    lines = [json.loads(line) for line in (DATA / "pga_avro_raw.jsonl").read_text().splitlines()]
    for topic in {line["topic"] for line in lines}:
        mine = [line for line in lines if line["topic"] == topic and line["value_b64"]]
        decoder = AvroDecoder(writers.schema_text(mine[0]["value_id"]), framed=True, writers=writers)
        messages = [base64.b64decode(line["value_b64"]) for line in mine]
        decoded = decoder.decode(pa.array(messages, pa.binary()))
        errors = decoded.errors.to_pylist() if decoded.errors is not None else [None] * len(mine)
        ops = [c.name for c in decoder.columns]
        for i, (line, error) in enumerate(zip(mine, errors, strict=True)):
            if topic == "pga.public.alltypes" and line["offset"] == 2:
                # An infinite date: what Debezium makes of it is no date.
                assert error == f'{PREFIX}date out of range: -622191234 (in field "after.d")'
                continue
            assert error is None
            if "op" in ops:
                assert decoded.columns[ops.index("op")][i].as_py() == line["value"]["op"]
        if topic == "pga.public.alltypes":
            first = plain(decoded.columns[ops.index("after")])[0]
            assert first["n_num"] == Decimal("12345.678")
            assert first["n_free"] == Decimal("0.1")
            assert first["ts"] == 1710037800123456
            assert first["tstz"] == 1710018000123456
            assert (first["d"], first["t"]) == (19782, 47655123456)
            assert first["u"].hex() == "a0eebc999c0b4ef8bb6d6bb9bd380a11"
            assert first["j"].startswith('{"a": [1, null, 1000')
            assert first["ai"] == [1, None, 3]
            assert first["at"] == ["a b", None, "c,d"]
            fourth = plain(decoded.columns[ops.index("after")])[3]
            assert fourth["tstz"] == -63517824000000000  # 44 BC
    assert len(lines) > 20


def test_debezium_oddities() -> None:
    def typed(kind: str, name: str) -> str:
        return record(("f", {"type": kind, "connect.name": name}))

    micro = typed("long", "io.debezium.time.MicroTimestamp")
    found = decode(micro, [varint(9223372036825200000), varint(-9223372036832400000), varint(7)])
    assert found == ([[TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, 7]], [None] * 3)
    zoned = typed("string", "io.debezium.time.ZonedTimestamp")
    texts = [
        "infinity",
        "-infinity",
        "2024-03-09T21:00:00Z",
        "2024-13-09T21:00:00Z",
        "+10000-01-01T00:00:00Z",
    ]
    columns, errors = decode(zoned, [varint(len(t)) + t.encode() for t in texts])
    assert columns[0][:3] == [TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, 1710018000000000]
    assert [error is None for error in errors] == [True, True, True, False, True]
    assert columns[0][4] == 253402300800000000
    unavailable = "__debezium_unavailable_value"
    json_column, _ = decode(
        typed("string", "io.debezium.data.Json"),
        [varint(len(t)) + t.encode() for t in (unavailable, '{"b":1.0}')],
    )
    assert json_column == [[f'"{unavailable}"', '{"b": 1}']]


def test_numeric_without_precision() -> None:
    schema = record(
        (
            "n",
            {
                "type": "record",
                "name": "V",
                "connect.name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            },
        )
    )

    def message(scale: int, number: int) -> bytes:
        raw = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        return varint(scale) + varint(len(raw)) + raw

    cases = [
        (message(2, 12345), Decimal("123.45")),
        (message(0, -7), Decimal(-7)),
        (message(-3, 5), Decimal(5000)),
        (message(18, 1), Decimal("1e-18")),
        (message(20, 150), Decimal("2e-18")),  # 1.5 of the last digit
        (message(40, 10**39), Decimal("0.1")),
        (message(0, 10**19), Decimal(10**19)),
        (message(0, 10**20), None),
        (message(2**31 - 1, 1), None),
        (message(-(2**31), 1), None),
        (message(0, 10**5000), None),
    ]
    columns, errors = decode(schema, [raw for raw, _ in cases])
    assert columns[0] == [value for _, value in cases]
    assert [error is None for error in errors] == [value is not None for _, value in cases]
