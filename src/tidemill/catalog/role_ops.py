"""Catalog operations on roles, role membership, owners and privileges; applied by `ops`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from tidemill.catalog.access import Access, access_id
from tidemill.catalog.items import SCHEMA_ITEMS, Database, Item, ItemId, Role, Schema, is_system
from tidemill.catalog.names import check_identifier
from tidemill.catalog.privileges import access_of, initial_grants, members_of
from tidemill.catalog.state import CatalogState, id_order
from tidemill.errors import DependentObjects, DuplicateObject, InvalidValue, Unsupported

# Names that mean something else where a role is named.
_RESERVED = ("public", "none", "current_user", "current_role", "session_user")


@dataclass(frozen=True, slots=True)
class RoleAttributes:
    """What CREATE ROLE and ALTER ROLE say; None = not said. `verifier` counts where `password` is true, and
    None in it takes the password away."""

    login: bool | None = None
    superuser: bool | None = None
    inherit: bool | None = None
    createdb: bool | None = None
    createrole: bool | None = None
    password: bool = False
    verifier: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CreateRoleOp:
    """Omitted attributes are false, except `inherit`. Without attributes: a role with the rights from before
    attributes existed."""

    name: str
    attributes: RoleAttributes | None = None


@dataclass(frozen=True, slots=True)
class AlterRoleOp:
    role: ItemId
    attributes: RoleAttributes


@dataclass(frozen=True, slots=True)
class DropRoleOp:
    role: ItemId


@dataclass(frozen=True, slots=True)
class SetMember:
    """`member` becomes a member of `role`, or is none any more."""

    role: ItemId
    member: ItemId
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class SetPrivileges:
    """`to` is a role's id, or PUBLIC."""

    on: ItemId
    to: str
    privileges: tuple[str, ...]
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class SetOwner:
    on: ItemId
    owner: ItemId


RoleOp = CreateRoleOp | AlterRoleOp | DropRoleOp | SetMember | SetPrivileges | SetOwner


class RoleDraft(Protocol):
    """The next state in the making (`ops`)."""

    state: CatalogState
    items: dict[ItemId, Item]

    def new_id(self) -> ItemId: ...

    def put(self, item: Item) -> None: ...

    def changeable(self, item_id: ItemId) -> Item: ...


def apply(draft: RoleDraft, op: RoleOp) -> None:
    match op:
        case CreateRoleOp():
            _create(draft, op)
        case AlterRoleOp():
            draft.put(_with(_role(draft, op.role), op.attributes))
        case DropRoleOp():
            _drop(draft, _role(draft, op.role))
        case SetMember():
            _set_member(draft, op)
        case SetPrivileges():
            access = access_of(draft.state, draft.changeable(op.on))
            draft.put(access.changed(op.to, op.privileges, revoke=op.revoke))
        case SetOwner():
            # The old owner keeps nothing: it had its rights as the owner alone.
            draft.put(replace(access_of(draft.state, draft.changeable(op.on)), owner=op.owner))


def _create(draft: RoleDraft, op: CreateRoleOp) -> None:
    check_identifier(op.name)
    if op.name in _RESERVED or op.name.startswith(("pg_", "mz_")):
        raise InvalidValue(
            f'role name "{op.name}" is reserved',
            detail='Role names starting with "pg_" and "mz_" are reserved.',
            sqlstate="42939",
        )
    if draft.state.find_role(op.name) is not None:
        raise DuplicateObject(f'role "{op.name}" already exists')
    role = Role(draft.new_id(), op.name)
    if op.attributes is not None:
        bare = replace(role, login=False, createdb=False, createrole=False)
        role = _with(bare, op.attributes)
    draft.put(role)


def _with(role: Role, said: RoleAttributes) -> Role:
    return replace(
        role,
        login=role.login if said.login is None else said.login,
        superuser=role.superuser if said.superuser is None else said.superuser,
        inherit=role.inherit if said.inherit is None else said.inherit,
        createdb=role.createdb if said.createdb is None else said.createdb,
        createrole=role.createrole if said.createrole is None else said.createrole,
        verifier=said.verifier if said.password else role.verifier,
    )


def _role(draft: RoleDraft, role_id: ItemId) -> Role:
    draft.changeable(role_id)
    return draft.state.get(role_id, Role)


def _drop(draft: RoleDraft, role: Role) -> None:
    lines: list[str] = []
    for item in sorted(draft.items.values(), key=lambda i: id_order(i.id)):
        if isinstance(item, Access):
            about = draft.state.describe(draft.items[item.on])
            if item.owner == role.id:
                lines.append(f"owner of {about}")
            elif item.privileges_of(role.id):
                lines.append(f"privileges for {about}")
    if lines:
        raise DependentObjects(
            f'role "{role.name}" cannot be dropped because some objects depend on it',
            detail="\n".join(lines),
            hint="REASSIGN OWNED gives them to another role, REVOKE and DROP OWNED take away the rest.",
        )
    del draft.items[role.id]
    for other in list(draft.items.values()):
        if isinstance(other, Role) and role.id in other.member_of:
            draft.put(replace(other, member_of=tuple(r for r in other.member_of if r != role.id)))


def _set_member(draft: RoleDraft, op: SetMember) -> None:
    role, member = draft.state.get(op.role, Role), _role(draft, op.member)
    if op.revoke:
        draft.put(replace(member, member_of=tuple(r for r in member.member_of if r != role.id)))
        return
    if member.id in members_of(draft.state, role):
        raise InvalidValue(
            f'role "{role.name}" is a member of role "{member.name}"'
            if role.id != member.id
            else f'role "{role.name}" cannot be a member of itself',
            sqlstate="0LP01",
        )
    if is_system(role.id):
        raise Unsupported(f'nobody can be a member of "{role.name}"', sqlstate="42501")
    if role.id not in member.member_of:
        draft.put(replace(member, member_of=(*member.member_of, role.id)))


def settle_access(before: CatalogState, items: dict[ItemId, Item], owner: ItemId | None) -> None:
    """After an operation: new items belong to `owner` (None: no owner), and dropped items lose their access
    items."""
    for item in list(items.values()):
        if isinstance(item, Access):
            if item.on not in items:
                del items[item.id]
        elif owner is not None and item.id not in before.items and ownable(item):
            access = Access(access_id(item.id), item.id, owner, initial_grants(item))
            items[access.id] = access


def ownable(item: Item) -> bool:
    """Whether a role owns it directly (items that belong to a source do not count)."""
    if isinstance(item, SCHEMA_ITEMS):
        return item.owner is None
    return isinstance(item, Database | Schema)
