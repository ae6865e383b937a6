"""Schema references: merges schemas that refer to types of other schemas into one schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from tidemill.decode.avro.schema import MAX_DEPTH, PRIMITIVES, SchemaError, full_name, namespace_of

_DECLARED = ("record", "error", "enum", "fixed")


def inlined(text: str, references: Mapping[str, str]) -> str:
    """The schema in `text`, in which each type of `references` (texts of schemas, by any name) is declared at
    its first use."""
    declared: dict[str, dict[str, Any]] = {}
    try:
        for schema in references.values():
            _collect(json.loads(schema), "", declared)
        return json.dumps(_Inliner(declared).schema(json.loads(text), "", 0))
    except (ValueError, RecursionError) as error:
        raise SchemaError("Avro schema is not JSON", detail=f"{error}.") from None


def _collect(tree: Any, namespace: str, declared: dict[str, dict[str, Any]]) -> None:
    """All declarations in a schema by their full names, each with its namespace written out."""
    if isinstance(tree, list):
        for branch in cast("list[Any]", tree):
            _collect(branch, namespace, declared)
        return
    if not isinstance(tree, dict):
        return
    node = cast("dict[str, Any]", tree)
    if node.get("type") in _DECLARED:
        name = full_name(node, namespace)
        namespace = namespace_of(name)
        declared.setdefault(name, {**node, "namespace": namespace})
        fields = node.get("fields")
        _collect(fields if isinstance(fields, list) else None, namespace, declared)
        return
    for key in ("type", "items", "values"):
        _collect(node.get(key), namespace, declared)


class _Inliner:
    def __init__(self, declared: Mapping[str, dict[str, Any]]) -> None:
        self._declared = declared
        # Full names of the types that the result has declared so far.
        self._written: set[str] = set()

    def schema(self, tree: Any, namespace: str, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise SchemaError(f"Avro schema is deeper than {MAX_DEPTH} types")
        if isinstance(tree, str):
            return self._named(tree, namespace, depth)
        if isinstance(tree, list):
            return [self.schema(branch, namespace, depth + 1) for branch in cast("list[Any]", tree)]
        if not isinstance(tree, dict):
            return tree
        node = cast("dict[str, Any]", tree)
        if node.get("type") in _DECLARED:
            return self._declaration(node, namespace, depth)
        return {
            key: self.schema(value, namespace, depth + 1) if self._is_type(key, value) else value
            for key, value in node.items()
        }

    @staticmethod
    def _is_type(key: str, value: Any) -> bool:
        return key in ("type", "items", "values") and value not in ("array", "map")

    def _named(self, name: str, namespace: str, depth: int) -> Any:
        if name in PRIMITIVES:
            return name
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self._written:
                return full
            if full in self._declared:
                return self._declaration(self._declared[full], namespace, depth)
        return name

    def _declaration(self, node: dict[str, Any], namespace: str, depth: int) -> Any:
        name = full_name(node, namespace)
        if name in self._written:
            return name
        self._written.add(name)
        inside = namespace_of(name)
        result = {**node, "name": name.rpartition(".")[2], "namespace": inside}
        if isinstance(node.get("fields"), list):
            fields = cast("list[Any]", node["fields"])
            result["fields"] = [self._field(field, inside, depth) for field in fields]
        return result

    def _field(self, field: Any, namespace: str, depth: int) -> Any:
        if not isinstance(field, dict):
            return field  # the parser of the result reports the error
        declared = cast("dict[str, Any]", field)
        return {**declared, "type": self.schema(declared.get("type"), namespace, depth + 1)}
