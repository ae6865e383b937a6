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
    """An item that is created and dropped independently."""

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
    # Set only in the entry of an ADD COLUMN, which precedes the shard's entry: the previous number of
    # columns. Later columns exist if the shard has them. A server that finds this when it starts checks the
    # shard, and settles it.
    unsettled_from: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A name as written in the text of a view, and its meaning when the view was created. Names are resolved
    by these when the view is expanded, so neither a rename nor another search path changes the view."""

    name: tuple[str, ...]
    id: ItemId
    # The number of columns when the view was created: `*` in its text means those, not columns that were
    # added later. None: all.
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
class Replacement:
    """A query that a materialized view is to have instead of its own. Its result is computed in a shard of
    its own beside the view, which keeps its query until both are at one time (`views.replacing`)."""

    # Of the computation, never of an item; no two replacements have the same.
    id: ItemId
    sql: str
    references: tuple[Reference, ...]
    shard: str
    # As for a view.
    created: int
    # None: the view's own stays.
    retain_history_ms: int | None = None

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return tuple(dict.fromkeys(r.id for r in self.references))


@dataclass(frozen=True, slots=True)
class Switch:
    """When a materialized view got its query: it holds the old one's result before `at`."""

    # The replacement whose query it is.
    by: ItemId
    at: int
    # Where the old query could not be evaluated: the view holds an error from here to `at`.
    gap_from: int | None = None


@dataclass(frozen=True, slots=True)
class MaterializedView(Unowned):
    """A query whose result is stored, at every time, in its own shard."""

    id: ItemId
    name: str
    schema: ItemId
    # The query, without CREATE MATERIALIZED VIEW, and the meanings of its names; as for a view.
    sql: str
    desc: RelationDesc
    shard: str
    # The time at which its shard begins: its first since and upper. It can be read when upper has passed it.
    created: int
    # With those of a replacement that is computed.
    depends_on: tuple[ItemId, ...]
    references: tuple[Reference, ...] = ()
    retain_history_ms: int | None = None
    # Until the view's shard has its result, at the time of `switched` then.
    replacement: Replacement | None = None
    # The last one; None: the view has the query that it was created with.
    switched: Switch | None = None

    @property
    def switching(self) -> bool:
        """The query is the new one, and the view's shard may not have its result yet."""
        found, switched = self.replacement, self.switched
        return found is not None and switched is not None and switched.by == found.id


@dataclass(frozen=True, slots=True)
class Source(Unowned):
    """An upstream that is read continuously. It has a progress relation, and its rows either under its own
    name or in `SourceTable`s."""

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
    # For its rows, its tables and its bindings alike: their history is released together.
    retain_history_ms: int | None = None
    # The connections that its definition names.
    depends_on: tuple[ItemId, ...] = ()
    # WITH (TIMELINE 'name'): its rows keep the times of their stream, and can be combined only with rows of
    # this timeline. None: they have times of our timeline.
    timeline: str | None = None
    # Of the transaction topic of sources WITH TRANSACTION METADATA: where the cuts are that all of them are
    # bound at (`ingest.transactions`).
    cuts_shard: str | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One output of a source that has several. A subsource (FOR TABLES) belongs to its source; a table
    (CREATE TABLE ... FROM SOURCE) is dropped independently."""

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
    # For a table that defines how messages become rows: the addition to the outputs of its source definition,
    # the statement that created it, and the connections that it names.
    definition: str | None = None
    sql: str | None = None
    connections: tuple[ItemId, ...] = ()
    # For a relation of dead letters: the source or table of the messages. It is created and dropped with it.
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
    """The progress of a source, as a relation: its remap shard under a name. Created and dropped with the
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
    """A relation whose updates are written continuously to an external target."""

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
    # The columns of the relation when the sink was created.
    desc: RelationDesc
    # The start time of the stream. It begins with the contents of the relation at that time (`snapshot`), or
    # with the updates after it. If the history of the relation begins later, the stream begins there.
    as_of: int
    snapshot: bool
    # The connections that its definition names.
    connections: tuple[ItemId, ...] = ()

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return (self.relation, *self.connections)


@dataclass(frozen=True, slots=True)
class Subscription(Unowned):
    """The changes of a relation or query for a reader that comes and goes. How far it has read is not here
    (`subscriptions.positions`): an acknowledgement does not change the catalog."""

    id: ItemId
    name: str
    schema: ItemId
    # The query, and the meanings of its names; as for a view. `relation`: it is all of one relation.
    sql: str
    relation: ItemId | None
    desc: RelationDesc
    references: tuple[Reference, ...]
    depends_on: tuple[ItemId, ...]
    # How its rows are sent: a `subscribe.spec.OutputShape`, and the key of an envelope.
    output: str
    keys: tuple[str, ...]
    # It begins with the contents at this time (`snapshot`), or with the changes after it.
    created: int
    snapshot: bool
    # What is kept for its reader at most: how long, and how many bytes; None follows the default.
    retain_ms: int | None = None
    retain_bytes: int | None = None
    # How many readers divide its rows, and by the values of which columns.
    shares: int = 1
    share_key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Secret(Independent):
    """A text that statements can refer to and that no client can read. It is in the secret store (`secrets`);
    the item only records its existence."""

    id: ItemId
    name: str
    schema: ItemId
    # The time at which the text was set. It is part of the name that the text has in the store, so that a
    # text is never overwritten, and a change of it is a change of the catalog.
    version: int


@dataclass(frozen=True, slots=True)
class Connection(Unowned):
    """Address and credentials of an external system."""

    id: ItemId
    name: str
    schema: ItemId
    # The kind, as mz_connections shows it: `kafka`, `confluent-schema-registry`.
    type: str
    # Canonical JSON: by name a text, a number, a list of texts, or {"secret": id} (`connections`).
    options: str
    # The secrets among the options.
    depends_on: tuple[ItemId, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """A user or a group of users. The defaults are those of a role from before attributes existed."""

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
    # The verifier of the password (`access.scram`), never the password; None: no password.
    verifier: str | None = field(default=None, repr=False)
    # The roles that it is a member of.
    member_of: tuple[ItemId, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemParameter:
    """A value set by ALTER SYSTEM; a parameter at its default has no item."""

    id: ItemId
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Comment:
    """The comment of COMMENT ON for an item, or for one of its columns. It is dropped with the item."""

    id: ItemId
    on: ItemId
    column: str | None
    text: str

    @property
    def name(self) -> str:
        """For messages: a comment has no name."""
        return f"comment on {self.on}"


# What can be read, but for a source that feeds tables.
Relation: TypeAlias = Table | View | MaterializedView | Source | SourceTable | SourceProgress
RELATIONS = (Table, View, MaterializedView, Source, SourceTable, SourceProgress)
# Items in a schema with a name. All share one namespace.
SchemaItem: TypeAlias = Relation | Sink | Subscription | Secret | Connection
SCHEMA_ITEMS = (*RELATIONS, Sink, Subscription, Secret, Connection)
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
    Subscription: "subscription",
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
    """A shard that the catalog names, and its purpose. Ticks write the shards of sources, and their
    maintainers those of materialized views; only shards of tables take part in transactions."""

    shard: str
    item: Table | Source | SourceTable | MaterializedView
    desc: RelationDesc
    # The source's bindings, not its rows.
    remap: bool = False
    # Its times are not ours, and begin at 0.
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Builtins:
    """System items without a shard: schemas, roles and relations, with their own ids (`s...`)."""

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
