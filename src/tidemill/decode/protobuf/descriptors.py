"""Protobuf descriptors: a FileDescriptorSet (from `protoc --include_imports -o`) to message types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from tidemill.decode.avro.schema import SchemaError

# The size of a descriptor. The largest public APIs, with all files, are smaller.
MAX_DESCRIPTOR_BYTES = 16 << 20

# Google's types, for sets that were created without imports.
_WELL_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
}


def find_message(files: bytes, name: str) -> Any:
    """The descriptor of the message type `name` (with or without a leading point); raises SchemaError."""
    pool, declared = _pool(files)
    try:
        return pool.FindMessageTypeByName(name.removeprefix("."))
    except KeyError:
        raise SchemaError(
            f'Protobuf schema has no message "{name}"',
            detail=f"It has: {', '.join(_messages(declared)) or 'none'}.",
        ) from None


def first_message(files: bytes) -> str:
    """The full name of the first message of the last file, which imports the others."""
    return message_at(files, [0])


def message_at(files: bytes, path: Sequence[int]) -> str:
    """The full name of a message of the last file. The first number of the path counts the file's messages,
    each further one the messages nested in the previous."""
    _, declared = _pool(files)
    scope: Any = declared[-1].message_type
    names = [declared[-1].package] if declared[-1].package else []
    for place in path:
        if not 0 <= place < len(scope):
            raise SchemaError(f"Protobuf schema has no message number {list(path)}")
        names.append(scope[place].name)
        scope = scope[place].nested_type
    return ".".join(names)


def _pool(files: bytes) -> tuple[Any, list[Any]]:
    """A pool with all files, and the files in the set's order."""
    if len(files) > MAX_DESCRIPTOR_BYTES:
        raise SchemaError(f"Protobuf schema is longer than {MAX_DESCRIPTOR_BYTES} bytes")
    try:
        parsed: Any = descriptor_pb2.FileDescriptorSet.FromString(files)
    except DecodeError:
        parsed = None
    if parsed is None or not parsed.file:
        raise SchemaError(
            "Protobuf schema is no FileDescriptorSet",
            hint="Make it with: protoc --include_imports --descriptor_set_out=schema.pb schema.proto",
        )
    pool: Any = descriptor_pool.DescriptorPool()
    given = {file.name: file for file in parsed.file}
    added: set[str] = set()
    for name in given:
        _add(pool, name, given, added, ())
    return pool, list(parsed.file)


def _add(pool: Any, name: str, given: dict[str, Any], added: set[str], within: tuple[str, ...]) -> None:
    """Add a file after the files that it imports."""
    if name in added:
        return
    if name in within:
        raise SchemaError(f'Protobuf file "{name}" imports itself')
    file = given.get(name)
    if file is None and name in _WELL_KNOWN:
        file = descriptor_pb2.FileDescriptorProto.FromString(_WELL_KNOWN[name])
    if file is None:
        raise SchemaError(
            f'Protobuf schema imports "{name}", which it has not in it',
            hint="Make it with protoc --include_imports.",
        )
    for imported in file.dependency:
        _add(pool, imported, given, added, (*within, name))
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise SchemaError(f'Protobuf file "{name}" is not sound', detail=f"{error}.") from None
    added.add(name)


def _messages(files: Sequence[Any]) -> list[str]:
    return [
        f".{file.package}.{message.name}" if file.package else f".{message.name}"
        for file in files
        for message in file.message_type
        if file.name not in _WELL_KNOWN
    ]
