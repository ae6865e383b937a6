"""Schema narrowing: removes the unused parts of Debezium changes from a reader schema.

Called by `sources.kafka` when it opens a decoder, on the driver and in the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

# Fields by their names: all of a field, or only those fields of it.
Wanted: TypeAlias = Mapping[str, "Wanted | None"]


def narrowed(form: Mapping[str, Any], wanted: Wanted) -> Mapping[str, Any]:
    """The format with a reader's schema that has only the wanted fields of the envelope. The decoder then
    skips the others, which are most of a message. Only if the writers' schemas come from a registry;
    otherwise the reader's schema is the writer's."""
    if form["format"] != "avro" or not form.get("registry"):
        return form
    schema = json.loads(form["schema"])
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "record":
        return form
    envelope = cast("dict[str, Any]", schema)
    # `after` usually refers to the record that `before` defines; the first reference must contain the
    # definition.
    named: dict[str, Any] = {}
    for field in envelope["fields"]:
        _collect(field["type"], named)
    seen: set[str] = set()
    fields = [
        {**field, "type": _defined(_narrow(field["type"], wanted[field["name"]], named), named, seen)}
        for field in envelope["fields"]
        if field["name"] in wanted
    ]
    return {**form, "schema": json.dumps({**envelope, "fields": fields})}


def _narrow(schema: Any, wanted: Wanted | None, named: Mapping[str, Any]) -> Any:
    """The schema with only the wanted fields, if it is a record or a choice of one."""
    if wanted is None:
        return schema
    if isinstance(schema, list):
        return [_narrow(branch, wanted, named) for branch in cast("list[Any]", schema)]
    of = named.get(schema) if isinstance(schema, str) else schema
    if not isinstance(of, dict) or "fields" not in of:
        return schema
    kept = [field for field in cast("list[Any]", of["fields"]) if field["name"] in wanted]
    return {**cast("dict[str, Any]", of), "fields": kept}


_NAMED = ("record", "enum", "fixed")


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """The named types that a schema defines, by the names under which they are referenced."""
    if isinstance(schema, list):
        for branch in cast("list[Any]", schema):
            _collect(branch, named)
    elif isinstance(schema, dict):
        of = cast("dict[str, Any]", schema)
        if of.get("type") in _NAMED:
            for name in _names(of):
                named.setdefault(name, of)
            for field in of.get("fields", ()):
                _collect(field["type"], named)
        else:
            for inner in ("type", "items", "values"):
                _collect(of.get(inner), named)


def _names(of: Mapping[str, Any]) -> set[str]:
    name = str(of["name"])
    space = of.get("namespace")
    return {name, name.rpartition(".")[2], f"{space}.{name}" if space and "." not in name else name}


def _defined(schema: Any, named: Mapping[str, Any], seen: set[str]) -> Any:
    """The schema with each named type defined at its first reference, and only there."""
    if isinstance(schema, list):
        return [_defined(branch, named, seen) for branch in cast("list[Any]", schema)]
    if isinstance(schema, str):
        if schema in seen or schema not in named:
            return schema
        return _defined(named[schema], named, seen)
    of = cast("dict[str, Any]", schema)
    if of.get("type") in _NAMED:
        if _names(of) & seen:
            return of["name"]
        seen |= _names(of)
        if "fields" not in of:
            return of
        fields = [{**field, "type": _defined(field["type"], named, seen)} for field in of["fields"]]
        return {**of, "fields": fields}
    inner = {n: _defined(of[n], named, seen) for n in ("type", "items", "values") if n in of}
    return {**of, **inner}
