"""Who owns what and who may do what: one place that says it, for every catalog and function that shows it."""

from __future__ import annotations

from tidemill.catalog.access import PRIVILEGES, PUBLIC
from tidemill.catalog.items import DEFAULT_ROLE, SYSTEM_ROLE, Item, Role, is_system
from tidemill.catalog.privileges import Privileges, access_of, initial_grants, possible_privileges
from tidemill.catalog.state import CatalogState
from tidemill.engine.oids import item_oid
from tidemill.errors import TidemillError
from tidemill.sql.bind import SessionInfo


def owner_of(catalog: CatalogState, item: Item | None) -> Role:
    """The role that owns the item (None: something of the system's)."""
    if item is None:
        return catalog.find_role(DEFAULT_ROLE) or catalog.role(SYSTEM_ROLE)
    return catalog.get(access_of(catalog, item).owner, Role)


def owner_oid(catalog: CatalogState, item: Item | None) -> int:
    return item_oid(owner_of(catalog, item).id)


def acl(catalog: CatalogState, item: Item | None) -> list[str] | None:
    """As psql's \\dp shows it: `grantee=letters/grantor`, the owner first; None where all is as it was
    made."""
    if item is None or is_system(item.id):
        return None
    access = access_of(catalog, item)
    if access.grants == initial_grants(item):
        return None
    owner = owner_of(catalog, item).name
    letters = "".join(PRIVILEGES[p] for p in PRIVILEGES if p in possible_privileges(item))
    shown = [f"{owner}={letters}/{owner}"]
    for grant in access.grants:
        to = "" if grant.to == PUBLIC else catalog.get(grant.to, Role).name
        shown.append(f"{to}={''.join(PRIVILEGES[p] for p in grant.privileges)}/{owner}")
    return shown


def may(
    catalog: CatalogState, session: SessionInfo, user: str, kind: str, what: str | int, privilege: str
) -> bool:
    """has_..._privilege: may `user` do this to the table, schema, database, ... `what` (its name, as the
    session looks it up, or its OID)? Of several privileges one is enough. What is the system's, or of a kind
    without privileges, everybody may."""
    role = catalog.find_role(user)
    item = _find(catalog, session, kind, what)
    if role is None or item is None:
        return True
    names = [p.strip().upper().removesuffix(" WITH GRANT OPTION") for p in privilege.split(",")]
    mine = Privileges(catalog, role)
    return any(mine.has(item, "USAGE" if name == "CONNECT" else name) for name in names)


def _find(catalog: CatalogState, session: SessionInfo, kind: str, what: str | int) -> Item | None:
    if isinstance(what, int):
        return next((i for i in catalog.items.values() if item_oid(i.id) == what), None)
    parts = tuple(part.strip('"') for part in what.split("."))
    try:
        match kind:
            case "table" | "column" | "any_column":
                return catalog.resolve(parts, session.database, session.schemas)
            case "schema":
                return catalog.resolve_schema(parts, session.database)
            case "database":
                return catalog.database(what)
            case _:
                return None
    except TidemillError:
        # What is not in the catalog is the system's, or is nothing.
        return None
