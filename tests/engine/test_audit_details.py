"""What the audit log says of a GRANT, a role, an owner: enough to know what was given, never a password."""

from __future__ import annotations

import pytest

from tidemill.catalog.access import PUBLIC
from tidemill.catalog.items import BUILTINS, DEFAULT_ROLE
from tidemill.catalog.ops import (
    AlterRoleOp,
    CreateDatabaseOp,
    CreateRoleOp,
    CreateTableOp,
    DropRoleOp,
    Op,
    RenameOp,
    SetMember,
    SetOwner,
    SetPrivileges,
    apply_all,
)
from tidemill.catalog.role_ops import RoleAttributes
from tidemill.catalog.state import CatalogState
from tidemill.engine.audit.details import MAX_DETAIL, access_detail
from tidemill.types.model import INT4, Column, RelationDesc


@pytest.fixture
def state() -> CatalogState:
    made = _after(
        CatalogState(BUILTINS.items, next_id=1, time=0),
        CreateDatabaseOp("d"),
        CreateRoleOp(DEFAULT_ROLE),
        CreateRoleOp("ann", RoleAttributes()),
        CreateRoleOp("staff", RoleAttributes()),
    )
    schema = made.resolve_schema(("public",), "d")
    return _after(made, CreateTableOp(schema.id, "t", RelationDesc((Column("a", INT4),))))


def _after(state: CatalogState, *ops: Op) -> CatalogState:
    return apply_all(state, ops, time=state.time + 1)


def test_privileges_and_owners(state: CatalogState) -> None:
    table = state.tables()[0]
    ann, staff = state.role("ann").id, state.role("staff").id
    given = _after(state, SetPrivileges(table.id, ann, ("SELECT", "INSERT"), False))
    assert access_detail(table, state, given) == "INSERT, SELECT to ann"
    taken = _after(
        given,
        SetPrivileges(table.id, ann, ("INSERT",), True),
        SetPrivileges(table.id, PUBLIC, ("SELECT",), False),
    )
    assert access_detail(table, given, taken) == "INSERT from ann, SELECT to PUBLIC"
    owned = _after(taken, SetOwner(table.id, staff))
    assert access_detail(table, taken, owned) == "owner staff"
    renamed = _after(owned, RenameOp(table.id, "u"))
    assert access_detail(renamed.tables()[0], owned, renamed) == "was d.public.t"
    assert access_detail(table, _after(state), state) is None


def test_roles(state: CatalogState) -> None:
    ann, staff = state.role("ann"), state.role("staff")
    secret = "SCRAM-SHA-256$4096:c2FsdA==$stored:server"
    strong = _after(state, AlterRoleOp(ann.id, RoleAttributes(True, True, False, None, None, True, secret)))
    assert access_detail(ann, state, strong) == "SUPERUSER, LOGIN, NOINHERIT, PASSWORD"
    member = _after(strong, SetMember(staff.id, ann.id))
    assert access_detail(ann, strong, member) == "member of staff"
    assert access_detail(ann, member, strong) == "no member of staff"
    new = _after(state, CreateRoleOp("bob", RoleAttributes(login=True)))
    assert access_detail(new.role("bob"), state, new) == "LOGIN"
    gone = _after(state, DropRoleOp(ann.id))
    assert access_detail(ann, state, gone) is None


def test_it_has_an_end(state: CatalogState) -> None:
    table = state.tables()[0]
    many = _after(state, *(CreateRoleOp(f"role_{n:03}", RoleAttributes()) for n in range(100)))
    ids = [many.role(f"role_{n:03}").id for n in range(100)]
    given = _after(many, *(SetPrivileges(table.id, i, ("SELECT",), False) for i in ids))
    detail = access_detail(table, many, given)
    assert detail is not None and len(detail) == MAX_DETAIL + 3
