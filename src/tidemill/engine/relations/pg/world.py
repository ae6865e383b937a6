"""One catalog state as PostgreSQL's catalogs show it: namespaces, relations, columns, keys; and their
OIDs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tidemill.caches import cached
from tidemill.catalog.items import (
    DEFAULT_SCHEMA,
    MaterializedView,
    Relation,
    Schema,
    Source,
    Table,
    View,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.oids import key_oids
from tidemill.engine.relations.view_text import query_today
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class PgKey:
    """A PRIMARY KEY or UNIQUE constraint, with the index that PostgreSQL would create for it. `numbers`: its
    columns."""

    index: int
    constraint: int
    name: str
    primary: bool
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PgRelation:
    """`item` is None for a system relation. `kind` is pg_class.relkind."""

    id: str
    oid: int
    schema: str
    namespace: int
    name: str
    kind: str
    desc: RelationDesc
    item: Relation | None = None
    defaults: tuple[str | None, ...] = ()
    keys: tuple[PgKey, ...] = ()
    definition: str | None = None

    def default(self, number: int) -> str | None:
        return self.defaults[number - 1] if number <= len(self.defaults) else None


@dataclass(frozen=True, slots=True)
class World:
    """The contents of one database's catalogs."""

    catalog: CatalogState
    database: str
    schemas: Sequence[Schema]
    relations: Sequence[PgRelation]
    by_oid: dict[int, PgRelation] = field(default_factory=dict)
    by_name: dict[tuple[str, str], PgRelation] = field(default_factory=dict)
    namespaces: dict[int, str] = field(default_factory=dict)
    keys: dict[int, tuple[PgRelation, PgKey]] = field(default_factory=dict)

    def columns(self) -> Iterator[tuple[PgRelation, int]]:
        """Every column, with its relation and number."""
        for relation in self.relations:
            for number in range(1, len(relation.desc.columns) + 1):
                yield relation, number


# Sessions read the current state repeatedly; each database has a separate view of it.
@cached(8)
def world(catalog: CatalogState, database: str) -> World:
    schemas = catalog.schemas(catalog.database(database).id)
    found: list[PgRelation] = []
    for schema in schemas:
        found += [_relation(catalog, schema, item) for item in catalog.relations(schema.id)]
    found += _system(schemas)
    made = World(catalog, database, schemas, found)
    for schema in schemas:
        made.namespaces[item_oid(schema.id)] = schema.name
    for relation in found:
        made.by_oid[relation.oid] = relation
        made.by_name[(relation.schema, relation.name)] = relation
        for key in relation.keys:
            made.keys[key.index] = made.keys[key.constraint] = (relation, key)
    return made


def _relation(catalog: CatalogState, schema: Schema, item: Relation) -> PgRelation:
    kind = "v" if isinstance(item, View) else "m" if isinstance(item, MaterializedView) else "r"
    return PgRelation(
        item.id,
        item_oid(item.id),
        schema.name,
        item_oid(schema.id),
        item.name,
        kind,
        item.desc or RelationDesc() if isinstance(item, Source) else item.desc,
        item,
        item.defaults if isinstance(item, Table) else (),
        _keys(item) if isinstance(item, Table) else (),
        query_today(catalog, item, partial(_plain_name, catalog, schema))
        if isinstance(item, View | MaterializedView)
        else None,
    )


def _plain_name(catalog: CatalogState, own: Schema, item: Relation) -> tuple[str, ...]:
    """The name of a view's input in the view's text: qualified only as far as sessions with the default
    search path need it."""
    schema = catalog.get(item.schema, Schema)
    if schema.database != own.database:
        return catalog.full_name(item)
    return (item.name,) if schema.name == DEFAULT_SCHEMA else (schema.name, item.name)


def _keys(table: Table) -> tuple[PgKey, ...]:
    names = table.desc.names
    found: list[PgKey] = []
    for n, key in enumerate(table.keys):
        index, constraint = key_oids(table.id, n)
        ending = "pkey" if key.primary else f"{'_'.join(key.columns)}_key"
        numbers = tuple(names.index(c) + 1 for c in key.columns)
        found.append(PgKey(index, constraint, f"{table.name}_{ending}", key.primary, numbers))
    return tuple(found)


def _system(schemas: Sequence[Schema]) -> Iterator[PgRelation]:
    from tidemill.engine.relations.system import SYSTEM_RELATIONS

    ids = {s.name: item_oid(s.id) for s in schemas if s.database is None}
    for r in SYSTEM_RELATIONS.values():
        kind = "r" if r.schema == "pg_catalog" else "v"
        yield PgRelation(r.id, r.oid, r.schema, ids[r.schema], r.name, kind, r.desc)
