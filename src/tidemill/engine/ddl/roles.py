"""CREATE, ALTER and DROP ROLE, GRANT and REVOKE, and owners.

Called by `planner`. The rules are PostgreSQL's. Roles with CREATEROLE change roles; only superusers change
superusers and their members; a role may change its own password. Owners grant privileges. Promises that
only a SCRAM verifier of a password is stored, and that neither appears in an error, log or event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.access.scram import MAX_PASSWORD_BYTES, make_verifier, parse_verifier
from tidemill.catalog import ops, role_ops
from tidemill.catalog.access import PUBLIC
from tidemill.catalog.items import SCHEMA_ITEMS, Item, Role, Schema, is_system, kind_name
from tidemill.catalog.privileges import (
    PermissionDenied,
    Privileges,
    access_of,
    may_become_superuser,
    possible_privileges,
)
from tidemill.catalog.role_ops import RoleAttributes
from tidemill.catalog.state import CatalogState, id_order
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find_or_none
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import DuplicateObject, InvalidValue, Notice, UndefinedObject, Unsupported
from tidemill.sql import ast

# -- roles


def plan_create_role(view: CatalogView, ddl: CatalogChanges, statement: ast.CreateRole) -> Plan:
    name = statement.name.value
    _check_may_change(view, "create", statement.options)
    if view.state.find_role(name) is not None:
        raise DuplicateObject(f'role "{name}" already exists', position=statement.name.offset + 1)
    return _with_password(
        ddl,
        "CREATE ROLE",
        statement.options.password,
        lambda verifier: ops.CreateRoleOp(name, _attributes(statement.options, verifier)),
    )


def plan_alter_role(view: CatalogView, ddl: CatalogChanges, statement: ast.AlterRole) -> Plan:
    role = named_role(view, statement.name)
    options = statement.options
    only_password = options == ast.RoleOptions(password=options.password)
    if not (only_password and role.id == view.identity.acting_role(view.state).id):
        _check_may_change(view, "alter", options, role)
    if is_system(role.id):
        raise Unsupported(
            f'role "{role.name}" is part of the system and cannot be changed',
            hint="Its password is the setting system_password.",
            sqlstate="42501",
        )
    return _with_password(
        ddl,
        "ALTER ROLE",
        options.password,
        lambda verifier: ops.AlterRoleOp(role.id, _attributes(options, verifier)),
    )


def _check_may_change(
    view: CatalogView, verb: str, options: ast.RoleOptions, role: Role | None = None
) -> None:
    mine = view.privileges()
    if mine.superuser:
        return
    if not mine.role.createrole:
        raise PermissionDenied(
            f"permission denied to {verb} role",
            detail=f"Only roles with the CREATEROLE attribute may {verb} roles.",
        )
    if options.superuser is not None or (role is not None and may_become_superuser(view.state, role)):
        raise PermissionDenied(
            f"permission denied to {verb} role",
            detail=f"Only roles with the SUPERUSER attribute may {verb} roles with the SUPERUSER attribute "
            "and members of them.",
        )


def _attributes(options: ast.RoleOptions, verifier: str | None) -> RoleAttributes:
    return RoleAttributes(
        options.login,
        options.superuser,
        options.inherit,
        options.createdb,
        options.createrole,
        options.password is not None,
        verifier,
    )


def _with_password(
    ddl: CatalogChanges, verb: str, password: ast.Password | None, make: Callable[[str | None], ops.Op]
) -> Plan:
    text = None if password is None else password.text
    if text is not None and len(text.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
        raise InvalidValue(f"password is longer than {MAX_PASSWORD_BYTES} bytes", sqlstate="22023")
    if text is not None and text.startswith("md5") and len(text) == 35:
        raise Unsupported(
            "passwords that are hashed with MD5 are not supported",
            hint="Give the password itself, or a SCRAM-SHA-256 verifier.",
        )

    async def act() -> Outcome:
        verifier: str | None = None
        if text == "":
            ddl.execution.notice(Notice("empty string is not a valid password, clearing password"))
        elif text is not None:
            # A client may have hashed it already, so that it never leaves the client (psql's \password).
            hashed = parse_verifier(text) is not None
            verifier = text if hashed else (await ddl.execution.blocking(make_verifier, text)).text()
        await ddl.transact(verb, [make(verifier)])
        return Complete(verb)

    return Action(act)


def plan_drop_role(view: CatalogView, ddl: CatalogChanges, statement: ast.DropRole) -> Plan:
    changes: list[ops.Op] = []
    notices: list[Notice] = []
    for name in statement.names:
        role = view.state.find_role(name.value)
        if role is None:
            if not statement.if_exists:
                raise UndefinedObject(f'role "{name.value}" does not exist', position=name.offset + 1)
            notices.append(Notice(f'role "{name.value}" does not exist, skipping'))
            continue
        _check_may_change(view, "drop", ast.RoleOptions(), role)
        if role.name in (view.identity.login_name, view.identity.acting_role(view.state).name):
            raise InvalidValue(
                "current user cannot be dropped"
                if role.name != view.identity.login_name
                else "session user cannot be dropped",
                sqlstate="55006",
            )
        changes.append(ops.DropRoleOp(role.id))
    return ddl.change("DROP ROLE", changes, notices)


# -- members


def plan_grant_roles(view: CatalogView, ddl: CatalogChanges, statement: ast.GrantRoles) -> Plan:
    verb = "REVOKE" if statement.revoke else "GRANT"
    mine = view.privileges()
    changes: list[ops.Op] = []
    notices: list[Notice] = []
    for granted in statement.roles:
        role = named_role(view, granted)
        if not mine.superuser and (not mine.role.createrole or may_become_superuser(view.state, role)):
            raise PermissionDenied(
                f'permission denied to {verb.lower()} role "{role.name}"',
                detail="Only roles with the CREATEROLE attribute, and for superusers and their members those "
                f"with the SUPERUSER attribute, may {verb.lower()} membership.",
            )
        for name in statement.members:
            member = named_role(view, name)
            has = role.id in member.member_of
            if has is statement.revoke:
                changes.append(ops.SetMember(role.id, member.id, statement.revoke))
            else:
                state = "not a member" if statement.revoke else "already a member"
                notices.append(
                    Notice(
                        f'role "{member.name}" is {state} of role "{role.name}"',
                        "WARNING" if statement.revoke else "NOTICE",
                    )
                )
    return ddl.change(f"{verb} ROLE", changes, notices)


# -- privileges


def plan_grant_privileges(view: CatalogView, ddl: CatalogChanges, statement: ast.GrantPrivileges) -> Plan:
    verb = "REVOKE" if statement.revoke else "GRANT"
    mine = view.privileges()
    grantees = [_grantee(view, name) for name in statement.roles]
    changes: list[ops.Op] = []
    for item in _granted_items(view, statement):
        possible = possible_privileges(item)
        wrong = [p for p in statement.privileges if p not in possible]
        if wrong:
            raise InvalidValue(f"invalid privilege type {wrong[0]} for {kind_name(item)}", sqlstate="0LP01")
        if not mine.owns(item):
            raise PermissionDenied(
                f"permission denied for {kind_name(item)} {item.name}",
                detail="Only its owner may grant on it.",
            )
        if is_system(item.id):
            raise Unsupported(f"{view.state.describe(item)} is part of the system", sqlstate="42501")
        privileges = statement.privileges or possible
        changes += [ops.SetPrivileges(item.id, to, privileges, statement.revoke) for to in grantees]
    return ddl.change(verb, changes)


def _granted_items(view: CatalogView, statement: ast.GrantPrivileges) -> list[Item]:
    found: list[Item] = []
    for name in statement.names:
        match statement.kind:
            case ast.GrantKind.DATABASE:
                found.append(view.state.database(name.item))
            case ast.GrantKind.SCHEMA:
                found.append(view.state.resolve_schema(name.parts, view.database))
            case ast.GrantKind.ALL_TABLES:
                schema = view.state.resolve_schema(name.parts, view.database)
                found += [r for r in view.state.relations(schema.id) if r.owner is None]
            case ast.GrantKind.TABLE:
                found.append(_standing(view.resolver().item(name), view.state))
            case ast.GrantKind.CONNECTION | ast.GrantKind.SECRET | ast.GrantKind.SUBSCRIPTION:
                kind = statement.kind.value.lower()
                item = view.resolver().any_item(name, kind)
                if kind_name(item) != kind:
                    raise UndefinedObject(f'{kind} "{name.item}" does not exist', position=name.offset + 1)
                found.append(item)
    return found


def _standing(item: Item, catalog: CatalogState) -> Item:
    """The item whose privileges apply: items of a source use those of the source."""
    if isinstance(item, SCHEMA_ITEMS) and item.owner is not None:
        return catalog.items[item.owner]
    return item


def _grantee(view: CatalogView, name: ast.RoleName) -> str:
    if name.keyword and name.value == PUBLIC:
        return PUBLIC
    return named_role(view, name).id


def named_role(view: CatalogView, name: ast.RoleName) -> Role:
    if name.keyword:
        if name.value == PUBLIC:
            raise UndefinedObject('role "public" does not exist', position=name.offset + 1)
        return (
            view.identity.login_role(view.state)
            if name.value == "session_user"
            else view.identity.acting_role(view.state)
        )
    try:
        return view.state.role(name.value)
    except UndefinedObject as e:
        e.position = name.offset + 1
        raise


# -- owners


def plan_alter_owner(view: CatalogView, ddl: CatalogChanges, statement: ast.AlterOwner) -> Plan:
    verb = f"ALTER {statement.kind.value}"
    item, notice = find_or_none(view, statement.kind, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change(verb, (), [notice] if notice else [])
    owner = named_role(view, statement.owner)
    _check_may_give(view, owner)
    if isinstance(item, SCHEMA_ITEMS):
        # Otherwise a role could get objects in a schema in which it may not create them.
        new = Privileges(view.state, owner)
        new.check(view.state.get(item.schema, Schema), "CREATE")
    return ddl.change(verb, [ops.SetOwner(item.id, owner.id)])


def _check_may_give(view: CatalogView, owner: Role) -> None:
    if not view.privileges().acts_as(owner.id):
        raise PermissionDenied(f'must be able to SET ROLE "{owner.name}"')


def plan_reassign_owned(view: CatalogView, ddl: CatalogChanges, statement: ast.ReassignOwned) -> Plan:
    to = named_role(view, statement.to)
    _check_may_give(view, to)
    owned = _owned(view, statement.roles, "reassign objects")
    return ddl.change("REASSIGN OWNED", [ops.SetOwner(item.id, to.id) for item in owned])


def plan_drop_owned(view: CatalogView, ddl: CatalogChanges, statement: ast.DropOwned) -> Plan:
    """Drops the items that the roles own, and revokes the privileges granted to them."""
    owned = _owned(view, statement.roles, "drop objects")
    going = {item.id for item in owned}
    changes: list[ops.Op] = []
    gone: set[str] = set()
    for item in sorted(owned, key=lambda i: id_order(i.id), reverse=True):
        if item.id not in gone:
            changes.append(ops.DropOp(item.id, statement.cascade))
            gone |= {i.id for i in view.state.drop_order(item.id)}
    ids = {named_role(view, name).id for name in statement.roles}
    for item in view.state.items.values():
        access = view.state.access(item.id)
        if access is not None and item.id not in going | gone:
            changes += [
                ops.SetPrivileges(item.id, g.to, g.privileges, True) for g in access.grants if g.to in ids
            ]
    return ddl.change("DROP OWNED", changes)


def _owned(view: CatalogView, names: Sequence[ast.RoleName], what: str) -> list[Item]:
    mine = view.privileges()
    ids: set[str] = set()
    for name in names:
        role = named_role(view, name)
        if not mine.acts_as(role.id):
            raise PermissionDenied(
                f"permission denied to {what}",
                detail=f'Only roles with privileges of role "{role.name}" may do so.',
            )
        ids.add(role.id)
    return [
        item
        for item in view.state.items.values()
        if not is_system(item.id) and role_ops.ownable(item) and access_of(view.state, item).owner in ids
    ]
