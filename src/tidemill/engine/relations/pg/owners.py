"""Owners and granted privileges, for every catalog that shows them."""

from __future__ import annotations

from tidemill.catalog.access import PRIVILEGES, PUBLIC
from tidemill.catalog.items import SYSTEM_ROLE, Item, Role, is_system
from tidemill.catalog.privileges import access_of, initial_grants, possible_privileges
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.oids import item_oid


def owner_of(catalog: CatalogState, item: Item | None) -> Role:
    """The role that owns the item (None: a system object)."""
    if item is None:
        return catalog.role(SYSTEM_ROLE)
    return catalog.get(access_of(catalog, item).owner, Role)


def owner_oid(catalog: CatalogState, item: Item | None) -> int:
    return item_oid(owner_of(catalog, item).id)


def acl(catalog: CatalogState, item: Item | None) -> list[str] | None:
    """The privileges as psql's \\dp shows them: `grantee=letters/grantor`, the owner first; None if they are
    the defaults."""
    if item is None or is_system(item.id):
        return None
    access = access_of(catalog, item)
    if access.grants == initial_grants(item):
        return None
    owner = owner_of(catalog, item).name
    letters = "".join(PRIVILEGES[p] for p in PRIVILEGES if p in possible_privileges(item))
    shown = [f"{owner}={letters}/{owner}"]
    for grant in access.grants:
        if grant.to == access.owner:  # who has everything already
            continue
        to = "" if grant.to == PUBLIC else catalog.get(grant.to, Role).name
        shown.append(f"{to}={''.join(PRIVILEGES[p] for p in grant.privileges)}/{owner}")
    return shown
