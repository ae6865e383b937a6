"""Catalog items, as immutable values.

Ids are stable and never reused: `u1`, `u2`, ... for user items, `s1`, ... for system items. A new kind of
item needs a dataclass here and its names in `KIND_NAMES` and `codec.KINDS`. A new field needs a default. An
item inside a schema has `schema`, `depends_on` and `owner`; names, dependencies and DROP then work for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.catalog.access import Access
from tidemill.types.model import RelationDesc

ItemId: TypeAlias = str


class Unowned:
    """An item that comes and goes by itself."""

    __slots__ = ()

    @property
    def owner(self) -> ItemId | None:
        return None


class Independent(Unowned):
    """An item that nothing else must be there for."""

    __slots__ = ()

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Database:
    id: ItemId
    name: str


@dataclass(frozen=True, slots=True)
class Schema:
    """`database` is None for the system's schemas, which every database shows."""

    id: ItemId
    name: str
    database: ItemId | None


@dataclass(frozen=True, slots=True)
class Key:
    """A PRIMARY KEY or UNIQUE that was declared. It is kept for the reader's sake and not enforced."""

    columns: tuple[str, ...]
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Table(Independent):
    id: ItemId
    name: str
    schema: ItemId
    desc: RelationDesc
    # Where its rows are. Not the item's id alone: a CREATE that failed halfway may have left a shard of
    # that name.
    shard: str
    # One per column: the SQL text of DEFAULT, or None.
    defaults: tuple[str | None, ...]
    keys: tuple[Key, ...] = ()
    # RETAIN HISTORY FOR, in milliseconds; None follows the system's default.
    retain_history_ms: int | None = None
    # Set only in the entry of an ADD COLUMN, which stands before the shard's: how many columns there were.
    # Those behind exist if the shard has them. A server that finds it when it starts looks, and settles it.
    unsettled_from: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A name as it is written in a view's text, and what it meant when the view was made. Whoever expands
    the view resolves its names by these, so that neither a rename nor another search path changes what it
    reads."""

    name: tuple[str, ...]
    id: ItemId
    # How many columns it had then: `*` in the view's text means those, whatever was added since. None: all.
    width: int | None = None


@dataclass(frozen=True, slots=True)
class View(Unowned):
    id: ItemId
    name: str
    schema: ItemId
    # The query, without CREATE VIEW.
    sql: str
    desc: RelationDesc
    depends_on: tuple[ItemId, ...]
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class MaterializedView(Unowned):
    """A query whose answer is kept, at every time, in a shard of its own."""

    id: ItemId
    name: str
    schema: ItemId
    # The query, without CREATE MATERIALIZED VIEW, and what its names mean; as for a view.
    sql: str
    desc: RelationDesc
    shard: str
    # The time at which its shard begins: its first since and upper. It can be read when upper has passed it.
    created: int
    depends_on: tuple[ItemId, ...]
    references: tuple[Reference, ...] = ()
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Source(Unowned):
    """An upstream that is read for ever. It has a progress relation, and its rows either under its own name
    or in `SourceTable`s."""

    id: ItemId
    name: str
    schema: ItemId
    # The kind, as mz_sources shows it: `load-generator`.
    type: str
    # Everything needed to read it, as `sources.definition` makes it: canonical JSON, a value like the rest.
    definition: str
    # The statement that made it. SHOW CREATE puts the names and options of today into it.
    sql: str
    # Its own rows, where they are, and how messages become rows (`none`, `upsert`); None where it feeds
    # tables.
    desc: RelationDesc | None
    shard: str | None
    envelope: str | None
    # The bindings: the columns that name a partition, and where they are.
    remap_desc: RelationDesc
    remap_shard: str
    # The time at which its shards begin: their first since and upper.
    created: int
    # TIMESTAMP INTERVAL, in milliseconds: how often it is bound and read.
    interval_ms: int
    # Of its rows, its tables' and its bindings alike: they are let go together.
    retain_history_ms: int | None = None
    # The connections that its definition names.
    depends_on: tuple[ItemId, ...] = ()
    # WITH (TIMELINE 'name'): its rows keep the times of the stream that they come from, and meet only rows of
    # this timeline. None: they have ours.
    timeline: str | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One output of a source that has several. A subsource (FOR TABLES) belongs to its source; a table
    (CREATE TABLE ... FROM SOURCE) is dropped by itself."""

    id: ItemId
    name: str
    schema: ItemId
    source: ItemId
    # The output's name at the source; no two tables of a source have the same.
    output: str
    desc: RelationDesc
    shard: str
    envelope: str
    # As for a source. A table made later than its source begins later.
    created: int
    subsource: bool
    # Of a table that says itself how messages become rows: what is added to the outputs of its source's
    # definition, the statement that made it, and the connections that it names.
    definition: str | None = None
    sql: str | None = None
    connections: tuple[ItemId, ...] = ()
    # Of a relation of dead letters: the source or table whose messages they are. It comes and goes with that.
    dead_letters_of: ItemId | None = None

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        table = () if self.dead_letters_of in (None, self.source) else (self.dead_letters_of,)
        return (self.source, *table, *self.connections)

    @property
    def owner(self) -> ItemId | None:
        return self.dead_letters_of or (self.source if self.subsource else None)


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far a source was read, as a relation: its remap shard under a name. It comes and goes with the
    source."""

    id: ItemId
    name: str
    schema: ItemId
    source: ItemId
    desc: RelationDesc

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return (self.source,)

    @property
    def owner(self) -> ItemId | None:
        return self.source


@dataclass(frozen=True, slots=True)
class Sink(Unowned):
    """A relation whose changes are written to a place outside, for ever."""

    id: ItemId
    name: str
    schema: ItemId
    # The kind, as mz_sinks shows it: `kafka`, `files`.
    type: str
    # The place, as canonical JSON: two sinks with the same write to one stream, and must say the same.
    target: str
    # How it is written there, as `sinks.definition` makes it: canonical JSON, with connections by their ids.
    definition: str
    # The statement that made it. SHOW CREATE puts the names of today into it.
    sql: str
    relation: ItemId
    # What is written: the columns that the relation had when the sink was made.
    desc: RelationDesc
    # The time at which the stream begins: with what the relation holds then (`snapshot`), or with what
    # changes afterwards. Where the relation's history begins later, it begins there.
    as_of: int
    snapshot: bool
    # The connections that its definition names.
    connections: tuple[ItemId, ...] = ()

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return (self.relation, *self.connections)


@dataclass(frozen=True, slots=True)
class Secret(Independent):
    """A text that statements refer to and nobody sees. It is in a store of its own (`secrets`); here is only
    that there is one."""

    id: ItemId
    name: str
    schema: ItemId
    # The time at which the text was set. It is part of the name that the text has in the store, so that a
    # text is never overwritten, and a change of it is a change of the catalog.
    version: int


@dataclass(frozen=True, slots=True)
class Connection(Unowned):
    """How something outside is reached, and who we are there."""

    id: ItemId
    name: str
    schema: ItemId
    # The kind, as mz_connections shows it: `kafka`, `confluent-schema-registry`.
    type: str
    # Canonical JSON: by name a text, a list of texts, or {"secret": id} (`connections`).
    options: str
    # The secrets among the options.
    depends_on: tuple[ItemId, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """Somebody who logs in, or a group of them. The defaults are those of a role from before there were
    attributes."""

    id: ItemId
    name: str
    # May do everything.
    superuser: bool = False
    # May be who a session is.
    login: bool = True
    # Has the rights of the roles that it is a member of without SET ROLE.
    inherit: bool = True
    # May CREATE DATABASE; may make, change and drop roles.
    createdb: bool = True
    createrole: bool = True
    # What is stored of the password (`access.scram`), never the password; None: it has none.
    verifier: str | None = field(default=None, repr=False)
    # The roles that it is a member of.
    member_of: tuple[ItemId, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemParameter:
    """A value set by ALTER SYSTEM; one that stands at its default has no item."""

    id: ItemId
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Comment:
    """What COMMENT ON said of an item, or of a column of it. It goes with the item."""

    id: ItemId
    on: ItemId
    column: str | None
    text: str

    @property
    def name(self) -> str:
        """For messages: a comment has none of its own."""
        return f"comment on {self.on}"


# What can be read, but for a source that feeds tables.
Relation: TypeAlias = Table | View | MaterializedView | Source | SourceTable | SourceProgress
RELATIONS = (Table, View, MaterializedView, Source, SourceTable, SourceProgress)
# What stands in a schema under a name. There is one space of names for all.
SchemaItem: TypeAlias = Relation | Sink | Secret | Connection
SCHEMA_ITEMS = (*RELATIONS, Sink, Secret, Connection)
Item: TypeAlias = Database | Schema | SchemaItem | Role | SystemParameter | Access | Comment

# How an item's kind is called in messages.
KIND_NAMES: dict[type[Item], str] = {
    Access: "access",
    Comment: "comment",
    Database: "database",
    Schema: "schema",
    Table: "table",
    View: "view",
    MaterializedView: "materialized view",
    Source: "source",
    SourceTable: "table",
    SourceProgress: "progress relation",
    Sink: "sink",
    Secret: "secret",
    Connection: "connection",
    Role: "role",
    SystemParameter: "parameter",
}


def kind_name(item: Item) -> str:
    if isinstance(item, SourceTable) and item.subsource:
        return "subsource"
    return KIND_NAMES[type(item)]


@dataclass(frozen=True, slots=True)
class Collection:
    """A shard that the catalog names, and what it is for. Those of sources are written by the tick, those of
    materialized views by whoever keeps them up to date; only tables' take part in transactions."""

    shard: str
    item: Table | Source | SourceTable | MaterializedView
    desc: RelationDesc
    # The source's bindings, not its rows.
    remap: bool = False
    # Its times are not ours, and begin at 0.
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Builtins:
    """What the system brings and no shard holds: schemas, roles and relations with ids of their own
    (`s...`)."""

    items: tuple[Item, ...] = field(default=())


DEFAULT_DATABASE = "materialize"
DEFAULT_SCHEMA = "public"
DEFAULT_ROLE = "materialize"
SYSTEM_ROLE = "mz_system"

# Searched before a session's own path, as PostgreSQL does with pg_catalog; the other system schemas must be
# named.
IMPLICIT_SCHEMAS = ("mz_catalog", "pg_catalog")

BUILTINS = Builtins(
    (
        Schema("s1", "mz_catalog", None),
        Schema("s2", "mz_internal", None),
        Schema("s3", "pg_catalog", None),
        Schema("s4", "information_schema", None),
        Role("s5", SYSTEM_ROLE, superuser=True),
    )
)


def is_system(item_id: ItemId) -> bool:
    return item_id.startswith("s")
