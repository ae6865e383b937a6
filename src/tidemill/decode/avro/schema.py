"""Avro schema parser: JSON text to a tree of types.

Called at CREATE for the schema of the source, and in the tasks for writer schemas. Names are resolved
(namespaces, references to earlier types). Logical types and the type names of Kafka Connect and Debezium are
kept as `semantic`. This module knows neither SQL (`columns`) nor bytes (`plan`). A tree has no cycles: a type
that contains itself ends in `Recursive`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tidemill.decode.debezium.logical_types import LOGICAL_TYPES, VARIABLE_DECIMAL
from tidemill.errors import TidemillError

# The size of a schema's text. Registries accept larger ones, but their result would have more columns than a
# table may have.
MAX_SCHEMA_BYTES = 4 << 20
# Nested types. Each level is a level of Python's stack in the decoder, with a few frames.
MAX_DEPTH = 64
# Types in the tree, counting each use of a name: with names, the tree can be exponential in the text.
MAX_TYPES = 20_000

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


class SchemaError(TidemillError):
    """The text is not an Avro schema, or cannot become columns. The error names the position in it."""

    sqlstate = "22023"


class _Missing:
    """No default. (A null is a default.)"""


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Semantic:
    """The meaning of a value beyond its Avro type: the name of a logical type (`decimal`, `date`, ...) or of
    a Debezium type (`io.debezium...`)."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    kind: str
    semantic: Semantic | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """The common part of fixed, enums and records: the full name, and the aliases."""

    name: str
    aliases: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class AvroFixed(Named):
    size: int = 0
    semantic: Semantic | None = None


@dataclass(frozen=True, slots=True)
class Enumeration(Named):
    symbols: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Schema
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record(Named):
    fields: tuple[Field, ...] = ()
    semantic: Semantic | None = None


@dataclass(frozen=True, slots=True)
class Array:
    items: Schema


@dataclass(frozen=True, slots=True)
class Map:
    values: Schema


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Schema, ...]


@dataclass(frozen=True, slots=True)
class Recursive:
    """A use of a type within itself."""

    name: str


Schema = Primitive | AvroFixed | Enumeration | Record | Array | Map | Union | Recursive


def parse_schema(text: str) -> Schema:
    """The schema in `text`; raises SchemaError."""
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"Avro schema is longer than {MAX_SCHEMA_BYTES} bytes")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("Avro schema is not JSON", detail=f"{error}.") from None
    return _Parser().parse(tree, "", (), 0)


def full_name(declared: Mapping[str, Any], namespace: str) -> str:
    """The full name of a type's declaration inside `namespace`."""
    name = str(declared.get("name") or "")
    if "." in name:
        return name
    own = declared.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def namespace_of(name: str) -> str:
    return name.rpartition(".")[0]


def place(path: Sequence[str]) -> str:
    """The position in the schema, for an error."""
    return f'field "{".".join(path)}"' if path else "the top of the schema"


@dataclass(slots=True)
class _Parser:
    # Types by full name, once complete.
    known: dict[str, Schema] = field(default_factory=dict[str, Schema])
    # Names of the types that are being read, the outermost first.
    open: list[str] = field(default_factory=list[str])
    # The number of types in each known name, so that its uses are counted without a walk.
    weights: dict[str, int] = field(default_factory=dict[str, int])
    types: int = 0

    def parse(self, tree: Any, namespace: str, path: tuple[str, ...], depth: int) -> Schema:
        if depth > MAX_DEPTH:
            raise SchemaError(f"Avro schema is deeper than {MAX_DEPTH} types at {place(path)}")
        self._count(1)
        if isinstance(tree, str):
            return self._named(tree, namespace, path)
        if isinstance(tree, list):
            return self._union(cast("list[Any]", tree), namespace, path, depth)
        if not isinstance(tree, dict) or "type" not in tree:
            raise SchemaError(f"Avro schema has no type at {place(path)}", detail=f"Found {_shown(tree)}.")
        return self._declared(cast("dict[str, Any]", tree), namespace, path, depth)

    def _count(self, more: int) -> None:
        self.types += more
        if self.types > MAX_TYPES:
            raise SchemaError(f"Avro schema has more than {MAX_TYPES} types")

    def _named(self, name: str, namespace: str, path: tuple[str, ...]) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self.open:
                return Recursive(full)
            if full in self.known:
                self._count(self.weights[full])
                return self.known[full]
        raise SchemaError(f'Avro schema has no type "{name}" at {place(path)}')

    def _union(self, trees: list[Any], namespace: str, path: tuple[str, ...], depth: int) -> Schema:
        if not trees:
            raise SchemaError(f"Avro schema has a union of nothing at {place(path)}")
        branches = tuple(self.parse(tree, namespace, path, depth + 1) for tree in trees)
        if any(isinstance(branch, Union) for branch in branches):
            raise SchemaError(f"Avro schema has a union in a union at {place(path)}")
        names = [branch_name(branch) for branch in branches]
        if len(set(names)) < len(names):
            repeated = next(n for n in names if names.count(n) > 1)
            raise SchemaError(f'Avro schema has a union with "{repeated}" twice at {place(path)}')
        return Union(branches)

    def _declared(self, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int) -> Schema:
        kind = tree["type"]
        if isinstance(kind, dict | list) or (isinstance(kind, str) and kind not in _COMPLEX):
            inner = self.parse(kind, namespace, path, depth + 1)
            if isinstance(inner, Primitive) and inner.semantic is None:
                return Primitive(inner.kind, _semantic(tree, inner.kind))
            return inner
        if kind == "array":
            return Array(self.parse(tree.get("items"), namespace, path, depth + 1))
        if kind == "map":
            return Map(self.parse(tree.get("values"), namespace, path, depth + 1))
        if kind not in _COMPLEX:
            raise SchemaError(f"Avro schema has no type {_shown(kind)} at {place(path)}")
        return self._declare_name(tree, namespace, path, depth)

    def _declare_name(
        self, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int
    ) -> Schema:
        name = full_name(tree, namespace)
        if not name or name in PRIMITIVES:
            raise SchemaError(f'Avro schema has a {tree["type"]} named "{name}" at {place(path)}')
        if name in self.known or name in self.open:
            raise SchemaError(f'Avro schema declares "{name}" twice, the second time at {place(path)}')
        inside = namespace_of(name)
        aliases = tuple(
            alias if "." in alias or not inside else f"{inside}.{alias}"
            for alias in _strings(tree, "aliases", path)
        )
        before = self.types
        if tree["type"] == "fixed":
            size = tree.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise SchemaError(f"Avro schema has a fixed without size at {place(path)}")
            found: Schema = AvroFixed(name, aliases, size, _fixed_semantic(tree, size))
        elif tree["type"] == "enum":
            found = self._enumeration(tree, name, aliases, path)
        else:
            self.open.append(name)
            fields = self._fields(tree, inside, path, depth)
            self.open.pop()
            found = Record(name, aliases, fields, _record_semantic(tree, fields))
        self.known[name] = found
        self.weights[name] = self.types - before
        return found

    def _enumeration(
        self, tree: dict[str, Any], name: str, aliases: tuple[str, ...], path: tuple[str, ...]
    ) -> Enumeration:
        symbols = _strings(tree, "symbols", path)
        if len(set(symbols)) < len(symbols):
            raise SchemaError(f'Avro enum "{name}" has a symbol twice at {place(path)}')
        default = tree.get("default")
        if default is not None and default not in symbols:
            raise SchemaError(f'Avro enum "{name}" has a default that is no symbol at {place(path)}')
        return Enumeration(name, aliases, symbols, default)

    def _fields(
        self, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int
    ) -> tuple[Field, ...]:
        declared = tree.get("fields")
        if not isinstance(declared, list):
            raise SchemaError(f"Avro schema has a record without fields at {place(path)}")
        fields: list[Field] = []
        for item in cast("list[Any]", declared):
            if not isinstance(item, dict) or not isinstance(item.get("name"), str) or "type" not in item:
                raise SchemaError(
                    f"Avro schema has a field without name or type at {place(path)}",
                    detail=f"Found {_shown(item)}.",
                )
            declaration = cast("dict[str, Any]", item)
            name: str = declaration["name"]
            here = (*path, name)
            if any(name == f.name for f in fields):
                raise SchemaError(f"Avro schema has {place(here)} twice")
            # A logical type next to the field's own "type" has no meaning in Avro; the inner one counts.
            inner = self.parse(declaration["type"], namespace, here, depth + 1)
            aliases = _strings(declaration, "aliases", here)
            fields.append(Field(name, inner, declaration.get("default", MISSING), aliases))
        return tuple(fields)


_COMPLEX = ("record", "error", "enum", "array", "map", "fixed")


def branch_name(schema: Schema) -> str:
    """Avro's name of a branch of a union."""
    if isinstance(schema, Primitive):
        return schema.kind
    if isinstance(schema, Named | Recursive):
        return schema.name
    return type(schema).__name__.lower()


def _strings(tree: Mapping[str, Any], key: str, path: Sequence[str]) -> tuple[str, ...]:
    found: Any = tree.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[Any]", found)):
        raise SchemaError(f'Avro schema has "{key}" that are no names at {place(path)}')
    return tuple(cast("list[str]", found))


# Logical types by their underlying type. On another type they are ignored, as Avro specifies.
_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "uuid": "string",
}


def _semantic(tree: Mapping[str, Any], kind: str) -> Semantic | None:
    logical = tree.get("logicalType")
    if logical == "decimal" and kind == "bytes":
        return _decimal(tree, None)
    if isinstance(logical, str) and _LOGICAL.get(logical) == kind:
        return Semantic(logical)
    connect = tree.get("connect.name")
    if isinstance(connect, str) and connect in LOGICAL_TYPES and LOGICAL_TYPES[connect].base == kind:
        return Semantic(connect)
    return None


def _fixed_semantic(tree: Mapping[str, Any], size: int) -> Semantic | None:
    logical = tree.get("logicalType")
    if logical == "decimal":
        return _decimal(tree, size)
    if (logical, size) in (("uuid", 16), ("duration", 12)):
        return Semantic(cast("str", logical))
    return None


def _decimal(tree: Mapping[str, Any], size: int | None) -> Semantic | None:
    precision, scale = tree.get("precision"), tree.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return None
    if precision < 1 or (size is not None and precision > _digits(size)):
        return None
    return Semantic("decimal", precision, scale)


def _digits(size: int) -> int:
    """The number of decimal digits that a signed number of this many bytes can always hold."""
    return 0 if size == 0 else math.floor((8 * size - 1) * math.log10(2))


def _record_semantic(tree: Mapping[str, Any], fields: tuple[Field, ...]) -> Semantic | None:
    shape = [(f.name, f.type) for f in fields]
    if tree.get("connect.name") == VARIABLE_DECIMAL and shape == [
        ("scale", Primitive("int")),
        ("value", Primitive("bytes")),
    ]:
        return Semantic(VARIABLE_DECIMAL)
    return None


def _shown(tree: Any) -> str:
    text = json.dumps(tree)
    return text if len(text) <= 60 else f"{text[:60]}..."
