"""has_table_privilege and similar functions, and pg_has_role: PostgreSQL's functions about a role's
privileges.

Called by `functions`. Promises: an object that does not exist is an error as in PostgreSQL (NULL for an OID),
and so is an unknown privilege; the answer is never true by default. Everyone may use objects that have no
privileges here (functions, types, languages).
"""

from __future__ import annotations

from tidemill.catalog.access import PRIVILEGES, PUBLIC
from tidemill.catalog.items import Item, Role
from tidemill.catalog.privileges import Privileges, access_of, members_of
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.facts import PgFacts, split_name
from tidemill.errors import InvalidValue, UndefinedObject
from tidemill.sql.local import Reg

# Privileges that PostgreSQL knows and that do not exist here: granted to no role.
_UNGRANTED = frozenset({"TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN", "TEMPORARY", "TEMP"})
_ON_RELATIONS = ("table", "column", "any_column")


def may(f: PgFacts, user: str | int | None, kind: str, what: str | int, privileges: str) -> bool | None:
    """`user` is a name or an OID (None: the current role; `public` and 0: every role). Of several privileges,
    one is enough."""
    everybody = user in (PUBLIC, 0)
    role = None if everybody else _role(f, f.session.user if user is None else user)
    wanted = [_privilege(p) for p in privileges.split(",")]
    if kind not in (*_ON_RELATIONS, "schema", "database"):
        return True
    found = _find(f, kind, what)
    if found is None or (role is None and not everybody):
        return None
    if role is None:
        return _all_may(f, found, wanted)
    if not isinstance(found, str):
        mine = Privileges(f.catalog, role)
        # Only the owner can grant.
        return mine.owns(found) or any(
            not grant and mine.has(found, "USAGE" if name == "CONNECT" else name) for name, grant in wanted
        )
    return role.superuser or (found, False) in wanted


def _all_may(f: PgFacts, found: Item | str, wanted: list[tuple[str, bool]]) -> bool:
    """The privileges granted to PUBLIC, which is no role."""
    if isinstance(found, str):
        return (found, False) in wanted
    granted = {p for g in access_of(f.catalog, found).grants if g.to == PUBLIC for p in g.privileges}
    return any(not grant and ("USAGE" if name == "CONNECT" else name) in granted for name, grant in wanted)


def has_role(f: PgFacts, user: str | int | None, role: str | int, privileges: str) -> bool | None:
    """Whether `user` is a member of `role` (MEMBER, SET), or has its rights without SET ROLE (USAGE)."""
    who, what = _role(f, f.session.user if user is None else user), _role(f, role)
    names = [p.strip().upper() for p in privileges.split(",")]
    for name in names:
        if name.removesuffix(" WITH ADMIN OPTION").removesuffix(" WITH GRANT OPTION") not in (
            "MEMBER",
            "SET",
            "USAGE",
        ):
            raise _unrecognized(name)
    if who is None or what is None:
        return None
    # Membership cannot be granted further here.
    plain = [name for name in names if " " not in name]
    return who.superuser or any(
        what.id in members_of(f.catalog, who, inherited=name == "USAGE") for name in plain
    )


def _role(f: PgFacts, who: str | int) -> Role | None:
    """The role; None for an OID that no role has."""
    if isinstance(who, int):
        name = f.roles().get(who)
        return None if name is None else f.catalog.find_role(name)
    found = f.catalog.find_role(who)
    if found is None:
        raise UndefinedObject(f'role "{who}" does not exist', sqlstate="42704")
    return found


def _privilege(text: str) -> tuple[str, bool]:
    """The privilege, and whether WITH GRANT OPTION is meant."""
    written = text.strip().upper()
    name = written.removesuffix(" WITH GRANT OPTION")
    if name not in PRIVILEGES and name not in _UNGRANTED and name not in ("CONNECT", "EXECUTE", "SET"):
        raise _unrecognized(name)
    return name, name != written


def _unrecognized(name: str) -> InvalidValue:
    return InvalidValue(f'unrecognized privilege type: "{name}"', sqlstate="22023")


def _find(f: PgFacts, kind: str, what: str | int) -> Item | str | None:
    """The item. For a system object, the one privilege that every role has. None for an unknown OID."""
    if kind in _ON_RELATIONS:
        oid = what if isinstance(what, int) else f.reg_input(Reg.CLASS, what)
        relation = f.world.by_oid.get(oid)
        return None if relation is None else relation.item or "SELECT"
    if isinstance(what, int):
        return next((i for i in f.catalog.items.values() if item_oid(i.id) == what), None)
    if kind == "schema":
        return f.catalog.resolve_schema(split_name(what), f.session.database)
    return f.catalog.database(what)
