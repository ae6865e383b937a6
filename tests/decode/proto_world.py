"""Random Protobuf messages of two schemas that have everything; Protobuf's own parser as the oracle."""

from __future__ import annotations

import math
import random
import struct
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import message_factory

from tidemill.decode.protobuf import compiled, find_message

COMMON = """
syntax = "proto3";
package common;
message Point { sint32 x = 1; sint32 y = 2; }
enum Colour { NONE = 0; RED = 1; GREEN = 5; BELOW = -1; }
"""
PROTO3 = """
syntax = "proto3";
package shop;
import "shared/common.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  message Line { string sku = 1; uint32 n = 2; repeated double weights = 3; Line2 deep = 4; }
  message Line2 { map<string, common.Point> points = 1; }
  int64 id = 1;  string name = 2;  double amount = 3;  optional string note = 4;  common.Colour colour = 5;
  google.protobuf.Timestamp at = 6;  bool ok = 7;  float score = 8;  repeated Line lines = 9;
  map<string, int32> tags = 10;  map<int64, string> by_id = 11;  map<bool, Line2> by_flag = 12;
  oneof pay { string card = 13; uint64 cash = 14; common.Point where = 15; }
  google.protobuf.StringValue maybe_text = 16;  google.protobuf.Int64Value maybe_long = 17;
  google.protobuf.BoolValue maybe_flag = 18;  google.protobuf.Duration took = 19;
  repeated int32 numbers = 20;  repeated string words = 21;  repeated common.Colour colours = 22;
  repeated fixed64 fixed = 23;  repeated float floats = 24;  repeated bool flags = 25;  bytes raw = 26;
  int32 i32 = 27;  sint64 s64 = 28;  uint32 u32 = 29;  uint64 u64 = 30;  fixed32 f32 = 31;  fixed64 f64 = 32;
  sfixed32 sf32 = 33;  sfixed64 sf64 = 34;  sint32 s32 = 35;  optional int32 maybe_int = 36;
  google.protobuf.Struct extra = 300;  repeated google.protobuf.Timestamp times = 301;
  repeated google.protobuf.StringValue texts = 302;  map<uint64, bytes> blobs = 40000;
}
message Other { string name = 1; }
"""
PROTO2 = """
syntax = "proto2";
package old;
message Old {
  enum Kind { A = 1; B = 2; }
  required int32 id = 1;  optional string name = 2 [default = "x"];  optional Kind kind = 3;
  repeated int32 numbers = 4;  repeated int32 packed = 5 [packed = true];  repeated Kind kinds = 6;
  optional group Extra = 7 { optional int32 n = 1; }
  optional bytes raw = 8;
}
"""


@cache
def files(name: str) -> bytes:
    if name == "old.Old":
        return compiled(PROTO2, {})
    return compiled(PROTO3, {"shared/common.proto": COMMON})


@cache
def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(find_message(files(name), name))


TEXTS = ["", "a", "some text", "ö 日本 𝄞", "x" * 150]
NUMBERS = [0, 1, -1, 63, 64, 127, 128, 300, 2**31 - 1, -(2**31)]


def fill(rng: random.Random, message: Any, depth: int = 3) -> Any:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and rng.random() < 0.4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            for _ in range(rng.randint(0, 3)):
                key = scalar(rng, field.message_type.fields_by_name["key"])
                value = field.message_type.fields_by_name["value"]
                if value.message_type is None:
                    entries[key] = scalar(rng, value)
                else:
                    fill(rng, entries[key], depth - 1)
        elif field.is_repeated:
            for _ in range(rng.choice([0, 1, 2, 5])):
                if field.message_type is None:
                    getattr(message, field.name).append(scalar(rng, field))
                else:
                    fill(rng, getattr(message, field.name).add(), depth - 1)
        elif field.message_type is None:
            setattr(message, field.name, scalar(rng, field))
        elif depth > 0:
            inner = getattr(message, field.name)
            inner.SetInParent()
            fill(rng, inner, depth - 1)
    return message


def scalar(rng: random.Random, field: Any) -> Any:
    if field.containing_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return rng.randint(0, 999_999_999) if field.name == "nanos" else rng.randint(0, 10**11)
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            return (
                rng.choice(TEXTS)
                if field.type == field.TYPE_STRING
                else rng.randbytes(rng.choice([0, 3, 200]))
            )
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_DOUBLE:
            if field.containing_type.full_name == "google.protobuf.Value":
                return rng.choice([0.0, 1.5, -1e20])  # JSON has no infinity
            return rng.choice([0.0, -0.0, 1.5, math.inf, rng.uniform(-1e300, 1e300)])
        case field.CPPTYPE_FLOAT:
            return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
        case field.CPPTYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return rng.choice(known) if field.enum_type.is_closed or rng.random() < 0.9 else 77
        case field.CPPTYPE_INT32:
            return rng.choice(NUMBERS)
        case field.CPPTYPE_UINT32:
            return rng.choice([0, 1, 128, 2**32 - 1])
        case field.CPPTYPE_INT64:
            return rng.choice([*NUMBERS, 2**63 - 1, -(2**63), 2**40])
        case _:
            return rng.choice([0, 1, 2**63, 2**64 - 1])


def expected(message: Any) -> dict[str, Any]:
    """What the columns must hold, in the words of `avro_world.plain`."""
    return {field.name: _expected_field(message, field) for field in message.DESCRIPTOR.fields}


def _expected_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return sorted((_key(k), _single(value[k], of)) for k in value)
    if field.is_repeated:
        return [_single(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single(value: Any, field: Any) -> Any:
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Decimal(value)
    if field.type == field.TYPE_ENUM:
        found = field.enum_type.values_by_number.get(value)
        return found.name if found is not None else str(value)
    if value != value:
        return "NaN"
    if field.message_type is None:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return value.seconds * 10**6 + value.nanos // 1000
        case "google.protobuf.Duration":
            cut = abs(value.nanos) // 1000 * (1 if value.nanos >= 0 else -1)
            return {"months": 0, "days": 0, "micros": value.seconds * 10**6 + cut}
        case "google.protobuf.Struct":
            return "{}" if not value.fields else "json"
        case name if name.startswith("google.protobuf.") and name.endswith("Value"):
            return _single(value.value, field.message_type.fields_by_name["value"])
        case _:
            return expected(value)


def in_pieces(rng: random.Random, message: Any) -> bytes:
    """The same message, its fields in another order, perhaps with unknown ones between: as lawful as any."""
    pieces = [b"\xc8\x3e\x05", b"\xd2\x3e\x03abc"] if rng.random() < 0.5 else []
    for field, _ in message.ListFields():
        part = type(message)()
        for other, _ in message.ListFields():
            if other.name == field.name:
                part.MergeFrom(message)
                for unwanted, _ in message.ListFields():
                    if unwanted.name != field.name:
                        part.ClearField(unwanted.name)
        pieces.append(part.SerializePartialToString())
    rng.shuffle(pieces)
    return b"".join(pieces)
