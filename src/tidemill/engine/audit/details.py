"""Short descriptions of changed access rights, for the audit log.

Called by `audit.log` for each catalog item that a statement changed. Promises that the text contains only
names, privileges and attributes. Of a password it says only that it was set or removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.catalog.access import PRIVILEGES, PUBLIC
from tidemill.catalog.items import Item, Role
from tidemill.catalog.privileges import access_of
from tidemill.catalog.role_ops import ownable
from tidemill.catalog.state import CatalogState

# Of one item's detail: a GRANT may name hundreds of roles.
MAX_DETAIL = 1_000

_ATTRIBUTES = ("superuser", "login", "inherit", "createdb", "createrole")
# The attributes of a role by default.
_PLAIN = Role("", "", superuser=False, login=False, inherit=True, createdb=False, createrole=False)


def access_detail(item: Item, old: CatalogState, new: CatalogState) -> str | None:
    """The description; None if no access right changed, or the item was dropped."""
    now = new.items.get(item.id)
    if now is None:
        return None
    before = old.items.get(item.id)
    words: list[str] = []
    if before is not None and (was := ".".join(old.full_name(before))) != ".".join(new.full_name(now)):
        words.append(f"was {was}")
    if isinstance(now, Role):
        words += _role(before if isinstance(before, Role) else _PLAIN, now, old, new)
    elif before is not None and ownable(now):
        words += _access(before, now, old, new)
    told = ", ".join(words)
    return (told if len(told) <= MAX_DETAIL else f"{told[:MAX_DETAIL]}...") or None


def _role(before: Role, now: Role, old: CatalogState, new: CatalogState) -> Iterator[str]:
    for name in _ATTRIBUTES:
        if getattr(now, name) is not getattr(before, name):
            yield name.upper() if getattr(now, name) else f"NO{name.upper()}"
    if now.verifier != before.verifier:
        yield "PASSWORD" if now.verifier is not None else "PASSWORD NULL"
    for role_id in now.member_of:
        if role_id not in before.member_of:
            yield f"member of {_name(role_id, new)}"
    for role_id in before.member_of:
        if role_id not in now.member_of:
            yield f"no member of {_name(role_id, old)}"


def _access(before: Item, now: Item, old: CatalogState, new: CatalogState) -> Iterator[str]:
    was, is_ = access_of(old, before), access_of(new, now)
    if was.owner != is_.owner:
        yield f"owner {_name(is_.owner, new)}"
    for grantee in dict.fromkeys(g.to for g in (*was.grants, *is_.grants)):
        had, has = set(was.privileges_of(grantee)), set(is_.privileges_of(grantee))
        if given := has - had:
            yield f"{_sorted(given)} to {_name(grantee, new)}"
        if taken := had - has:
            yield f"{_sorted(taken)} from {_name(grantee, old)}"


def _sorted(privileges: set[str]) -> str:
    return ", ".join(p for p in PRIVILEGES if p in privileges)


def _name(role_id: str, state: CatalogState) -> str:
    if role_id == PUBLIC:
        return "PUBLIC"
    found = state.items.get(role_id)
    return role_id if found is None else found.name
