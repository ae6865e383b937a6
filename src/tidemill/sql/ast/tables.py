"""Statements that create, alter and drop relations, schemas and databases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill.sql.ast.base import Expr, Ident, Name, Query, Statement, offset_field


class ObjectKind(Enum):
    """The object kinds of CREATE, DROP, ALTER and SHOW; the value is the name in SQL."""

    TABLE = "TABLE"
    VIEW = "VIEW"
    MATERIALIZED_VIEW = "MATERIALIZED VIEW"
    SCHEMA = "SCHEMA"
    DATABASE = "DATABASE"
    SOURCE = "SOURCE"
    SINK = "SINK"
    SUBSCRIPTION = "SUBSCRIPTION"
    CONNECTION = "CONNECTION"
    SECRET = "SECRET"


class ConstraintKind(Enum):
    PRIMARY_KEY = "PRIMARY KEY"
    UNIQUE = "UNIQUE"


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """One column of CREATE TABLE or ADD COLUMN."""

    name: Ident
    type: str  # canonical text, for `tidemill.types.parse_type`
    type_offset: int = offset_field()
    not_null: bool = False  # as written; PRIMARY KEY implies it as well
    default: Expr | None = None
    primary_key: bool = False
    unique: bool = False


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """PRIMARY KEY (...) or UNIQUE (...): accepted, not enforced."""

    kind: ConstraintKind
    columns: tuple[Ident, ...]
    name: Ident | None = None


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """CREATE TABLE [IF NOT EXISTS] name (columns) [WITH (RETAIN HISTORY FOR '...')]."""

    name: Name
    columns: tuple[ColumnDef, ...]
    constraints: tuple[TableConstraint, ...] = ()
    if_not_exists: bool = False
    retain_history: str | None = None  # an interval, as text; None = the default


@dataclass(frozen=True, slots=True)
class CreateTableAs(Statement):
    """CREATE TABLE [IF NOT EXISTS] name [(columns)] [WITH (...)] AS query [WITH [NO] DATA]."""

    name: Name
    query: Query
    columns: tuple[Ident, ...] = ()  # new names for the first columns of the query
    if_not_exists: bool = False
    with_data: bool = True
    retain_history: str | None = None


@dataclass(frozen=True, slots=True)
class CreateView(Statement):
    """CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name [(columns)] AS query."""

    name: Name
    query: Query
    columns: tuple[Ident, ...] = ()
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class CreateMaterializedView(Statement):
    """CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [(columns)] [IN CLUSTER c] [WITH (...)] AS
    query."""

    name: Name
    query: Query
    columns: tuple[Ident, ...] = ()
    if_not_exists: bool = False
    cluster: Ident | None = None  # parsed and ignored: only one cluster exists
    retain_history: str | None = None
    or_replace: bool = False
    # A query that is not maintained at the cost of what changed is an error.
    incremental: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema(Statement):
    name: Name  # schema or database.schema
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateDatabase(Statement):
    name: Ident
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """DROP kind [IF EXISTS] names [CASCADE | RESTRICT]."""

    kind: ObjectKind
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: ColumnDef
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN c SET DEFAULT e, or DROP DEFAULT where `default` is None."""

    column: Ident
    default: Expr | None


@dataclass(frozen=True, slots=True)
class SetNotNull:
    """ALTER COLUMN c SET NOT NULL, or DROP NOT NULL where `not_null` is false."""

    column: Ident
    not_null: bool


@dataclass(frozen=True, slots=True)
class RenameColumn:
    column: Ident
    new_name: Ident


@dataclass(frozen=True, slots=True)
class SetRetainHistory:
    """SET (RETAIN HISTORY FOR '...'), or RESET (RETAIN HISTORY) where `duration` is None."""

    duration: str | None


TableAction = AddColumn | SetDefault | SetNotNull | RenameColumn | SetRetainHistory


@dataclass(frozen=True, slots=True)
class AlterTable(Statement):
    """ALTER TABLE [IF EXISTS] name action."""

    name: Name
    action: TableAction
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterMaterializedView(Statement):
    """ALTER MATERIALIZED VIEW [IF EXISTS] name SET (RETAIN HISTORY FOR '...') | RESET (RETAIN HISTORY) | AS
    query."""

    name: Name
    action: SetRetainHistory | Query
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Rename(Statement):
    """ALTER kind [IF EXISTS] name RENAME TO new_name."""

    kind: ObjectKind
    name: Name
    new_name: Ident
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CommentOn(Statement):
    """COMMENT ON kind name IS 'text' (None = NULL); for a column, `column` names it and `kind` is TABLE."""

    kind: ObjectKind | None  # None: a role
    name: Name
    text: str | None
    column: Ident | None = None
