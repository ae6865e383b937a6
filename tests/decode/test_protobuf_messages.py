"""Protobuf message by message: errors with their texts, frames, schemas that are refused; and formats at
CREATE."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from proto_world import files

from tidemill.decode.avro.schema import SchemaError
from tidemill.decode.formats import open_decoder
from tidemill.decode.protobuf import ProtobufDecoder, columns_of, compiled, find_message, message_at
from tidemill.decode.resolve import (
    FormatResolution,
    avro_inline,
    csv_format,
    plain_format,
    protobuf_inline,
    regex_format,
)
from tidemill.errors import Internal, InvalidValue, TidemillError

PREFIX = "protobuf deserialization error: "
SYNTAX = 'syntax = "proto3";'
TIMED = (
    f'{SYNTAX} import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; message M '
    "{ int32 id = 1; google.protobuf.Timestamp at = 2; google.protobuf.Duration took = 3; string s = 4; }"
)


def errors_of(decoder: Any, messages: list[bytes]) -> list[str | None]:
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    found: list[str | None] = [None] * len(messages)
    if decoded.errors is not None:
        found = decoded.errors.to_pylist()
    return [error and error.removeprefix(PREFIX) for error in found]


def test_every_error() -> None:
    descriptors = compiled(TIMED, {})
    message: Any = message_factory.GetMessageClass(find_message(descriptors, "M"))
    good = message(id=1, s="x").SerializeToString()

    def at(seconds: int, nanos: int) -> bytes:
        made = message()
        made.at.seconds, made.at.nanos = seconds, nanos
        return made.SerializeToString()

    long = message()
    long.took.seconds, long.took.nanos = 5, -1
    wide = message()
    wide.took.seconds = 2**62
    cases: list[tuple[bytes, str | None]] = [
        (good, None),
        (good + b"\0", "Wire format was corrupt"),
        (good[:-1], "Wire format was corrupt"),
        (b"\x22\2\xc3(", "invalid UTF-8"),
        (b"\x22\2a\0", 'invalid byte sequence for encoding "UTF8": 0x00 (in field "s")'),
        (at(2**62, 0), 'timestamp out of range: 4611686018427387904 seconds (in field "at")'),
        (at(1, -5), 'a timestamp has -5 nanoseconds (in field "at")'),
        (long.SerializeToString(), 'a duration has 5 seconds and -1 nanoseconds (in field "took")'),
        (wide.SerializeToString(), 'interval out of range (in field "took")'),
        (good, None),
    ]
    found = errors_of(ProtobufDecoder(descriptors, ".M", framed=False), [raw for raw, _ in cases])
    for (_, expected), error in zip(cases, found, strict=True):
        if expected == "invalid UTF-8":
            assert error is not None
            assert "UTF-8" in error
        else:
            assert error == expected


def test_required_fields() -> None:
    assert errors_of(ProtobufDecoder(files("old.Old"), "old.Old", framed=False), [b"\x08\1", b""]) == [
        None,
        "message lacks the required field id",
    ]


def test_frames_without_a_registry() -> None:
    descriptors = compiled(f"{SYNTAX} message M {{ int32 id = 1; }}", {})
    decoder = ProtobufDecoder(descriptors, "M", framed=True)
    head = b"\0\0\0\0\7"
    messages = [head + b"\0\x08\5", head + b"\4\2\2\x08\5", head, b"x" * 9, head[:3], head + b"\1"]
    assert errors_of(decoder, messages) == [
        None,
        None,
        "the message ends within a number",
        "wrong Confluent-style serialization magic: expected 0, got 120",
        "Confluent-style serialization takes at least 5 bytes, got 3",
        "a frame with a path of -1 messages",
    ]
    assert decoder.decode(pa.array(messages[:2], pa.binary())).columns[0].to_pylist() == [5, 5]


@pytest.mark.parametrize(
    ("text", "primary"),
    [
        (f"{SYNTAX} message M {{ M inner = 1; }}", 'Protobuf message "M" contains itself at field "inner"'),
        (
            f"{SYNTAX} message M {{ N n = 1; }} message N {{ repeated M back = 1; }}",
            'Protobuf message "M" contains itself at field "n.back"',
        ),
        (f"{SYNTAX} message N {{ }}", 'Protobuf schema has no message ".M"'),
        ("no schema", "Protobuf schema cannot be compiled"),
        (f'{SYNTAX} import "missing.proto"; message M {{ }}', "Protobuf schema cannot be compiled"),
    ],
)
def test_schemas_that_are_refused(text: str, primary: str) -> None:
    with pytest.raises(SchemaError) as refused:
        columns_of(find_message(compiled(text, {}), ".M"))
    assert refused.value.primary == primary


@pytest.mark.parametrize("name", ["../evil.proto", "/etc/evil.proto", "", "a/../../evil.proto"])
def test_files_stay_in_their_folder(name: str) -> None:
    with pytest.raises(SchemaError, match="refers to a file named"):
        compiled(f"{SYNTAX} message M {{ }}", {name: SYNTAX})


def test_descriptors_without_googles_own_types() -> None:
    """As protoc makes them without --include_imports."""
    whole = descriptor_pb2.FileDescriptorSet.FromString(compiled(TIMED, {}))
    own = descriptor_pb2.FileDescriptorSet(file=[f for f in whole.file if not f.name.startswith("google/")])
    assert [str(c.type) for c in columns_of(find_message(own.SerializeToString(), "M"))][1:3] == [
        "timestamp with time zone",
        "interval",
    ]
    broken = descriptor_pb2.FileDescriptorSet()
    broken.file.add(name="a.proto", dependency=["b.proto"])
    with pytest.raises(SchemaError, match=r'imports "b\.proto"'):
        find_message(broken.SerializeToString(), "M")
    looped = descriptor_pb2.FileDescriptorSet()
    looped.file.add(name="a.proto", dependency=["b.proto"])
    looped.file.add(name="b.proto", dependency=["a.proto"])
    with pytest.raises(SchemaError, match="imports itself"):
        find_message(looped.SerializeToString(), "M")
    for raw in (b"", b"garbage"):
        with pytest.raises(SchemaError, match="no FileDescriptorSet"):
            find_message(raw, "M")


def test_messages_within_messages_are_found_by_their_path() -> None:
    descriptors = compiled(
        f"{SYNTAX} package p; message A {{ message B {{ }} message C {{ }} }} message D {{ }}", {}
    )
    assert [message_at(descriptors, path) for path in ([0], [1], [0, 1])] == ["p.A", "p.D", "p.A.C"]
    with pytest.raises(SchemaError):
        message_at(descriptors, [0, 2])


def named(found: FormatResolution) -> list[str]:
    return [f"{c.name} {c.type}" for c in found.columns]


def test_formats_at_create() -> None:
    """Each is plain JSON, and opens to the columns that were told."""
    resolved = {
        "json": plain_format("json"),
        "text": plain_format("text"),
        "bytes": plain_format("bytes"),
        "csv": csv_format(2, ";"),
        "header": csv_format(["a", "b"]),
        "regex": regex_format("(?P<a>x)"),
        "avro": avro_inline('{"type":"record","name":"R","fields":[{"name":"f","type":"int"}]}'),
        "protobuf": protobuf_inline(".M", compiled(f"{SYNTAX} message M {{ uint64 id = 1; }}", {})),
    }
    assert {name: named(found) for name, found in resolved.items()} == {
        "json": ["data jsonb"],
        "text": ["text text"],
        "bytes": ["data bytea"],
        "csv": ["column1 text", "column2 text"],
        "header": ["a text", "b text"],
        "regex": ["a text"],
        "avro": ["f integer"],
        "protobuf": ["id uint8"],
    }
    for found in resolved.values():
        assert open_decoder(json.loads(json.dumps(found.format))).columns == found.columns
    assert base64.b64decode(resolved["protobuf"].format["descriptor"])
    with pytest.raises(Internal):
        open_decoder({"format": "xml"})


@pytest.mark.parametrize(
    ("columns", "delimiter"),
    [(0, ","), ([], ","), (1601, ","), (["a", "a"], ","), (1, ""), (1, ",,"), (1, '"'), (1, "\n"), (1, "ö")],
)
def test_csv_that_is_refused(columns: Any, delimiter: str) -> None:
    with pytest.raises(InvalidValue):
        csv_format(columns, delimiter)


def test_a_format_that_there_is_not() -> None:
    with pytest.raises(TidemillError, match="format xml is not supported"):
        plain_format("xml")
