"""Avro schema resolution: builds a plan from a writer schema and a reader schema.

Fields are matched by name, then by the aliases of the reader. Fields missing in the writer get their default;
fields missing in the reader are skipped. Numbers are promoted. A branch of the writer maps to the branch of
the reader with the same type and name, else to the first compatible one. Outside unions nothing has to be
chosen, so the names of records, enums and fixed do not matter.

Schemas that can never be read raise Incompatible. A branch or symbol that cannot be read is an error in the
messages that contain it.
"""

from __future__ import annotations

from tidemill.decode.avro.columns import is_nullable, sql_type, values_of
from tidemill.decode.avro.defaults import default_value
from tidemill.decode.avro.forms import bytes_form, whole_form
from tidemill.decode.avro.nested import ArrayNode, BranchNode, MapNode, RecordNode, UnionNode
from tidemill.decode.avro.plan import (
    Boolean,
    ConstantNode,
    Delimited,
    FixedBytes,
    Floating,
    Integer,
    Nothing,
    ReadNode,
    SchemaRefused,
    Symbol,
)
from tidemill.decode.avro.schema import (
    MISSING,
    Array,
    AvroFixed,
    Enumeration,
    Field,
    Map,
    Named,
    Primitive,
    Record,
    Recursive,
    Schema,
    Semantic,
    Union,
    branch_name,
)
from tidemill.decode.avro.skip import skipping
from tidemill.decode.debezium.avro_types import VariableDecimalNode
from tidemill.decode.numbers import DOUBLE, SINGLE
from tidemill.decode.reader import Unreadable
from tidemill.types.arrow import arrow_type


class Incompatible(Exception):
    """The writer's schema cannot be read as the reader's. `path` names the field."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    def within(self, name: str) -> Incompatible:
        self.path.insert(0, name)
        return self

    def __str__(self) -> str:
        return f'{self.why} (in field "{".".join(self.path)}")' if self.path else self.why


def resolve(writer: Schema, reader: Schema) -> ReadNode:
    """The plan that reads data of `writer` as `reader`."""
    if isinstance(writer, Union):
        return _from_union(writer, reader)
    if isinstance(reader, Union):
        return _into_union(writer, reader)
    return _same(writer, reader)


def _from_union(writer: Union, reader: Schema) -> ReadNode:
    target = arrow_type(sql_type(reader))
    branches: list[ReadNode] = []
    refused: list[Incompatible] = []
    for branch in writer.branches:
        try:
            branches.append(resolve(branch, reader))
        except Incompatible as error:
            refused.append(error)
            branches.append(SchemaRefused(target, str(error)))
    if len(refused) == len(branches):
        raise refused[0]
    return UnionNode(target, branches)


def _into_union(writer: Schema, reader: Union) -> ReadNode:
    """To the reader's branch of the same type if it exists, else to the first compatible one."""
    alike = [branch for branch in reader.branches if _is_alike(writer, branch)]
    for branch in (*alike, *reader.branches):
        if isinstance(writer, Named) and not _is_alike(writer, branch):
            continue
        try:
            node = _same(writer, branch)
        except Incompatible:
            continue
        target = arrow_type(sql_type(reader))
        values = values_of(reader)
        if is_nullable(branch):
            return Nothing(target)
        return node if len(values) == 1 else BranchNode(target, values.index(branch), node)
    raise Incompatible(f"the union of the source's schema has no branch for {_called(writer)}")


def _is_alike(writer: Schema, reader: Schema) -> bool:
    if isinstance(writer, Named) and isinstance(reader, Named):
        named_alike = writer.short == reader.short or writer.name in reader.aliases
        return type(writer) is type(reader) and named_alike
    return branch_name(writer) == branch_name(reader)


def _called(schema: Schema) -> str:
    return f'"{branch_name(schema)}"'


def _same(writer: Schema, reader: Schema) -> ReadNode:
    """For types that are not unions."""
    node: ReadNode | None = None
    match writer, reader:
        case Recursive(), _:
            raise Incompatible(f"type {_called(writer)} contains itself")
        case Primitive(), Primitive():
            node = _primitive(writer, reader)
        case AvroFixed(), AvroFixed() if writer.size == reader.size:
            _check_scale(writer.semantic, reader.semantic)
            node = FixedBytes(reader.size, bytes_form(reader))
        case Enumeration(), Enumeration():
            known = set(reader.symbols)
            symbols = [s if s in known else reader.default for s in writer.symbols]
            node = Symbol(reader.name, symbols, writer.symbols)
        case Array(), Array():
            node = ArrayNode(arrow_type(sql_type(reader)), resolve(writer.items, reader.items))
        case Map(), Map():
            node = MapNode(arrow_type(sql_type(reader)), resolve(writer.values, reader.values))
        case Record(), Record() if reader.semantic is not None:
            node = VariableDecimalNode() if writer.semantic == reader.semantic else None
        case Record(), Record():
            node = _record(writer, reader)
        case _:
            pass
    if node is None:
        raise Incompatible(f"{_called(writer)} cannot be read as {_called(reader)}")
    return node


def _record(writer: Record, reader: Record) -> ReadNode:
    places = _places(writer, reader)
    steps: list[tuple[ReadNode, int | None, str]] = []
    for field in writer.fields:
        place = places.get(field.name)
        try:
            if place is None:
                node = skipping(field.type)
                if node is None:
                    raise Incompatible("its type contains itself")
            else:
                node = resolve(field.type, reader.fields[place].type)
        except Incompatible as error:
            raise error.within(field.name) from None
        steps.append((node, place, field.name))
    taken = set(places.values())
    absent = [(_default(field), i) for i, field in enumerate(reader.fields) if i not in taken]
    return RecordNode(arrow_type(sql_type(reader)), steps, absent)


def _places(writer: Record, reader: Record) -> dict[str, int]:
    """The reader's field for each of the writer's: the field with this name, else the one with this alias."""
    names = {f.name for f in writer.fields}
    places = {f.name: i for i, f in enumerate(reader.fields) if f.name in names}
    for i, field in enumerate(reader.fields):
        if field.name not in names:
            former = next((a for a in field.aliases if a in names and a not in places), None)
            if former is not None:
                places[former] = i
    return places


def _default(field: Field) -> ReadNode:
    if field.default is MISSING:
        raise Incompatible("the writer has no such field and it has no default").within(field.name)
    try:
        return ConstantNode(arrow_type(sql_type(field.type)), default_value(field.type, field.default))
    except Unreadable as error:
        raise Incompatible(str(error)).within(field.name) from None


# The types as which each of the writer's types can be read.
_PROMOTIONS = {
    "null": ("null",),
    "boolean": ("boolean",),
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}


def _primitive(writer: Primitive, reader: Primitive) -> ReadNode | None:
    if reader.kind not in _PROMOTIONS[writer.kind]:
        return None
    match writer.kind:
        case "null":
            return Nothing(arrow_type(sql_type(reader)))
        case "boolean":
            return Boolean()
        case "string" | "bytes":
            _check_scale(writer.semantic, reader.semantic)
            return Delimited(bytes_form(reader))
        case "float" | "double":
            form = SINGLE if reader.kind == "float" else DOUBLE
            return Floating(4 if writer.kind == "float" else 8, form)
        case _:
            return Integer(whole_form(writer, reader))


def _check_scale(writer: Semantic | None, reader: Semantic | None) -> None:
    """The digits are meaningless without their scale."""
    scales = [s.scale for s in (writer, reader) if s is not None and s.name == "decimal"]
    if len(set(scales)) > 1:
        raise Incompatible(f"a decimal of scale {scales[0]} cannot be read as one of scale {scales[1]}")
