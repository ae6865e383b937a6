"""Random Avro: schemas, values, and bytes in every form that the specification allows; fastavro as the
oracle.

The encoder is the tests' own, for writers differ: arrays in one block or several, with sizes or without,
numbers in more bytes than they need.
"""

from __future__ import annotations

import io
import json
import random
import struct
from decimal import Decimal
from functools import lru_cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from tidemill.types.names import physical_names_of

LOGICAL = ("logicalType", "precision", "scale")


class Names:
    """A new name for each named type."""

    def __init__(self) -> None:
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"N{self.count}"


# --- schemas ---


def random_record(rng: random.Random, names: Names, depth: int = 2) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": random_type(rng, names, depth)} for i in range(rng.randint(1, 6))]
    return {"type": "record", "name": names.new(), "fields": fields}


def random_type(rng: random.Random, names: Names, depth: int) -> Any:
    simple = [
        lambda: rng.choice(["boolean", "int", "long", "float", "double", "bytes", "string"]),
        lambda: {"type": "int", "logicalType": rng.choice(["date", "time-millis"])},
        lambda: {
            "type": "long",
            "logicalType": rng.choice(
                (
                    "time-micros",
                    *(f"{local}timestamp-{u}" for local in ("", "local-") for u in ("millis", "micros")),
                )
            ),
        },
        lambda: {"type": "string", "logicalType": "uuid"},
        lambda: {"type": "bytes", **_decimal(rng, 38)},
        lambda: {"type": "fixed", "name": names.new(), "size": 9, **_decimal(rng, 21)},
        lambda: {"type": "fixed", "name": names.new(), "size": 12, "logicalType": "duration"},
        lambda: {"type": "fixed", "name": names.new(), "size": rng.randint(0, 20)},
        lambda: {"type": "enum", "name": names.new(), "symbols": ["A", "B", "C", "D"]},
    ]
    nested = [
        lambda: {"type": "array", "items": random_type(rng, names, depth - 1)},
        lambda: {"type": "map", "values": random_type(rng, names, depth - 1)},
        lambda: random_record(rng, names, depth - 1),
        lambda: _several(rng, names, depth - 1),
    ]
    if depth > 0 and rng.random() < 0.4:
        return rng.choice(nested)()
    found = rng.choice(simple)()
    if rng.random() < 0.4:
        return ["null", found] if rng.random() < 0.7 else [found, "null"]
    return found


def _decimal(rng: random.Random, most: int) -> dict[str, Any]:
    precision = rng.randint(1, most)
    return {"logicalType": "decimal", "precision": precision, "scale": rng.randint(0, precision)}


def _several(rng: random.Random, names: Names, depth: int) -> list[Any]:
    """A union whose branches fastavro's values tell apart."""
    chars = rng.choice(["string", {"type": "enum", "name": names.new(), "symbols": ["X", "Y"]}])
    octets: Any = {"type": "fixed", "name": names.new(), "size": 3}
    kinds: list[Any] = [
        "null",
        "boolean",
        rng.choice(["int", "long"]),
        rng.choice(["float", "double"]),
        chars,
        octets if chars == "string" else rng.choice(["bytes", octets]),
        {"type": "array", "items": random_type(rng, names, depth)},
        random_record(rng, names, min(depth, 1)),
    ]
    return rng.sample(kinds, rng.randint(2, 5))


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else schema["type"]


def stripped(schema: Any) -> Any:
    """Without logical types: what fastavro then reads are the bare numbers and bytes."""
    if isinstance(schema, list):
        return [stripped(s) for s in schema]
    if isinstance(schema, dict):
        bare = {k: v for k, v in schema.items() if k not in LOGICAL}
        for key in ("items", "values", "type"):
            if key in bare and not isinstance(bare[key], str):
                bare[key] = stripped(bare[key])
        if "fields" in bare:
            bare["fields"] = [{**f, "type": stripped(f["type"])} for f in bare["fields"]]
        return bare
    return schema


# --- values, as fastavro gives them for a stripped schema; a union's is (branch, value) ---

TEXTS = ["", "a", "plain text", "zwölf Boxkämpfer", "日本語 𝄞", "x" * 200]
UUIDS = [
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
    "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
]


def random_value(rng: random.Random, schema: Any) -> Any:
    kind = kind_of(schema)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    match kind:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "int" | "long":
            return _random_number(rng, kind, logical)
        case "float":
            return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
        case "double":
            return rng.choice([0.0, 1.5, float("inf"), rng.uniform(-1e300, 1e300)])
        case "string":
            return rng.choice(UUIDS if logical == "uuid" else TEXTS)
        case "bytes":
            return _digits(rng, schema) if logical == "decimal" else rng.randbytes(rng.choice([0, 1, 5, 300]))
        case "fixed":
            if logical == "decimal":
                return _digits(rng, schema).rjust(schema["size"], b"\0")
            if logical == "duration":
                return struct.pack("<3I", *(rng.randrange(2**31) for _ in range(3)))
            return rng.randbytes(schema["size"])
        case "enum":
            return rng.choice(schema["symbols"])
        case "array":
            return [random_value(rng, schema["items"]) for _ in range(rng.choice([0, 1, 2, 3, 9]))]
        case "map":
            keys = rng.sample(["", "a", "b", "key", "ö", "a longer key"], rng.randint(0, 4))
            return {k: random_value(rng, schema["values"]) for k in keys}
        case "record":
            return {f["name"]: random_value(rng, f["type"]) for f in schema["fields"]}
        case _:
            branch = rng.randrange(len(schema))
            return branch, random_value(rng, schema[branch])


def _random_number(rng: random.Random, kind: str, logical: str | None) -> int:
    if logical in ("time-millis", "time-micros"):
        return rng.randint(0, 86_400_000 * (1000 if logical == "time-micros" else 1))
    if logical == "date":
        return rng.choice([0, -719162, 19782, 2**31 - 1, -(2**31), rng.randint(-2_440_588, 2_145_042_905)])
    if logical is not None:
        unit = 1 if logical.endswith("micros") else 1000
        return rng.choice([0, rng.randint(-(10**16), 10**17)]) // unit
    bits = rng.choice(
        [1, 6, 7, 8, 13, 14, 20, 31] + ([32, 41, 48, 55, 56, 57, 62, 63] if kind == "long" else [])
    )
    return rng.randint(-(2**bits), 2**bits - 1)


def _digits(rng: random.Random, schema: Any) -> bytes:
    number = rng.randrange(10 ** rng.randint(0, schema["precision"]))
    if schema["type"] == "bytes" and rng.random() < 0.5:
        number = -number
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


# --- bytes ---


def varint(value: int, *, longer: int = 0) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    while longer and len(out) < 10:
        out[-1] |= 0x80
        out.append(0)
        longer -= 1
    return bytes(out)


def encode(rng: random.Random, schema: Any, value: Any) -> bytes:
    kind = kind_of(schema)
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return varint(value, longer=rng.choice([0] * 9 + [1]))
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            raw = value.encode()
            return varint(len(raw)) + raw
        case "bytes":
            return varint(len(value)) + value
        case "fixed":
            return value
        case "enum":
            return varint(schema["symbols"].index(value))
        case "array":
            return _blocks(rng, [encode(rng, schema["items"], item) for item in value])
        case "map":
            return _blocks(
                rng,
                [encode(rng, "string", k) + encode(rng, schema["values"], v) for k, v in value.items()],
            )
        case "record":
            return b"".join(encode(rng, f["type"], value[f["name"]]) for f in schema["fields"])
        case _:
            branch, inner = value
            return varint(branch) + encode(rng, schema[branch], inner)


def _blocks(rng: random.Random, items: list[bytes]) -> bytes:
    out = b""
    while items:
        size = rng.choice([len(items), rng.randint(1, len(items))])
        block, items = b"".join(items[:size]), items[size:]
        out += varint(-size) + varint(len(block)) if rng.random() < 0.3 else varint(size)
        out += block
    return out + b"\0"


def fastavro_value(schema: Any, message: bytes, reader: Any = None) -> tuple[Any, int]:
    """What fastavro reads, without logical types, and how many bytes it left."""
    stream = io.BytesIO(message)
    wanted = None if reader is None else _parsed(text(reader))
    value = fastavro.schemaless_reader(stream, _parsed(text(schema)), wanted)
    return value, len(message) - stream.tell()


@lru_cache(maxsize=100)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(stripped(json.loads(schema)))


# --- what the columns must hold ---


def expected(schema: Any, value: Any) -> Any:
    """fastavro's value as `plain` shows the column's."""
    kind = kind_of(schema)
    if kind != "union" and value != value:
        return "NaN"
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if value is None:
        return None
    if logical in ("time-millis", "timestamp-millis", "local-timestamp-millis"):
        return value * 1000
    if logical == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(f"{number}e-{schema['scale']}")
    if logical == "uuid":
        return bytes.fromhex(value.strip("{}").replace("-", ""))
    if logical == "duration":
        months, days, millis = struct.unpack("<3I", value)
        return {"months": months, "days": days, "micros": millis * 1000}
    match kind:
        case "bytes" if isinstance(value, str):  # fastavro leaves defaults as they are
            return value.encode("latin-1")
        case "float":
            return float(np.float32(value))
        case "array":
            return [expected(schema["items"], item) for item in value]
        case "map":
            return sorted((k, expected(schema["values"], v)) for k, v in value.items())
        case "record":
            return {f["name"]: expected(f["type"], value[f["name"]]) for f in schema["fields"]}
        case "union":
            return _expected_branch(schema, value)
        case _:
            return value


def _expected_branch(schema: Any, value: Any) -> Any:
    branches = [b for b in schema if b != "null"]
    if len(branches) == 1:
        return expected(branches[0], value)
    fits = {
        bool: ("boolean",),
        int: ("int", "long"),
        float: ("float", "double"),
        str: ("string", "enum"),
        bytes: ("bytes", "fixed"),
        list: ("array",),
        dict: ("record", "map"),
    }
    chosen = next(b for b in branches if kind_of(b) in fits[type(value)])
    names = [b["name"] if isinstance(b, dict) and "name" in b else kind_of(b) for b in branches]
    fields = physical_names_of(names)
    return {
        name: expected(b, value) if b is chosen else None for name, b in zip(fields, branches, strict=True)
    }


def plain(column: pa.Array) -> list[Any]:
    """Python values in which times are numbers, maps are sorted pairs, and NaN equals itself."""
    return [_shown(value, column.type) for value in column.cast(_plain_type(column.type)).to_pylist()]


def _plain_type(t: Any) -> Any:
    if pa.types.is_timestamp(t):
        return pa.int64()
    if pa.types.is_date32(t):
        return pa.int32()
    if pa.types.is_map(t):
        return pa.map_(pa.string(), _plain_type(t.item_type))
    if pa.types.is_list(t):
        return pa.list_(pa.field(t.value_field.name, _plain_type(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([pa.field(f.name, _plain_type(f.type)) for f in t])
    return t


def _shown(value: Any, t: Any) -> Any:
    if value is None:
        return None
    if value != value:
        return "NaN"
    if pa.types.is_map(t):
        return sorted((k, _shown(v, t.item_type)) for k, v in value)
    if pa.types.is_list(t):
        return [_shown(v, t.value_type) for v in value]
    if pa.types.is_struct(t):
        return {f.name: _shown(value[f.name], f.type) for f in t}
    return value


def text(schema: Any) -> str:
    return json.dumps(schema)


# --- evolution ---

_WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"]}
_DEFAULTS: dict[str, list[Any]] = {
    "boolean": [True],
    "int": [7, -1],
    "long": [2**40],
    "double": [0.5],
    "string": ["default", "ö"],
    "bytes": ["\u00ff\u0000"],
}


def evolved(rng: random.Random, schema: Any, names: Names) -> Any:
    """A schema that can read what `schema` wrote."""
    kind = kind_of(schema)
    match kind:
        case "record":
            return {**schema, "fields": _evolved_fields(rng, schema["fields"], names)}
        case "array":
            return {**schema, "items": evolved(rng, schema["items"], names)}
        case "map":
            return {**schema, "values": evolved(rng, schema["values"], names)}
        case "enum":
            symbols = list(schema["symbols"])
            rng.shuffle(symbols)
            if rng.random() < 0.5:
                return {**schema, "symbols": ["Z", *symbols]}
            return {**schema, "symbols": ["OTHER", *symbols[1:]], "default": "OTHER"}
        case "union":
            branches = [evolved(rng, b, names) if kind_of(b) == "record" else b for b in schema]
            rng.shuffle(branches)
            # fastavro takes the first branch that can hold a value, we the one of its own type.
            return sorted(branches, key=lambda b: b in ("float", "double"))
        case _:
            if isinstance(schema, str) and schema in _WIDER and rng.random() < 0.5:
                schema = rng.choice(_WIDER[schema])
            return ["null", schema] if rng.random() < 0.2 else schema


def _evolved_fields(rng: random.Random, fields: list[Any], names: Names) -> list[Any]:
    result: list[Any] = []
    for field in fields:
        fate = rng.random()
        if fate < 0.2:
            continue
        changed = {**field, "type": evolved(rng, field["type"], names)}
        if fate < 0.35:
            changed |= {"name": f"new_{field['name']}", "aliases": [field["name"]]}
        result.append(changed)
    for _ in range(rng.randint(0, 2)):
        kind = rng.choice(list(_DEFAULTS))
        added: Any = {"name": names.new(), "type": kind, "default": rng.choice(_DEFAULTS[kind])}
        if rng.random() < 0.3:
            added |= {"type": ["null", kind], "default": None}
        result.append(added)
    rng.shuffle(result)
    return result


# --- mutations ---


def mutated(rng: random.Random, message: bytes, others: list[bytes]) -> bytes:
    out = bytearray(message)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0:
                out[at:at] = rng.randbytes(rng.randint(1, 3))
            case 1:
                del out[at : at + rng.randint(1, 4)]
            case 2:
                del out[at:]
            case 3:
                out += rng.choice([b"\0", rng.randbytes(1), rng.choice(others)])
            case 4 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 5 if at < len(out):
                out[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case _:
                out[at : at + 4] = rng.choice([b"\xff" * 9 + b"\1", b"\xff" * 10, b"\x80" * 4, b"\xc3\x28"])
    return bytes(out)
