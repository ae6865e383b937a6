"""The things a catalog holds, as immutable values.

Ids are stable and never used twice: `u1`, `u2`, ... for what users made, `s1`, ... for what the system
brings. A later kind of item (source, connection, secret, sink, materialized view) is one more dataclass
here and one more pair of functions in `codec`; an item that stands in a schema has `schema` and
`depends_on`, and then all of names, dependencies and DROP work for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.types.model import RelationDesc

ItemId: TypeAlias = str


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
class Table:
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

    @property
    def depends_on(self) -> tuple[ItemId, ...]:
        return ()


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
class View:
    id: ItemId
    name: str
    schema: ItemId
    # The query, without CREATE VIEW.
    sql: str
    desc: RelationDesc
    depends_on: tuple[ItemId, ...]
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """`superuser` may ALTER SYSTEM."""

    id: ItemId
    name: str
    superuser: bool = False


@dataclass(frozen=True, slots=True)
class SystemParameter:
    """A value set by ALTER SYSTEM; one that stands at its default has no item."""

    id: ItemId
    name: str
    value: str


Relation: TypeAlias = Table | View
Item: TypeAlias = Database | Schema | Table | View | Role | SystemParameter

# How an item's kind is called in messages.
KIND_NAMES: dict[type[Item], str] = {
    Database: "database",
    Schema: "schema",
    Table: "table",
    View: "view",
    Role: "role",
    SystemParameter: "parameter",
}


def kind_name(item: Item) -> str:
    return KIND_NAMES[type(item)]


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
