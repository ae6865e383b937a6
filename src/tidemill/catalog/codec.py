"""JSON codec of catalog items, for the catalog's shard.

A body is `{"format": n, "kind": "...", ...}` with the fields of the dataclass of its kind. A field with a
default may be missing, because the body is older than the field or the field is listed in OMITTED. A new
field therefore needs a default and no change here. Any other change needs a new format. Older formats are
migrated step by step when they are read: `MIGRATIONS[n]` turns n into n + 1, on the JSON, so no old dataclass
has to be kept. A newer format, an unknown kind and an unknown field are refused: a server that does not
understand one item must not serve the others without it. Encoding is canonical (sorted keys), because a body
is retracted by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, TypeAlias, cast, get_args, get_origin, get_type_hints

from tidemill.catalog.access import Access
from tidemill.catalog.items import (
    Comment,
    Connection,
    Database,
    Item,
    ItemId,
    MaterializedView,
    Role,
    Schema,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    SystemParameter,
    Table,
    View,
)
from tidemill.errors import DataCorrupted, Unsupported
from tidemill.types.model import Column, RelationDesc, SqlType

FORMAT = 1

Json = dict[str, Any]

# From format n to n + 1. Format 0 never left the house; its entry keeps the way tested: it had no explicit
# keys of tables.
MIGRATIONS: dict[int, Callable[[Json], Json]] = {
    0: lambda body: {"keys": [], **body} if body.get("kind") == "table" else body,
}

KINDS: dict[str, type[Item]] = {
    "access": Access,
    "comment": Comment,
    "connection": Connection,
    "database": Database,
    "materialized_view": MaterializedView,
    "parameter": SystemParameter,
    "role": Role,
    "schema": Schema,
    "secret": Secret,
    "sink": Sink,
    "source": Source,
    "source_progress": SourceProgress,
    "source_table": SourceTable,
    "subscription": Subscription,
    "table": Table,
    "view": View,
}
_KIND_OF = {item: kind for kind, item in KINDS.items()}

# Fields that are not written while they have their default.
OMITTED: dict[type, frozenset[str]] = {
    Table: frozenset({"unsettled_from"}),
    MaterializedView: frozenset({"replacement", "switched"}),
    Source: frozenset({"depends_on", "timeline", "cuts_shard"}),
    SourceTable: frozenset({"definition", "sql", "connections", "dead_letters_of"}),
    Subscription: frozenset({"shares", "share_key"}),
    SqlType: frozenset({"length", "precision", "scale", "element", "fields"}),
}


def encode(item: Item) -> str:
    """The body of `item`. Its id is a separate column of the shard."""
    body = _write_fields(type(item), item)
    del body["id"]
    body |= {"format": FORMAT, "kind": _KIND_OF[type(item)]}
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def decode(item_id: ItemId, text: str) -> Item:
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("not an object")
        body = migrate(cast("Json", body))
        kind = KINDS.get(body["kind"])
        if kind is None:
            raise _newer(f"catalog item {item_id} is of a kind this version does not know: {body['kind']}")
        del body["format"], body["kind"]
        return _read_fields(kind, {**body, "id": item_id})
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DataCorrupted(
            f"catalog item {item_id} cannot be read", detail=f"{type(e).__name__}: {e}"
        ) from e


def migrate(body: Json) -> Json:
    """`body` in the current format."""
    found = body["format"]
    if not isinstance(found, int):
        raise TypeError("format is not a number")
    if found > FORMAT:
        raise _newer(f"catalog item has format {found}, this version reads up to {FORMAT}")
    for n in range(found, FORMAT):
        body = {**MIGRATIONS[n](body), "format": n + 1}
    return body


def _newer(text: str) -> Unsupported:
    return Unsupported(
        text, hint="The data directory was used by a newer version of tidemill; start that one."
    )


# How a value is written, and how it is read.
_Form: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _write_fields(kind: type[Any], value: Any) -> Json:
    body: Json = {}
    for name, (default, (write, _)) in _fields(kind).items():
        field = getattr(value, name)
        if default is MISSING or field != default:
            body[name] = write(field)
    return body


def _read_fields(kind: type[Any], body: Json) -> Any:
    known = _fields(kind)
    if unknown := body.keys() - known:
        raise _newer(f"{kind.__name__} has fields that this version does not know: {sorted(unknown)}")
    return kind(**{name: known[name][1][1](value) for name, value in body.items()})


@cache
def _fields(kind: type[Any]) -> dict[str, tuple[Any, _Form]]:
    """Fields that are part of a value, each with the value that is omitted."""
    hints = get_type_hints(kind)
    omitted = OMITTED.get(kind, frozenset())
    return {
        f.name: (f.default if f.name in omitted else MISSING, _form(hints[f.name]))
        for f in fields(kind)
        if f.compare
    }


def _form(hint: Any) -> _Form:
    """The form of values of a type."""
    if hint is RelationDesc:
        return _write_desc, _read_desc
    if get_origin(hint) is tuple:
        write, read = _form(get_args(hint)[0])
        return lambda value: [write(v) for v in value], lambda body: tuple([read(b) for b in body])
    if NoneType in get_args(hint):
        write, read = _form(get_args(hint)[0])
        return (
            lambda value: None if value is None else write(value),
            lambda body: None if body is None else read(body),
        )
    if is_dataclass(hint):
        kind = cast("type[Any]", hint)
        return partial(_write_fields, kind), partial(_read_fields, kind)
    return (attrgetter("value"), hint) if issubclass(hint, Enum) else (_itself, _itself)


def _itself(value: Any) -> Any:
    return value


def _write_desc(desc: RelationDesc) -> list[Json]:
    """One list; columns that no query sees are marked."""
    hidden = [{**_write_fields(Column, c), "hidden": True} for c in desc.hidden]
    return [*(_write_fields(Column, c) for c in desc.columns), *hidden]


def _read_desc(body: list[Json]) -> RelationDesc:
    columns: dict[bool, list[Column]] = {False: [], True: []}
    for column in body:
        hidden = bool(column.pop("hidden", False))
        columns[hidden].append(_read_fields(Column, column))
    return RelationDesc(tuple(columns[False]), tuple(columns[True]))
