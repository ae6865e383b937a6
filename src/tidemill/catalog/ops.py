"""Catalog operations: pure functions from one state to the next.

Each operation refers to existing items by id and to new items by name. The session resolved the names against
a state that may be slightly old, so a missing id is an error. `apply_all` is all or nothing. The store makes
the result durable and updates the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidemill.catalog import (
    comment_ops,
    connection_ops,
    materialized_ops,
    role_ops,
    sink_ops,
    source_ops,
    subscription_ops,
)
from tidemill.catalog.columns import check_columns, check_replaced
from tidemill.catalog.comment_ops import SetComment
from tidemill.catalog.connection_ops import (
    AlterConnectionOp,
    AlterSecretOp,
    CreateConnectionOp,
    CreateSecretOp,
)
from tidemill.catalog.items import (
    DEFAULT_SCHEMA,
    RELATIONS,
    SCHEMA_ITEMS,
    Database,
    Item,
    ItemId,
    Key,
    MaterializedView,
    Reference,
    Schema,
    SchemaItem,
    SourceTable,
    Subscription,
    SystemParameter,
    Table,
    View,
    is_system,
    kind_name,
)
from tidemill.catalog.materialized_ops import (
    CreateMaterializedViewOp,
    EndReplacement,
    ReplaceQuery,
    SetViewHistory,
    SwitchQuery,
)
from tidemill.catalog.names import check_identifier
from tidemill.catalog.role_ops import (
    AlterRoleOp,
    CreateRoleOp,
    DropRoleOp,
    SetMember,
    SetOwner,
    SetPrivileges,
)
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.catalog.source_ops import (
    AddSubsource,
    CreateSourceOp,
    CreateSourceTable,
    GiveUpTransactionOp,
    LearnSource,
    SetSourceHistory,
    SetSourceInterval,
)
from tidemill.catalog.state import CatalogState
from tidemill.catalog.subscription_ops import CreateSubscriptionOp
from tidemill.errors import (
    DependentObjects,
    DuplicateObject,
    InvalidValue,
    UndefinedObject,
    Unsupported,
)
from tidemill.types.model import Column, RelationDesc


@dataclass(frozen=True, slots=True)
class CreateDatabaseOp:
    """With a schema `public` in it."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateSchemaOp:
    database: ItemId
    name: str


@dataclass(frozen=True, slots=True)
class CreateTableOp:
    schema: ItemId
    name: str
    desc: RelationDesc
    # SQL texts, one per column; () for none at all.
    defaults: tuple[str | None, ...] = ()
    keys: tuple[Key, ...] = ()
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CreateViewOp:
    """`replace` keeps the id of an existing view, and requires that the old columns stay (more may
    follow)."""

    schema: ItemId
    name: str
    sql: str
    desc: RelationDesc
    depends_on: tuple[ItemId, ...] = ()
    references: tuple[Reference, ...] = ()
    replace: bool = False


@dataclass(frozen=True, slots=True)
class DropOp:
    """Drops a database, role, schema, or an item of a schema. Items that belong to a source are dropped only
    with it, or as a subsource `of` it."""

    id: ItemId
    cascade: bool = False
    of: ItemId | None = None


@dataclass(frozen=True, slots=True)
class RenameOp:
    """Renames a database, a schema, or an item of a schema. The references of a view do not depend on its
    text (`items.Reference`), which is unchanged."""

    id: ItemId
    name: str


@dataclass(frozen=True, slots=True)
class AddColumnOp:
    table: ItemId
    column: Column
    default: str | None = None


@dataclass(frozen=True, slots=True)
class SetDefaultOp:
    """DROP DEFAULT is None."""

    table: ItemId
    column: str
    default: str | None


@dataclass(frozen=True, slots=True)
class SetNotNullOp:
    """The caller has made sure that no row is in the way."""

    table: ItemId
    column: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class SetRetainHistoryOp:
    table: ItemId
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class AlterSystemOp:
    """RESET is None. Which names and values are good is the session's to know."""

    name: str
    value: str | None


Op: TypeAlias = (
    CreateDatabaseOp
    | CreateSchemaOp
    | CreateTableOp
    | CreateViewOp
    | CreateMaterializedViewOp
    | CreateRoleOp
    | AlterRoleOp
    | DropRoleOp
    | SetMember
    | SetOwner
    | SetPrivileges
    | CreateSourceOp
    | CreateSourceTable
    | AddSubsource
    | CreateSinkOp
    | CreateSubscriptionOp
    | DropOp
    | RenameOp
    | AddColumnOp
    | SetDefaultOp
    | SetNotNullOp
    | SetRetainHistoryOp
    | SetViewHistory
    | ReplaceQuery
    | SwitchQuery
    | EndReplacement
    | SetSourceHistory
    | SetSourceInterval
    | GiveUpTransactionOp
    | LearnSource
    | CreateSecretOp
    | AlterSecretOp
    | CreateConnectionOp
    | AlterConnectionOp
    | AlterSystemOp
    | SetComment
)


def apply_all(
    state: CatalogState, ops: Sequence[Op], *, time: int, owner: ItemId | None = None
) -> CatalogState:
    """The state after all of `ops`, which begins at `time`. New items belong to `owner`, a role."""
    for op in ops:
        draft = _Draft(state, time)
        draft.apply(op)
        role_ops.settle_access(state, draft.items, owner)
        state = CatalogState(draft.items.values(), next_id=draft.next_id, time=time)
    return state


class _Draft:
    """The next state in the making, for one operation."""

    def __init__(self, state: CatalogState, time: int) -> None:
        self.state = state
        self.time = time
        self.items: dict[ItemId, Item] = dict(state.items)
        self.next_id = state.next_id

    def new_id(self) -> ItemId:
        self.next_id += 1
        return f"u{self.next_id - 1}"

    def put(self, item: Item) -> None:
        self.items[item.id] = item

    def apply(self, op: Op) -> None:
        match op:
            case CreateDatabaseOp():
                self.create_database(op)
            case CreateSchemaOp():
                self.create_schema(op)
            case CreateTableOp():
                self.create_table(op)
            case CreateViewOp():
                self.create_view(op)
            case (
                CreateMaterializedViewOp()
                | SetViewHistory()
                | ReplaceQuery()
                | SwitchQuery()
                | EndReplacement()
            ):
                materialized_ops.apply(self, op)
            case CreateRoleOp() | AlterRoleOp() | DropRoleOp() | SetMember() | SetOwner() | SetPrivileges():
                role_ops.apply(self, op)
                comment_ops.forget(self.items)
            case CreateSourceOp():
                source_ops.create_source(self, op)
            case AddSubsource():
                source_ops.add_subsource(self, op)
            case CreateSourceTable():
                source_ops.create_source_table(self, op)
            case CreateSinkOp():
                sink_ops.apply(self, op)
            case CreateSubscriptionOp():
                subscription_ops.apply(self, op)
            case SetSourceHistory() | SetSourceInterval() | GiveUpTransactionOp() | LearnSource():
                self.put(source_ops.altered(self.state, op))
            case CreateSecretOp() | AlterSecretOp() | CreateConnectionOp() | AlterConnectionOp():
                connection_ops.apply(self, op)
            case DropOp():
                self.drop(op)
            case RenameOp():
                self.rename(op)
            case SetComment():
                comment_ops.apply(self, op)
            case AlterSystemOp():
                self.alter_system(op)
            case _:
                self.put(_alter_table(self.table(op.table), op))

    def table(self, item_id: ItemId) -> Table:
        return self.state.get(item_id, Table)

    def create_database(self, op: CreateDatabaseOp) -> None:
        check_identifier(op.name)
        if any(d.name == op.name for d in self.state.databases()):
            raise DuplicateObject(f'database "{op.name}" already exists', sqlstate="42P04")
        database = Database(self.new_id(), op.name)
        self.put(database)
        self.put(Schema(self.new_id(), DEFAULT_SCHEMA, database.id))

    def create_schema(self, op: CreateSchemaOp) -> None:
        database = self.state.get(op.database, Database)
        self.check_schema_name(database.id, op.name)
        self.put(Schema(self.new_id(), op.name, database.id))

    def check_schema_name(self, database: ItemId, name: str) -> None:
        check_identifier(name)
        if name.startswith(("pg_", "mz_")):
            raise Unsupported(
                f'unacceptable schema name "{name}"',
                detail='The prefixes "pg_" and "mz_" are reserved for system schemas.',
                sqlstate="42939",
            )
        if self.state.find_schema(database, name) is not None:
            raise DuplicateObject(f'schema "{name}" already exists', sqlstate="42P06")

    def check_name(self, schema: ItemId, name: str) -> None:
        """Something new may be called so in the schema."""
        check_identifier(name)
        if self.state.get(schema, Schema).database is None:
            raise Unsupported("system schemas cannot be changed", sqlstate="42501")
        existing = self.state.find(schema, name)
        if existing is not None:
            raise already_exists(existing)

    def create_table(self, op: CreateTableOp) -> None:
        self.check_name(op.schema, op.name)
        check_columns(op.desc)
        defaults = op.defaults or (None,) * len(op.desc.columns)
        if len(defaults) != len(op.desc.columns):
            raise InvalidValue("one default per column is needed", sqlstate="42601")
        for key in op.keys:
            for column in key.columns:
                _index(op.desc, column, op.name)
        item_id = self.new_id()
        # The time makes it unique, even if a failed attempt left files under the same item id.
        shard = f"{item_id}-{self.time}"
        self.put(Table(item_id, op.name, op.schema, op.desc, shard, defaults, op.keys, op.retain_history_ms))

    def create_view(self, op: CreateViewOp) -> None:
        check_columns(op.desc)
        depends_on = tuple(dict.fromkeys((*op.depends_on, *(r.id for r in op.references))))
        for needed in depends_on:
            self.state.relation(needed)
        existing = self.state.find(op.schema, op.name)
        if op.replace and isinstance(existing, View):
            self.check_replaces(existing, op, depends_on)
            item_id = existing.id
        else:
            self.check_name(op.schema, op.name)
            item_id = self.new_id()
        self.put(View(item_id, op.name, op.schema, op.sql, op.desc, depends_on, op.references))

    def check_replaces(self, old: View, op: CreateViewOp, depends_on: tuple[ItemId, ...]) -> None:
        check_replaced(old.desc, op.desc)
        dependants = self.state.drop_order(old.id)
        kept = next((i for i in dependants if isinstance(i, MaterializedView | Subscription)), None)
        if kept is not None:
            what = "materialized view" if isinstance(kept, MaterializedView) else "subscription"
            told = "holds" if isinstance(kept, MaterializedView) else "has sent"
            raise DependentObjects(
                f"cannot replace {self.state.describe(old)}: {self.state.describe(kept)} depends on it",
                detail=f"What a {what} {told} is never worked out again.",
                hint=f"DROP the {what} first, and create it anew.",
            )
        going = {i.id for i in dependants}
        if going & set(depends_on):
            raise InvalidValue(f'view "{old.name}" would depend on itself', sqlstate="42P17")

    def changeable(self, item_id: ItemId) -> Item:
        item = self.items.get(item_id)
        if item is None:
            raise UndefinedObject(
                f"catalog item {item_id} does not exist", detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        if is_system(item_id):
            raise Unsupported(
                f"{self.state.describe(item)} is part of the system and cannot be changed", sqlstate="42501"
            )
        return item

    def drop(self, op: DropOp) -> None:
        item = self.changeable(op.id)
        if isinstance(item, SCHEMA_ITEMS) and item.owner not in (None, op.of):
            shown, owner = self.state.describe(item), self.state.describe(self.items[item.owner])
            hint = f"You can drop {owner} instead."
            if isinstance(item, SourceTable) and item.dead_letters_of is None:
                hint = "ALTER SOURCE ... DROP SUBSOURCE drops it alone."
            raise DependentObjects(f"cannot drop {shown} because {owner} requires it", hint=hint)
        if not op.cascade:
            contents = self.state.contents(op.id)
            # The schema `public` of a new database does not prevent that the database is dropped.
            if any(not self.is_empty_default(i) for i in contents) or self.state.dependants(op.id):
                self.state.check_droppable(op.id)
        for item in self.state.drop_order(op.id):
            del self.items[item.id]
        comment_ops.forget(self.items)

    def is_empty_default(self, item_id: ItemId) -> bool:
        item = self.items[item_id]
        return isinstance(item, Schema) and item.name == DEFAULT_SCHEMA and not self.state.contents(item_id)

    def rename(self, op: RenameOp) -> None:
        item = self.changeable(op.id)
        if isinstance(item, SCHEMA_ITEMS):
            self.check_name(item.schema, op.name)
        elif isinstance(item, Schema) and item.database is not None:
            self.check_schema_name(item.database, op.name)
        elif isinstance(item, Database):
            check_identifier(op.name)
            if any(d.name == op.name for d in self.state.databases()):
                raise DuplicateObject(f'database "{op.name}" already exists', sqlstate="42P04")
        else:
            raise Unsupported(f"a {kind_name(item)} cannot be renamed")
        self.put(replace(item, name=op.name))

    def alter_system(self, op: AlterSystemOp) -> None:
        found = self.state.find_parameter(op.name)
        if op.value is None:
            if found is not None:
                del self.items[found.id]
        elif found is not None:
            self.put(replace(found, value=op.value))
        else:
            self.put(SystemParameter(self.new_id(), op.name, op.value))


def already_exists(item: SchemaItem) -> DuplicateObject:
    if isinstance(item, RELATIONS):
        return DuplicateObject(f'relation "{item.name}" already exists', sqlstate="42P07")
    return DuplicateObject(f'{kind_name(item)} "{item.name}" already exists')


def _alter_table(table: Table, op: AddColumnOp | SetDefaultOp | SetNotNullOp | SetRetainHistoryOp) -> Table:
    if isinstance(op, AddColumnOp):
        if op.column.name in table.desc.names:
            raise DuplicateObject(
                f'column "{op.column.name}" of relation "{table.name}" already exists', sqlstate="42701"
            )
        desc = RelationDesc((*table.desc.columns, op.column))
        check_columns(desc)
        return replace(table, desc=desc, defaults=(*table.defaults, op.default))
    if isinstance(op, SetRetainHistoryOp):
        return replace(table, retain_history_ms=op.milliseconds)
    at = _index(table.desc, op.column, table.name)
    if isinstance(op, SetDefaultOp):
        defaults = list(table.defaults)
        defaults[at] = op.default
        return replace(table, defaults=tuple(defaults))
    columns = list(table.desc.columns)
    columns[at] = replace(columns[at], nullable=not op.not_null)
    return replace(table, desc=RelationDesc(tuple(columns)))


def _index(desc: RelationDesc, column: str, relation: str) -> int:
    if column not in desc.names:
        raise UndefinedObject(f'column "{column}" of relation "{relation}" does not exist', sqlstate="42703")
    return desc.names.index(column)
