"""Statements about the session: transactions, cursors, prepared statements, variables, SHOW and EXPLAIN."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill.sql.ast.base import AsOf, Expr, Ident, Name, Query, Statement
from tidemill.sql.ast.subscribe import Subscribe
from tidemill.sql.ast.tables import ObjectKind


@dataclass(frozen=True, slots=True)
class TransactionModes:
    """The modes of BEGIN and SET TRANSACTION; None = not given."""

    isolation: str | None = None  # "serializable", "read committed", ... as written, lower case
    read_only: bool | None = None


@dataclass(frozen=True, slots=True)
class Begin(Statement):
    modes: TransactionModes = TransactionModes()
    start: bool = False  # written as START TRANSACTION, which has its own command tag


@dataclass(frozen=True, slots=True)
class Commit(Statement):
    chain: bool = False  # AND CHAIN: the next transaction begins at once, with the same modes


@dataclass(frozen=True, slots=True)
class Rollback(Statement):
    chain: bool = False


@dataclass(frozen=True, slots=True)
class Savepoint(Statement):
    name: Ident


@dataclass(frozen=True, slots=True)
class ReleaseSavepoint(Statement):
    name: Ident


@dataclass(frozen=True, slots=True)
class RollbackTo(Statement):
    """ROLLBACK TO SAVEPOINT."""

    name: Ident


@dataclass(frozen=True, slots=True)
class SetTransaction(Statement):
    """SET TRANSACTION (the current one), or SET SESSION CHARACTERISTICS AS TRANSACTION (all later ones) where
    `session` is true.
    """

    modes: TransactionModes
    session: bool = False


@dataclass(frozen=True, slots=True)
class Declare(Statement):
    """DECLARE name [BINARY] [NO SCROLL] CURSOR [WITH HOLD] FOR query | SUBSCRIBE ..."""

    name: Ident
    query: Query | Subscribe
    binary: bool = False
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Fetch(Statement):
    """FETCH [count] FROM cursor [WITH (TIMEOUT = '...')]; or MOVE, which returns no rows."""

    cursor: Ident
    count: int | None = 1  # None = ALL
    timeout: str | None = None  # an interval, as text
    move: bool = False


@dataclass(frozen=True, slots=True)
class Close(Statement):
    cursor: Ident | None  # None = ALL


@dataclass(frozen=True, slots=True)
class Prepare(Statement):
    """PREPARE name [(types)] AS statement."""

    name: Ident
    statement: Statement
    types: tuple[str, ...] = ()  # canonical text, for `tidemill.types.parse_type`


@dataclass(frozen=True, slots=True)
class Execute(Statement):
    name: Ident
    arguments: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Deallocate(Statement):
    name: Ident | None  # None = ALL


@dataclass(frozen=True, slots=True)
class SetVariable(Statement):
    """SET [SESSION | LOCAL] name TO values; SET TIME ZONE sets `timezone`."""

    name: str  # folded; dotted names are allowed
    values: tuple[str, ...] | None  # None = DEFAULT
    local: bool = False


@dataclass(frozen=True, slots=True)
class ResetVariable(Statement):
    name: str | None  # None = ALL


@dataclass(frozen=True, slots=True)
class ShowVariable(Statement):
    name: str | None  # None = ALL


@dataclass(frozen=True, slots=True)
class AlterSystem(Statement):
    """ALTER SYSTEM SET name = values; RESET where `values` is None; RESET ALL where `name` is None too."""

    name: str | None
    values: tuple[str, ...] | None


class DiscardKind(Enum):
    ALL = "ALL"
    PLANS = "PLANS"
    SEQUENCES = "SEQUENCES"
    TEMP = "TEMP"


@dataclass(frozen=True, slots=True)
class Discard(Statement):
    kind: DiscardKind


class Listing(Enum):
    """The kind of objects that SHOW lists; the value is the word."""

    TABLES = "TABLES"
    VIEWS = "VIEWS"
    MATERIALIZED_VIEWS = "MATERIALIZED VIEWS"
    SCHEMAS = "SCHEMAS"
    DATABASES = "DATABASES"
    OBJECTS = "OBJECTS"
    COLUMNS = "COLUMNS"
    SOURCES = "SOURCES"
    SUBSOURCES = "SUBSOURCES"
    SINKS = "SINKS"
    SUBSCRIPTIONS = "SUBSCRIPTIONS"
    CONNECTIONS = "CONNECTIONS"
    SECRETS = "SECRETS"
    ROLES = "ROLES"


@dataclass(frozen=True, slots=True)
class ShowObjects(Statement):
    """SHOW listing [FROM within] [LIKE 'pattern' | WHERE e]. For COLUMNS `within` is the relation and always
    set; SUBSOURCES may be those ON a source.
    """

    listing: Listing
    # schema, or database (SCHEMAS), or relation (COLUMNS)
    within: Name | None = None
    like: str | None = None
    where: Expr | None = None
    on: Name | None = None


@dataclass(frozen=True, slots=True)
class ShowCreate(Statement):
    kind: ObjectKind  # TABLE, VIEW, MATERIALIZED VIEW, SOURCE, SINK, SUBSCRIPTION or CONNECTION
    name: Name


@dataclass(frozen=True, slots=True)
class ShowLocation(Statement):
    """SHOW LOCATION OF name [AS OF time]."""

    name: Name
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """EXPLAIN [(options)] query | SUBSCRIBE ..."""

    statement: Query | Subscribe
    options: tuple[tuple[str, str | None], ...] = ()  # (name, value), both folded; None = no value


@dataclass(frozen=True, slots=True)
class ExplainMaterializedView(Statement):
    """EXPLAIN MATERIALIZED VIEW name."""

    name: Name


@dataclass(frozen=True, slots=True)
class ExplainTimestamp(Statement):
    """EXPLAIN TIMESTAMP FOR query."""

    query: Query


@dataclass(frozen=True, slots=True)
class NoOp(Statement):
    """A statement that is accepted and does nothing: CREATE, ALTER or DROP of INDEX and CLUSTER; VACUUM,
    ANALYZE and similar; UNLISTEN; SET CONSTRAINTS; DROP ... IF EXISTS of kinds of objects that cannot
    exist.
    """

    tag: str  # the command tag, e.g. CREATE INDEX
    notices: tuple[str, ...]  # the notices with the reason; empty if doing nothing is correct
    relations: tuple[Name, ...] = ()  # the relations that it names, which must exist
    kind: ObjectKind | None = None  # the required kind; None = any relation
