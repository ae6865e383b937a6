"""Avro schema of a CDCv2 stream, derived from the columns of its data.

Called by `AvroCodec`, and by the code that registers the schema. The schema is a union of an array of updates
and a progress record. Times are longs. Product times are arrays of longs, under other record names to prevent
confusion.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pyarrow as pa

from tidemill.cdcv2.times import INTEGERS
from tidemill.errors import Unsupported

NAMESPACE = "com.materialize.cdc"

_PLAIN: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), "boolean"),
    (pa.int16(), "int"),
    (pa.int32(), "int"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.binary(), "bytes"),
    (pa.date32(), {"type": "int", "logicalType": "date"}),
    (pa.timestamp("us"), {"type": "long", "logicalType": "local-timestamp-micros"}),
    (pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
]


def stream_schema(data: pa.Schema, kind: int = INTEGERS, *, digests: bool = False) -> list[Any]:
    """The union of a stream whose updates have these columns, as JSON values."""
    prefix = "" if kind == INTEGERS else "product_"
    time: Any = "long" if kind == INTEGERS else {"type": "array", "items": "long"}
    counts: list[Any] = [_field("time", time), _field("count", "long")]
    fields: list[Any] = [_field("lower", _array(time)), _field("upper", _array(time))]
    record = {"type": "record", "name": f"{prefix}counts", "fields": counts}
    fields.append(_field("counts", _array(record)))
    if digests:
        counts.append(_field("content", "long"))
        fields.append(_field("seal", "long"))
    return [
        _array(
            {
                "type": "record",
                "name": f"{prefix}update",
                "namespace": NAMESPACE,
                "fields": [
                    _field("data", data_schema(data)),
                    _field("time", time),
                    _field("diff", "long"),
                ],
            }
        ),
        {"type": "record", "name": f"{prefix}progress", "namespace": NAMESPACE, "fields": fields},
    ]


def data_schema(data: pa.Schema) -> dict[str, Any]:
    """The record of the data's columns."""
    if not len(data):
        raise Unsupported("a CDCv2 stream without columns")
    return _record("data", list(data))


def schema_text(schema: list[Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def same_layout(a: Any, b: Any) -> bool:
    """Whether two schemas (JSON values) have the same bytes for the same values. Names of records and
    documentation are ignored."""
    return _layout(a) == _layout(b)


# For microseconds, the attribute about time zones does not change the bytes.
_ALIKE = {"local-timestamp-micros": "timestamp-micros"}
_KEPT = ("items", "values", "size", "symbols", "precision", "scale")


def _layout(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_layout(s) for s in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = cast("dict[str, Any]", schema)
    if found.get("type") in ("record", "error"):
        return [[f["name"], _layout(f["type"])] for f in found["fields"]]
    shape: dict[str, Any] = {key: _layout(found[key]) for key in _KEPT if key in found}
    if "logicalType" in found:
        shape["logical"] = _ALIKE.get(found["logicalType"], found["logicalType"])
    if "scale" in shape and not shape["scale"]:
        del shape["scale"]
    return {"type": _layout(found["type"]), **shape} if shape else _layout(found["type"])


def named_as(schema: Any, other: Any) -> Any:
    """The schema with the record names of the other, where both have a record at the same place: Avro
    distinguishes the branches of a union by these names."""
    if isinstance(schema, list):
        others = cast("list[Any]", other if isinstance(other, list) else [other])
        return [named_as(s, _alike(s, others)) for s in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = cast("dict[str, Any]", schema)
    if isinstance(other, list):
        other = _alike(found, cast("list[Any]", other))
    theirs = cast("dict[str, Any]", other) if isinstance(other, dict) else {}
    result = dict(found)
    for key in ("items", "values"):
        if key in found:
            result[key] = named_as(found[key], theirs.get(key))
    if found.get("type") == "record":
        if theirs.get("type") == "record":
            result |= {key: theirs[key] for key in ("name", "namespace") if key in theirs}
            if "namespace" not in theirs:
                result.pop("namespace", None)
        types = {f["name"]: f["type"] for f in theirs.get("fields", ())}
        result["fields"] = [{**f, "type": named_as(f["type"], types.get(f["name"]))} for f in found["fields"]]
    return result


def _alike(schema: Any, others: list[Any]) -> Any:
    """The branch of a union that has the type of this schema."""
    kind = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else schema
    for other in others:
        if kind == (cast("dict[str, Any]", other).get("type") if isinstance(other, dict) else other):
            return other
    return None


def _record(name: str, fields: list[pa.Field]) -> dict[str, Any]:
    # Avro requires unique names of records: the name of a nested record is its path.
    return {
        "type": "record",
        "name": name,
        "fields": [_field(f.name, _nullable(f, f"{name}_{i}")) for i, f in enumerate(fields)],
    }


def _nullable(field: pa.Field, name: str) -> Any:
    t = _type(field.type, name)
    return ["null", t] if field.nullable else t


def _type(t: Any, name: str) -> Any:
    for plain, avro in _PLAIN:
        if t == plain:
            return avro
    if pa.types.is_decimal128(t):
        return {"type": "bytes", "logicalType": "decimal", "precision": t.precision, "scale": t.scale}
    if pa.types.is_map(t):
        return {"type": "map", "values": _nullable(t.item_field, f"{name}_value")}
    if pa.types.is_list(t):
        return _array(_nullable(t.value_field, f"{name}_item"))
    if pa.types.is_struct(t) and t.num_fields:
        return _record(name, [t.field(i) for i in range(t.num_fields)])
    raise Unsupported(f"no Avro form for a column of type {t}")


def _field(name: str, t: Any) -> dict[str, Any]:
    return {"name": name, "type": t}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}
