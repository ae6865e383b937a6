"""Roles, owners and privileges as pure changes of a catalog state, and as JSON."""

from __future__ import annotations

import pytest

from tidemill.catalog.access import PUBLIC, Access
from tidemill.catalog.items import BUILTINS, DEFAULT_ROLE, Table
from tidemill.catalog.ops import (
    AlterRoleOp,
    CreateDatabaseOp,
    CreateRoleOp,
    CreateTableOp,
    DropOp,
    DropRoleOp,
    Op,
    SetMember,
    SetOwner,
    SetPrivileges,
    apply_all,
)
from tidemill.catalog.privileges import PermissionDenied, Privileges, access_of, members_of
from tidemill.catalog.role_ops import RoleAttributes
from tidemill.catalog.state import CatalogState
from tidemill.errors import TidemillError
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4),))


class World:
    """A catalog in memory."""

    def __init__(self) -> None:
        self.state = CatalogState(BUILTINS.items, next_id=1, time=0)
        self.do(CreateDatabaseOp("d"), CreateRoleOp(DEFAULT_ROLE))
        for name in ("ann", "bob", "staff"):
            self.do(CreateRoleOp(name, RoleAttributes()))

    def do(self, *ops: Op, owner: str | None = None) -> None:
        owner_id = None if owner is None else self.state.role(owner).id
        self.state = apply_all(self.state, ops, time=self.state.time + 1, owner=owner_id)

    def id(self, name: str) -> str:
        return self.state.role(name).id

    def table(self, name: str, owner: str | None = None) -> Table:
        schema = self.state.resolve_schema(("public",), "d")
        self.do(CreateTableOp(schema.id, name, DESC), owner=owner)
        found = self.state.find(schema.id, name)
        assert isinstance(found, Table)
        return found

    def of(self, name: str) -> Privileges:
        return Privileges(self.state, self.state.role(name))


@pytest.fixture
def world() -> World:
    return World()


def test_who_makes_a_thing_owns_it(world: World) -> None:
    table = world.table("t", owner="ann")
    assert world.of("ann").owns(table)
    assert world.of("ann").has(table, "DELETE")
    assert not world.of("bob").has(table, "SELECT")
    assert world.of("mz_system").has(table, "SELECT")
    with pytest.raises(PermissionDenied, match="must be owner of table t"):
        world.of("bob").check_owner(table)


def test_what_has_no_owner_is_the_default_roles(world: World) -> None:
    table = world.table("t")
    assert world.state.access(table.id) is None
    assert world.of(DEFAULT_ROLE).owns(table)
    assert not world.of("bob").owns(table)


def test_privileges_come_and_go(world: World) -> None:
    table = world.table("t", owner="ann")
    bob = world.id("bob")
    world.do(SetPrivileges(table.id, bob, ("SELECT", "INSERT")))
    assert world.of("bob").has(table, "SELECT")
    world.do(SetPrivileges(table.id, bob, ("SELECT",), revoke=True))
    assert not world.of("bob").has(table, "SELECT")
    assert world.of("bob").has(table, "INSERT")
    world.do(SetPrivileges(table.id, PUBLIC, ("SELECT",)))
    assert world.of("bob").has(table, "SELECT")
    with pytest.raises(PermissionDenied, match="permission denied for table t"):
        world.of("bob").check(table, "UPDATE")


def test_members_inherit_unless_they_do_not(world: World) -> None:
    table = world.table("t", owner="ann")
    staff, bob = world.id("staff"), world.id("bob")
    world.do(SetPrivileges(table.id, staff, ("SELECT",)), SetMember(staff, bob))
    assert world.of("bob").has(table, "SELECT")
    world.do(AlterRoleOp(bob, RoleAttributes(inherit=False)))
    assert not world.of("bob").has(table, "SELECT")
    assert staff in members_of(world.state, world.state.role("bob"))
    world.do(SetMember(staff, bob, revoke=True))
    assert staff not in members_of(world.state, world.state.role("bob"))


def test_membership_has_no_circles(world: World) -> None:
    ann, bob, staff = map(world.id, ("ann", "bob", "staff"))
    world.do(SetMember(staff, bob), SetMember(bob, ann))
    for role, member in ((ann, staff), (ann, ann)):
        with pytest.raises(TidemillError) as caught:
            world.do(SetMember(role, member))
        assert caught.value.sqlstate == "0LP01"
    with pytest.raises(TidemillError, match="nobody can be a member"):
        world.do(SetMember(world.id("mz_system"), bob))


def test_a_role_that_something_hangs_on_stays(world: World) -> None:
    table = world.table("t", owner="ann")
    world.do(
        SetPrivileges(table.id, world.id("bob"), ("SELECT",)), SetMember(world.id("staff"), world.id("bob"))
    )
    for name, detail in (("ann", "owner of table t"), ("bob", "privileges for table t")):
        with pytest.raises(TidemillError) as caught:
            world.do(DropRoleOp(world.id(name)))
        assert (caught.value.sqlstate, caught.value.detail) == ("2BP01", detail)
    staff = world.id("staff")
    world.do(DropRoleOp(staff))
    assert world.state.role("bob").member_of == ()
    world.do(SetOwner(table.id, world.id("bob")), DropRoleOp(world.id("ann")))
    assert world.of("bob").owns(table)


def test_access_goes_with_what_it_is_about(world: World) -> None:
    table = world.table("t", owner="ann")
    assert any(isinstance(i, Access) for i in world.state.items.values())
    world.do(DropOp(table.id))
    assert not any(isinstance(i, Access) for i in world.state.items.values())
    world.do(DropRoleOp(world.id("ann")))


def test_a_new_database_lets_everybody_in(world: World) -> None:
    world.do(CreateDatabaseOp("e"), owner="ann")
    database = world.state.database("e")
    assert world.of("bob").has(database, "USAGE")
    assert not world.of("bob").has(database, "CREATE")
    public = world.state.resolve_schema(("e", "public"), "d")
    assert world.of("bob").has(public, "USAGE")
    assert not world.of("bob").has(public, "CREATE")
    assert world.of("ann").has(public, "CREATE")


@pytest.mark.parametrize("name", ["public", "none", "pg_x", "mz_x", "ann"])
def test_names_that_no_role_can_have(world: World, name: str) -> None:
    with pytest.raises(TidemillError):
        world.do(CreateRoleOp(name, RoleAttributes()))


def test_what_is_stored(world: World) -> None:
    world.do(AlterRoleOp(world.id("ann"), RoleAttributes(login=True, password=True, verifier="SCRAM...")))
    ann = world.state.role("ann")
    assert "SCRAM" not in repr(ann)


def test_what_the_system_brings_can_be_read(world: World) -> None:
    schema = world.state.resolve_schema(("mz_catalog",), "d")
    assert world.of("bob").has(schema, "USAGE")
    assert access_of(world.state, schema).owner == world.id("mz_system")
