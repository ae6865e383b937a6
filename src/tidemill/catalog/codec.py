"""Items as JSON, for the catalog's shard.

A body is `{"format": n, "kind": "...", ...}`. An older format is migrated step by step when it is read
(`MIGRATIONS[n]` makes n + 1 out of n, on the JSON, so that no old dataclass has to be kept); a newer one,
or a kind that is not known, is refused: a server that does not understand an item must not serve the others
as if it were not there. Encoding is canonical (sorted keys), because a body is retracted by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from tidemill.catalog.access import Access, decode_access, encode_access
from tidemill.catalog.items import (
    Comment,
    Connection,
    Database,
    Item,
    ItemId,
    Key,
    MaterializedView,
    Reference,
    Role,
    Schema,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    SystemParameter,
    Table,
    View,
)
from tidemill.errors import DataCorrupted, Internal, Unsupported
from tidemill.types.model import Column, Kind, RelationDesc, SqlType

FORMAT = 1

Json = dict[str, Any]

# From format n to n + 1. Format 0 never left the house; its entry keeps the way tested: it had no explicit
# keys of tables.
MIGRATIONS: dict[int, Callable[[Json], Json]] = {
    0: lambda body: {"keys": [], **body} if body.get("kind") == "table" else body,
}


def encode(item: Item) -> str:
    """The body of `item`; its id stands beside it in the shard."""
    kind, fields = _encode(item)
    return json.dumps({"format": FORMAT, "kind": kind, **fields}, sort_keys=True, separators=(",", ":"))


def decode(item_id: ItemId, text: str) -> Item:
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("not an object")
        return _decode(item_id, migrate(cast("Json", body)))
    except (ValueError, KeyError, TypeError) as e:
        raise DataCorrupted(
            f"catalog item {item_id} cannot be read", detail=f"{type(e).__name__}: {e}"
        ) from e


def migrate(body: Json) -> Json:
    """`body` in the current format."""
    found = body["format"]
    if not isinstance(found, int):
        raise TypeError("format is not a number")
    if found > FORMAT:
        raise Unsupported(
            f"catalog item has format {found}, this version reads up to {FORMAT}",
            hint="The data directory was used by a newer version of tidemill; start that one.",
        )
    for n in range(found, FORMAT):
        body = {**MIGRATIONS[n](body), "format": n + 1}
    return body


def _encode(item: Item) -> tuple[str, Json]:
    if isinstance(item, Database):
        return "database", {"name": item.name}
    if isinstance(item, Schema):
        return "schema", {"name": item.name, "database": item.database}
    if isinstance(item, Table):
        unsettled = {} if item.unsettled_from is None else {"unsettled_from": item.unsettled_from}
        return "table", {
            **unsettled,
            "name": item.name,
            "schema": item.schema,
            "desc": encode_desc(item.desc),
            "shard": item.shard,
            "defaults": list(item.defaults),
            "keys": [{"columns": list(k.columns), "primary": k.primary} for k in item.keys],
            "retain_history_ms": item.retain_history_ms,
        }
    if isinstance(item, View):
        return "view", {
            "name": item.name,
            "schema": item.schema,
            "sql": item.sql,
            "desc": encode_desc(item.desc),
            "depends_on": list(item.depends_on),
            "references": _encode_references(item.references),
        }
    if isinstance(item, MaterializedView):
        return "materialized_view", {
            "name": item.name,
            "schema": item.schema,
            "sql": item.sql,
            "desc": encode_desc(item.desc),
            "shard": item.shard,
            "created": item.created,
            "depends_on": list(item.depends_on),
            "references": _encode_references(item.references),
            "retain_history_ms": item.retain_history_ms,
        }
    if isinstance(item, Source):
        return "source", {
            "name": item.name,
            "schema": item.schema,
            "type": item.type,
            "definition": item.definition,
            "sql": item.sql,
            "desc": None if item.desc is None else encode_desc(item.desc),
            "shard": item.shard,
            "envelope": item.envelope,
            "remap_desc": encode_desc(item.remap_desc),
            "remap_shard": item.remap_shard,
            "created": item.created,
            "interval_ms": item.interval_ms,
            "retain_history_ms": item.retain_history_ms,
            **({"depends_on": list(item.depends_on)} if item.depends_on else {}),
            **({} if item.timeline is None else {"timeline": item.timeline}),
        }
    if isinstance(item, SourceTable):
        return "source_table", {
            "name": item.name,
            "schema": item.schema,
            "source": item.source,
            "output": item.output,
            "desc": encode_desc(item.desc),
            "shard": item.shard,
            "envelope": item.envelope,
            "created": item.created,
            "subsource": item.subsource,
            **({} if item.definition is None else {"definition": item.definition, "sql": item.sql}),
            **({"connections": list(item.connections)} if item.connections else {}),
        }
    if isinstance(item, SourceProgress):
        return "source_progress", {
            "name": item.name,
            "schema": item.schema,
            "source": item.source,
            "desc": encode_desc(item.desc),
        }
    if isinstance(item, Sink):
        return "sink", {
            "name": item.name,
            "schema": item.schema,
            "type": item.type,
            "target": item.target,
            "definition": item.definition,
            "sql": item.sql,
            "relation": item.relation,
            "desc": encode_desc(item.desc),
            "as_of": item.as_of,
            "snapshot": item.snapshot,
            "connections": list(item.connections),
        }
    if isinstance(item, Secret):
        return "secret", {"name": item.name, "schema": item.schema, "version": item.version}
    if isinstance(item, Connection):
        return "connection", {
            "name": item.name,
            "schema": item.schema,
            "type": item.type,
            "options": item.options,
            "depends_on": list(item.depends_on),
        }
    if isinstance(item, Comment):
        return "comment", {"on": item.on, "column": item.column, "text": item.text}
    if isinstance(item, Access):
        return "access", encode_access(item)
    if isinstance(item, Role):
        return "role", {
            "name": item.name,
            "superuser": item.superuser,
            "login": item.login,
            "inherit": item.inherit,
            "createdb": item.createdb,
            "createrole": item.createrole,
            "verifier": item.verifier,
            "member_of": list(item.member_of),
        }
    return "parameter", {"name": item.name, "value": item.value}


def _database(i: ItemId, b: Json) -> Item:
    return Database(i, b["name"])


def _comment(i: ItemId, b: Json) -> Item:
    return Comment(i, b["on"], b["column"], b["text"])


def _schema(i: ItemId, b: Json) -> Item:
    return Schema(i, b["name"], b["database"])


def _table(i: ItemId, b: Json) -> Item:
    return Table(
        i,
        b["name"],
        b["schema"],
        decode_desc(b["desc"]),
        b["shard"],
        tuple(b["defaults"]),
        tuple(Key(tuple(k["columns"]), k["primary"]) for k in b["keys"]),
        b["retain_history_ms"],
        b.get("unsettled_from"),
    )


def _view(i: ItemId, b: Json) -> Item:
    references = _decode_references(b["references"])
    return View(
        i, b["name"], b["schema"], b["sql"], decode_desc(b["desc"]), tuple(b["depends_on"]), references
    )


def _materialized_view(i: ItemId, b: Json) -> Item:
    return MaterializedView(
        i,
        b["name"],
        b["schema"],
        b["sql"],
        decode_desc(b["desc"]),
        b["shard"],
        b["created"],
        tuple(b["depends_on"]),
        _decode_references(b["references"]),
        b["retain_history_ms"],
    )


def _encode_references(references: Sequence[Reference]) -> list[Json]:
    return [{"name": list(r.name), "id": r.id, "width": r.width} for r in references]


def _decode_references(bodies: list[Json]) -> tuple[Reference, ...]:
    return tuple(Reference(tuple(r["name"]), r["id"], r.get("width")) for r in bodies)


def _source(i: ItemId, b: Json) -> Item:
    return Source(
        i,
        b["name"],
        b["schema"],
        b["type"],
        b["definition"],
        b["sql"],
        None if b["desc"] is None else decode_desc(b["desc"]),
        b["shard"],
        b["envelope"],
        decode_desc(b["remap_desc"]),
        b["remap_shard"],
        b["created"],
        b["interval_ms"],
        b["retain_history_ms"],
        tuple(b.get("depends_on", ())),
        b.get("timeline"),
    )


def _source_table(i: ItemId, b: Json) -> Item:
    return SourceTable(
        i,
        b["name"],
        b["schema"],
        b["source"],
        b["output"],
        decode_desc(b["desc"]),
        b["shard"],
        b["envelope"],
        b["created"],
        b["subsource"],
        b.get("definition"),
        b.get("sql"),
        tuple(b.get("connections", ())),
    )


def _source_progress(i: ItemId, b: Json) -> Item:
    return SourceProgress(i, b["name"], b["schema"], b["source"], decode_desc(b["desc"]))


def _sink(i: ItemId, b: Json) -> Item:
    return Sink(
        i,
        b["name"],
        b["schema"],
        b["type"],
        b["target"],
        b["definition"],
        b["sql"],
        b["relation"],
        decode_desc(b["desc"]),
        b["as_of"],
        b["snapshot"],
        tuple(b["connections"]),
    )


def _secret(i: ItemId, b: Json) -> Item:
    return Secret(i, b["name"], b["schema"], b["version"])


def _connection(i: ItemId, b: Json) -> Item:
    return Connection(i, b["name"], b["schema"], b["type"], b["options"], tuple(b["depends_on"]))


def _role(i: ItemId, b: Json) -> Item:
    if "login" not in b:
        # From before there were attributes: the one role that everybody was.
        return Role(i, b["name"], b["superuser"])
    return Role(
        i,
        b["name"],
        b["superuser"],
        b["login"],
        b["inherit"],
        b["createdb"],
        b["createrole"],
        b["verifier"],
        tuple(b["member_of"]),
    )


def _parameter(i: ItemId, b: Json) -> Item:
    return SystemParameter(i, b["name"], b["value"])


_DECODERS: dict[str, Callable[[ItemId, Json], Item]] = {
    "database": _database,
    "schema": _schema,
    "table": _table,
    "view": _view,
    "materialized_view": _materialized_view,
    "source": _source,
    "source_table": _source_table,
    "source_progress": _source_progress,
    "sink": _sink,
    "secret": _secret,
    "connection": _connection,
    "comment": _comment,
    "access": decode_access,
    "role": _role,
    "parameter": _parameter,
}


def _decode(item_id: ItemId, body: Json) -> Item:
    decoder = _DECODERS.get(body["kind"])
    if decoder is None:
        raise Unsupported(
            f"catalog item {item_id} is of a kind this version does not know: {body['kind']}",
            hint="The data directory was used by a newer version of tidemill; start that one.",
        )
    return decoder(item_id, body)


def encode_desc(desc: RelationDesc) -> list[Json]:
    """A list of columns; those that no query sees are marked."""
    hidden = [{**_encode_column(c), "hidden": True} for c in desc.hidden]
    return [*(_encode_column(c) for c in desc.columns), *hidden]


def decode_desc(columns: list[Json]) -> RelationDesc:
    shown = tuple(_decode_column(c) for c in columns if not c.get("hidden"))
    return RelationDesc(shown, tuple(_decode_column(c) for c in columns if c.get("hidden")))


def _encode_column(column: Column) -> Json:
    return {"name": column.name, "type": encode_type(column.type), "nullable": column.nullable}


def _decode_column(body: Json) -> Column:
    return Column(body["name"], decode_type(body["type"]), body["nullable"])


def encode_type(t: SqlType) -> Json:
    """Only what differs from a plain type is written."""
    body: Json = {"kind": t.kind.value}
    for name in ("length", "precision", "scale"):
        value = getattr(t, name)
        if value is not None:
            body[name] = value
    if t.element is not None:
        body["element"] = encode_type(t.element)
    if t.fields:
        body["fields"] = [_encode_column(c) for c in t.fields]
    return body


def decode_type(body: Json) -> SqlType:
    if unknown := body.keys() - {"kind", "length", "precision", "scale", "element", "fields"}:
        raise Internal(f"type modifiers that this version does not know: {sorted(unknown)}")
    return SqlType(
        Kind(body["kind"]),
        body.get("length"),
        body.get("precision"),
        body.get("scale"),
        decode_type(body["element"]) if "element" in body else None,
        tuple(_decode_column(c) for c in body.get("fields", [])),
    )
