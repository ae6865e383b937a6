"""Catalog state: an immutable value with its lookups.

Created by the store from the shard, and by `ops` from another state. Read by all threads without locks.
Errors match PostgreSQL's, with its SQLSTATEs, so that clients and their libraries recognise them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TypeVar

from tidemill.catalog import sidecars
from tidemill.catalog.access import Access
from tidemill.catalog.items import (
    IMPLICIT_SCHEMAS,
    RELATIONS,
    SCHEMA_ITEMS,
    Collection,
    Comment,
    Connection,
    Database,
    Item,
    ItemId,
    MaterializedView,
    Relation,
    Role,
    Schema,
    SchemaItem,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    SystemParameter,
    Table,
    kind_name,
)
from tidemill.catalog.names import dotted, similar
from tidemill.errors import (
    DependentObjects,
    Internal,
    SyntaxError_,
    UndefinedObject,
    Unsupported,
    WrongObjectType,
)
from tidemill.types.model import RelationDesc

_I = TypeVar("_I", bound=Item)


class CatalogState:
    """Everything that exists at `time`, the system's own included."""

    def __init__(self, items: Iterable[Item], *, next_id: int, time: int) -> None:
        # The number of the next user id; kept in the shard, so that the ids of dropped items are not used
        # again.
        self.next_id = next_id
        # When this state began: the time of the last change.
        self.time = time
        self._items: dict[ItemId, Item] = {i.id: i for i in items}
        self._databases: dict[str, ItemId] = {}
        self._schemas: dict[tuple[ItemId | None, str], ItemId] = {}
        self._named: dict[tuple[ItemId, str], ItemId] = {}
        self._roles: dict[str, ItemId] = {}
        self._parameters: dict[str, ItemId] = {}
        self._access: dict[ItemId, ItemId] = {}
        self._comments: dict[tuple[ItemId, str | None], ItemId] = {}
        self._dependants: dict[ItemId, list[ItemId]] = {}
        # The contents of databases and schemas, in the order of ids.
        self._contents: dict[ItemId, list[ItemId]] = {}
        for item in sorted(self._items.values(), key=lambda i: id_order(i.id)):
            self._index(item)

    def _index(self, item: Item) -> None:
        if isinstance(item, Database):
            taken = self._databases.setdefault(item.name, item.id)
        elif isinstance(item, Schema):
            taken = self._schemas.setdefault((item.database, item.name), item.id)
            if item.database is not None:
                self._require(item, item.database)
                self._contents.setdefault(item.database, []).append(item.id)
        elif isinstance(item, Role):
            taken = self._roles.setdefault(item.name, item.id)
        elif isinstance(item, SystemParameter):
            taken = self._parameters.setdefault(item.name, item.id)
        elif isinstance(item, Access):
            taken = self._access.setdefault(item.on, item.id)
            self._require(item, item.on)
            self._require(item, item.owner)
        elif isinstance(item, Comment):
            taken = self._comments.setdefault((item.on, item.column), item.id)
            self._require(item, item.on)
        else:
            taken = self._named.setdefault((item.schema, item.name), item.id)
            self._require(item, item.schema)
            self._contents.setdefault(item.schema, []).append(item.id)
            for needed in item.depends_on:
                self._require(item, needed)
                self._dependants.setdefault(needed, []).append(item.id)
        if taken != item.id:
            raise Internal(f"two catalog items of one name: {taken} and {item.id} ({item.name})")

    def _require(self, item: Item, needed: ItemId) -> None:
        if needed not in self._items:
            raise Internal(f"catalog item {item.id} ({item.name}) needs {needed}, which does not exist")

    # -- by id

    @property
    def items(self) -> Mapping[ItemId, Item]:
        return MappingProxyType(self._items)

    def get(self, item_id: ItemId, kind: type[_I]) -> _I:
        """The item with that id. Raises if it was dropped meanwhile or is of another kind."""
        item = self._items.get(item_id)
        if not isinstance(item, kind):
            raise UndefinedObject(
                f"catalog item {item_id} does not exist", detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        return item

    def relation(self, item_id: ItemId) -> Relation:
        item = self._items.get(item_id)
        if not isinstance(item, RELATIONS):
            raise UndefinedObject(
                f"relation {item_id} does not exist", detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        return item

    def tables(self) -> list[Table]:
        return [i for i in self._items.values() if isinstance(i, Table)]

    def materialized_views(self) -> list[MaterializedView]:
        return [i for i in self._items.values() if isinstance(i, MaterializedView)]

    def sources(self) -> list[Source]:
        return [i for i in self._items.values() if isinstance(i, Source)]

    def source_tables(self, source: ItemId) -> list[SourceTable]:
        """The subsources and tables of a source, in the order they were made."""
        found = [self._items[i] for i in self.dependants(source)]
        return [i for i in found if isinstance(i, SourceTable)]

    def dead_letters(self, of: Source | SourceTable) -> SourceTable | None:
        """The relation of the messages that a source or table could not read; None where it has none."""
        source = of.id if isinstance(of, Source) else of.source
        return next((t for t in self.source_tables(source) if t.dead_letters_of == of.id), None)

    def progress(self, source: ItemId) -> SourceProgress:
        """The progress relation of a source."""
        for item_id in self.dependants(source):
            if isinstance(item := self._items[item_id], SourceProgress):
                return item
        raise Internal(f"source {source} has no progress relation")

    def sinks(self) -> list[Sink]:
        return [i for i in self._items.values() if isinstance(i, Sink)]

    def connections(self) -> list[Connection]:
        return [i for i in self._items.values() if isinstance(i, Connection)]

    def subscriptions(self) -> list[Subscription]:
        return [i for i in self._items.values() if isinstance(i, Subscription)]

    def secrets(self) -> list[Secret]:
        return [i for i in self._items.values() if isinstance(i, Secret)]

    def collections(self) -> list[Collection]:
        """Everything that has a shard."""
        found: list[Collection] = []
        for item in self._items.values():
            match item:
                case Table():
                    found.append(Collection(item.shard, item, item.desc))
                case Source():
                    found.append(Collection(item.remap_shard, item, item.remap_desc, remap=True))
                    if item.type in sidecars.INBOXES:
                        inbox = sidecars.inbox_id(item.remap_shard)
                        found.append(Collection(inbox, item, sidecars.INBOXES[item.type]))
                    if item.shard is not None and item.desc is not None:
                        foreign = item.timeline is not None
                        found.append(Collection(item.shard, item, item.desc, foreign=foreign))
                        found += _sidecars(item, item.shard, item.desc)
                    if item.cuts_shard is not None:
                        found.append(Collection(item.cuts_shard, item, sidecars.FACTS_DESC))
                case SourceTable():
                    found.append(Collection(item.shard, item, item.desc))
                    found += _sidecars(item, item.shard, item.desc)
                case MaterializedView():
                    found.append(Collection(item.shard, item, item.desc))
                    if item.replacement is not None:
                        found.append(Collection(item.replacement.shard, item, item.desc))
                case _:
                    pass
        return found

    def databases(self) -> list[Database]:
        return [self.get(i, Database) for i in self._databases.values()]

    def schemas(self, database: ItemId) -> list[Schema]:
        """The schemas of a database, the system's (which all share) behind its own."""
        own = [self.get(i, Schema) for i in self._contents.get(database, ())]
        return own + [self.get(i, Schema) for (d, _), i in self._schemas.items() if d is None]

    def relations(self, schema: ItemId) -> list[Relation]:
        return [i for i in self.schema_items(schema) if isinstance(i, RELATIONS)]

    def schema_items(self, schema: ItemId) -> list[SchemaItem]:
        found = [self._items[i] for i in self._contents.get(schema, ())]
        return [i for i in found if isinstance(i, SCHEMA_ITEMS)]

    def contents(self, container: ItemId) -> list[ItemId]:
        """The items directly in a database or schema."""
        return list(self._contents.get(container, ()))

    def dependants(self, item_id: ItemId) -> list[ItemId]:
        """What directly depends on it."""
        return list(self._dependants.get(item_id, ()))

    def needed_by(self, item_id: ItemId) -> CatalogState:
        """A state with only the item, its containers and its dependencies, for callers that keep it long."""
        found: dict[ItemId, Item] = {}
        todo = [item_id]
        while todo:
            item = self._items[todo.pop()]
            if item.id in found:
                continue
            found[item.id] = item
            if isinstance(item, Schema) and item.database is not None:
                todo.append(item.database)
            elif isinstance(item, SCHEMA_ITEMS):
                todo += [item.schema, *item.depends_on]
        return CatalogState(found.values(), next_id=self.next_id, time=self.time)

    def drop_order(self, item_id: ItemId) -> list[Item]:
        """The item and everything that CASCADE drops with it (contents and dependants, at any depth),
        dependants first."""
        order: list[ItemId] = []
        seen: set[ItemId] = set()
        # Depth first without recursion: chains of views may be long.
        stack: list[tuple[ItemId, bool]] = [(item_id, False)]
        while stack:
            current, done = stack.pop()
            if done:
                order.append(current)
            elif current not in seen:
                seen.add(current)
                stack.append((current, True))
                stack += [(i, False) for i in (*self.contents(current), *self.dependants(current))]
        return [self._items[i] for i in order]

    def check_droppable(self, item_id: ItemId) -> None:
        """Raises, as RESTRICT does, if other items would be dropped, too. Items that belong to a dropped item
        do not count."""
        item = self._items[item_id]
        others = [i for i in self.drop_order(item_id) if i.id != item_id]
        going = {item_id, *(i.id for i in others)}
        others = [i for i in others if not (isinstance(i, SCHEMA_ITEMS) and i.owner in going)]
        if others:
            shown = self.describe(item)
            raise DependentObjects(
                f"cannot drop {shown} because other objects depend on it",
                detail="\n".join(self._dependency_lines(item, others, going)),
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )

    def _dependency_lines(self, item: Item, others: Sequence[Item], going: Set[ItemId]) -> list[str]:
        lines: list[str] = []
        for other in sorted(others, key=lambda i: id_order(i.id)):
            causes: list[ItemId | None] = [other.database] if isinstance(other, Schema) else []
            if isinstance(other, SCHEMA_ITEMS):
                causes = [*other.depends_on, other.schema]
            cause = next((c for c in causes if c is not None and c in going), item.id)
            lines.append(f"{self.describe(other)} depends on {self.describe(self._items[cause])}")
        return lines

    # -- by name

    def database(self, name: str) -> Database:
        found = self.find_database(name)
        if found is None:
            raise UndefinedObject(f'database "{name}" does not exist', sqlstate="3D000")
        return found

    def find_database(self, name: str) -> Database | None:
        item_id = self._databases.get(name)
        return None if item_id is None else self.get(item_id, Database)

    def schema(self, database: ItemId, name: str) -> Schema:
        """The schema of that name in the database, or the system's."""
        found = self.find_schema(database, name)
        if found is None:
            close = similar(name, [s.name for s in self.schemas(database)])
            raise UndefinedObject(
                f'schema "{name}" does not exist', hint=_perhaps("schema", close), sqlstate="3F000"
            )
        return found

    def find_schema(self, database: ItemId, name: str) -> Schema | None:
        item_id = self._schemas.get((database, name)) or self._schemas.get((None, name))
        return None if item_id is None else self.get(item_id, Schema)

    def resolve_schema(self, parts: Sequence[str], database: str) -> Schema:
        """`schema` or `database.schema`."""
        if len(parts) > 2:
            raise SyntaxError_(f"improper qualified name (too many dotted names): {dotted(parts)}")
        return self.schema(self.database(parts[0] if len(parts) == 2 else database).id, parts[-1])

    def find(self, schema: ItemId, name: str) -> SchemaItem | None:
        item_id = self._named.get((schema, name))
        item = None if item_id is None else self._items[item_id]
        return item if isinstance(item, SCHEMA_ITEMS) else None

    def resolve(self, parts: Sequence[str], database: str, search_path: Sequence[str]) -> Relation:
        """A relation by its name as written (`resolve_item`)."""
        found = self.resolve_item(parts, database, search_path)
        if not isinstance(found, RELATIONS):
            raise WrongObjectType(f'"{dotted(parts)}" is a {kind_name(found)}, not a relation')
        return found

    def resolve_item(
        self, parts: Sequence[str], database: str, search_path: Sequence[str], kind: str = "relation"
    ) -> SchemaItem:
        """The item of a schema, by its name as written: `item`, `schema.item` or `database.schema.item`. An
        unqualified one is looked up in the implicit system schemas and then along the search path; schemas of
        the path that do not exist are skipped. `kind` is its designation in errors."""
        if len(parts) > 3:
            raise SyntaxError_(f"improper qualified name (too many dotted names): {dotted(parts)}")
        name = parts[-1]
        if len(parts) == 1:
            db = self.database(database)
            schemas = [s for n in self._path(search_path) if (s := self.find_schema(db.id, n)) is not None]
        else:
            schemas = [self.resolve_schema(parts[:-1], database)]
        for schema in schemas:
            if (found := self.find(schema.id, name)) is not None:
                return found
        items = [i for s in schemas for i in self.schema_items(s.id)]
        close = similar(name, [i.name for i in items if kind in ("relation", kind_name(i))])
        raise UndefinedObject(
            f'{kind} "{dotted(parts)}" does not exist',
            hint=_perhaps(kind, close),
            sqlstate="42P01" if kind == "relation" else "42704",
        )

    def resolve_new(
        self, parts: Sequence[str], database: str, search_path: Sequence[str]
    ) -> tuple[Schema, str]:
        """Where something of that name would be created: the first schema of the path that exists, if none
        is named."""
        if len(parts) > 3:
            raise SyntaxError_(f"improper qualified name (too many dotted names): {dotted(parts)}")
        if len(parts) > 1:
            return self._writable(self.resolve_schema(parts[:-1], database)), parts[-1]
        db = self.database(database)
        for name in search_path:
            if (schema := self.find_schema(db.id, name)) is not None:
                return self._writable(schema), parts[-1]
        raise UndefinedObject("no schema has been selected to create in", sqlstate="3F000")

    def _writable(self, schema: Schema) -> Schema:
        if schema.database is None:
            raise Unsupported(f'cannot create in system schema "{schema.name}"', sqlstate="42501")
        return schema

    @staticmethod
    def _path(search_path: Sequence[str]) -> list[str]:
        return [*(s for s in IMPLICIT_SCHEMAS if s not in search_path), *search_path]

    def role(self, name: str) -> Role:
        found = self.find_role(name)
        if found is None:
            raise UndefinedObject(f'role "{name}" does not exist', sqlstate="42704")
        return found

    def find_role(self, name: str) -> Role | None:
        item_id = self._roles.get(name)
        return None if item_id is None else self.get(item_id, Role)

    def roles(self) -> list[Role]:
        return [self.get(i, Role) for i in self._roles.values()]

    def access(self, on: ItemId) -> Access | None:
        """Who owns it and may use it, where that was said (`privileges.access_of` knows the rest)."""
        item_id = self._access.get(on)
        return None if item_id is None else self.get(item_id, Access)

    def find_parameter(self, name: str) -> SystemParameter | None:
        item_id = self._parameters.get(name)
        return None if item_id is None else self.get(item_id, SystemParameter)

    def comment(self, on: ItemId, column: str | None = None) -> Comment | None:
        """What COMMENT ON said of it."""
        item_id = self._comments.get((on, column))
        return None if item_id is None else self.get(item_id, Comment)

    def comments(self) -> list[Comment]:
        return [self.get(i, Comment) for i in self._comments.values()]

    def parameters(self) -> dict[str, str]:
        """What ALTER SYSTEM has set."""
        return {n: self.get(i, SystemParameter).value for n, i in self._parameters.items()}

    # -- names for people

    def full_name(self, item: Item) -> tuple[str, ...]:
        """All parts of the name that `resolve` finds the item by from anywhere."""
        if isinstance(item, Schema):
            return (item.name,) if item.database is None else (self._items[item.database].name, item.name)
        if isinstance(item, SCHEMA_ITEMS):
            return (*self.full_name(self._items[item.schema]), item.name)
        return (item.name,)

    def describe(self, item: Item) -> str:
        """As in PostgreSQL's messages: `table t`, `view other.v`; the default schema is not shown."""
        if isinstance(item, SCHEMA_ITEMS):
            schema = self._items[item.schema]
            shown = item.name if schema.name == "public" else f"{schema.name}.{item.name}"
            return f"{kind_name(item)} {shown}"
        return f"{kind_name(item)} {item.name}"


def id_order(item_id: ItemId) -> tuple[str, int]:
    """Ids in the order they were given out, the system's first."""
    return item_id[0], int(item_id[1:])


def _perhaps(kind: str, close: str | None) -> str | None:
    return None if close is None else f'Perhaps you meant the {kind} "{close}".'


def _sidecars(item: Source | SourceTable, shard: str, desc: RelationDesc) -> list[Collection]:
    """State that its envelope must remember beside the rows."""
    timeline = item.timeline if isinstance(item, Source) else None
    found = sidecars.sidecars_of(item.envelope, shard, desc, item.definition, timeline)
    return [Collection(name, item, columns) for name, columns in found]
