"""Statements about roles, privileges and owners."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tidemill.sql.ast.base import Ident, Name, Statement, offset_field
from tidemill.sql.ast.tables import ObjectKind


@dataclass(frozen=True, slots=True)
class RoleName:
    """A reference to a role. `keyword` is true for PUBLIC, CURRENT_USER, CURRENT_ROLE, SESSION_USER."""

    value: str
    keyword: bool = False
    offset: int = offset_field()

    def __str__(self) -> str:
        return self.value.upper() if self.keyword else str(Ident(self.value))


@dataclass(frozen=True, slots=True)
class Password:
    """PASSWORD '...', or NULL for none."""

    text: str | None = field(repr=False)  # never in a log or a trace


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """The attributes of a role; None = not given."""

    login: bool | None = None
    superuser: bool | None = None
    inherit: bool | None = None
    createdb: bool | None = None
    createrole: bool | None = None
    password: Password | None = None


@dataclass(frozen=True, slots=True)
class CreateRole(Statement):
    """CREATE ROLE name [WITH] options. CREATE USER is CREATE ROLE ... LOGIN."""

    name: Ident
    options: RoleOptions = RoleOptions()


@dataclass(frozen=True, slots=True)
class AlterRole(Statement):
    """ALTER ROLE name [WITH] options."""

    name: RoleName
    options: RoleOptions


@dataclass(frozen=True, slots=True)
class DropRole(Statement):
    """DROP ROLE [IF EXISTS] name, ..."""

    names: tuple[Ident, ...]
    if_exists: bool = False


class GrantKind(Enum):
    """The kinds of objects with privileges. Views, sources and materialized views are granted on as TABLE."""

    TABLE = "TABLE"
    SCHEMA = "SCHEMA"
    DATABASE = "DATABASE"
    CONNECTION = "CONNECTION"
    SECRET = "SECRET"
    SUBSCRIPTION = "SUBSCRIPTION"
    ALL_TABLES = "ALL TABLES IN SCHEMA"


@dataclass(frozen=True, slots=True)
class GrantPrivileges(Statement):
    """GRANT privileges ON kind names TO roles; REVOKE ... FROM roles where `revoke` is true."""

    privileges: tuple[str, ...]  # upper case; () = ALL
    kind: GrantKind
    names: tuple[Name, ...]
    roles: tuple[RoleName, ...]
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class GrantRoles(Statement):
    """GRANT roles TO members; REVOKE roles FROM members where `revoke` is true."""

    roles: tuple[RoleName, ...]
    members: tuple[RoleName, ...]
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class AlterOwner(Statement):
    """ALTER kind name OWNER TO role."""

    kind: ObjectKind
    name: Name
    owner: RoleName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ReassignOwned(Statement):
    """REASSIGN OWNED BY roles TO role."""

    roles: tuple[RoleName, ...]
    to: RoleName


@dataclass(frozen=True, slots=True)
class DropOwned(Statement):
    """DROP OWNED BY roles [CASCADE]."""

    roles: tuple[RoleName, ...]
    cascade: bool = False
