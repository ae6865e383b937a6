"""Privileges of a role, according to one state of the catalog.

Checked when a statement is planned: each session of the engine has one `Privileges` for its current role. The
rules follow PostgreSQL. The owner of an item has all privileges on it, and a superuser all on everything. A
role has what was granted to it, to the roles it is a member of, and to PUBLIC. Everyone can read system
items. The query of a view reads with the privileges of the owner of the view.
"""

from __future__ import annotations

from tidemill.catalog.access import (
    CONTAINER_PRIVILEGES,
    PUBLIC,
    RELATION_PRIVILEGES,
    USAGE_ONLY,
    Access,
    Grant,
    access_id,
)
from tidemill.catalog.items import (
    DEFAULT_ROLE,
    DEFAULT_SCHEMA,
    RELATIONS,
    SCHEMA_ITEMS,
    SYSTEM_ROLE,
    Connection,
    Database,
    Item,
    Role,
    Schema,
    Secret,
    Subscription,
    is_system,
    kind_name,
)
from tidemill.catalog.state import CatalogState
from tidemill.errors import TidemillError


class PermissionDenied(TidemillError):
    """The role may not do that."""

    sqlstate = "42501"


def possible_privileges(item: Item) -> tuple[str, ...]:
    """What can be granted on it at all."""
    if isinstance(item, Database | Schema):
        return CONTAINER_PRIVILEGES
    if isinstance(item, RELATIONS):
        return RELATION_PRIVILEGES
    return USAGE_ONLY if isinstance(item, Connection | Secret | Subscription) else ()


def initial_grants(item: Item) -> tuple[Grant, ...]:
    """Default privileges of PUBLIC on a new item: USAGE of a database, and of its schema `public`."""
    if isinstance(item, Database) or (isinstance(item, Schema) and item.name == DEFAULT_SCHEMA):
        return (Grant(PUBLIC, ("USAGE",)),)
    return ()


def access_of(state: CatalogState, item: Item) -> Access:
    """Who may do what with it; what belongs to a source has that of the source."""
    if isinstance(item, SCHEMA_ITEMS) and item.owner is not None:
        item = state.items[item.owner]
    if is_system(item.id):
        readable = ("USAGE",) if isinstance(item, Schema) else ("SELECT",)
        return Access(access_id(item.id), item.id, state.role(SYSTEM_ROLE).id, (Grant(PUBLIC, readable),))
    return state.access(item.id) or Access(
        access_id(item.id), item.id, default_owner(state).id, initial_grants(item)
    )


def default_owner(state: CatalogState) -> Role:
    """The owner of items created before owners existed."""
    return state.find_role(DEFAULT_ROLE) or state.role(SYSTEM_ROLE)


def members_of(state: CatalogState, role: Role, *, inherited: bool = False) -> frozenset[str]:
    """The ids of the role and of all that it is a member of, directly or not; with `inherited` only those
    whose rights it has without SET ROLE."""
    found: set[str] = set()
    todo = [role.id]
    while todo:
        item = state.items.get(todo.pop())
        if not isinstance(item, Role) or item.id in found:
            continue
        found.add(item.id)
        if item.inherit or not inherited:
            todo += item.member_of
    return frozenset(found)


def may_become_superuser(state: CatalogState, role: Role) -> bool:
    """Whether it is a superuser or can become one with SET ROLE; members have all privileges."""
    found = (state.get(i, Role) for i in members_of(state, role))
    return any(r.superuser for r in found)


class Privileges:
    """One role's, by one state."""

    def __init__(self, state: CatalogState, role: Role) -> None:
        self.state = state
        self.role = role
        self._acts_as = members_of(state, role, inherited=True)

    @property
    def superuser(self) -> bool:
        return self.role.superuser

    def acts_as(self, role_id: str) -> bool:
        """Whether it has all rights of that role."""
        return self.superuser or role_id in self._acts_as

    def owns(self, item: Item) -> bool:
        return self.acts_as(access_of(self.state, item).owner)

    def has(self, item: Item, privilege: str) -> bool:
        access = access_of(self.state, item)
        if self.acts_as(access.owner):
            return True
        return any(
            (g.to == PUBLIC or g.to in self._acts_as) and privilege in g.privileges for g in access.grants
        )

    def check(self, item: Item, privilege: str) -> None:
        if not self.has(item, privilege):
            raise PermissionDenied(f"permission denied for {kind_name(item)} {item.name}")

    def check_place(self, item: Item) -> None:
        """Checks that it may use the schema, and the database, of the item."""
        if self.superuser:
            return
        if isinstance(item, SCHEMA_ITEMS):
            item = self.state.get(item.schema, Schema)
            self.check(item, "USAGE")
        if isinstance(item, Schema) and item.database is not None:
            self.check(self.state.get(item.database, Database), "USAGE")

    def check_owner(self, item: Item) -> None:
        if not self.owns(item):
            raise PermissionDenied(f"must be owner of {kind_name(item)} {item.name}")

    def of_owner(self, item: Item) -> Privileges:
        """Those of the item's owner."""
        owner = self.state.items.get(access_of(self.state, item).owner)
        return Privileges(self.state, owner if isinstance(owner, Role) else self.state.role(SYSTEM_ROLE))
