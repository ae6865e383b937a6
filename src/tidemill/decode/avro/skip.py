"""Plan nodes that skip fields which only the writer has.

They check only the structure, so both ways of reading agree on every message, even an invalid one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.decode.avro.nested import ArrayNode, RecordNode, UnionNode
from tidemill.decode.avro.plan import Delimited, FixedBytes, Integer, Nothing, ReadNode
from tidemill.decode.avro.schema import (
    Array,
    AvroFixed,
    Enumeration,
    Map,
    Primitive,
    Record,
    Recursive,
    Schema,
    Union,
)
from tidemill.decode.binaries import Raw
from tidemill.decode.numbers import LONG

# Skipped values are not read.
_UNSEEN = pa.null()
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}


def skipping(writer: Schema) -> ReadNode | None:
    """None for a type that contains itself: only the message determines its depth."""
    match writer:
        case Primitive("null"):
            return Nothing(_UNSEEN)
        case Primitive("int" | "long") | Enumeration():
            return Integer(LONG)
        case Primitive("string" | "bytes"):
            return Delimited(Raw())
        case Primitive(kind):
            return FixedBytes(_WIDTHS[kind], Raw())
        case AvroFixed():
            return FixedBytes(writer.size, Raw())
        case Array(items):
            return _items([items])
        case Map(values):
            # As an array of keys and values.
            return _items([Primitive("bytes"), values])
        case Union(branches):
            nodes = [skipping(branch) for branch in branches]
            known = [node for node in nodes if node is not None]
            return UnionNode(_UNSEEN, known) if len(known) == len(nodes) else None
        case Record(fields=fields):
            return _together([f.type for f in fields])
        case Recursive():
            return None


def _together(schemas: Sequence[Schema]) -> ReadNode | None:
    nodes = [skipping(schema) for schema in schemas]
    known = [node for node in nodes if node is not None]
    if len(known) < len(nodes):
        return None
    return RecordNode(_UNSEEN, [(node, None, "") for node in known], [])


def _items(schemas: Sequence[Schema]) -> ReadNode | None:
    item = _together(schemas)
    return None if item is None else ArrayNode(_UNSEEN, item)
