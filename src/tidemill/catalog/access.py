"""Access items: the owner and the privileges of another item.

`ops.apply_all` creates one for every new item, for the role that creates it, and drops it with that item.
Items older than roles have none and belong to the default role. Read by `privileges`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# Instead of a role: all roles, now and in future.
PUBLIC = "public"

# All privileges, in the order in which they are shown, with PostgreSQL's letters.
PRIVILEGES = {"INSERT": "a", "SELECT": "r", "UPDATE": "w", "DELETE": "d", "USAGE": "U", "CREATE": "C"}
RELATION_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
CONTAINER_PRIVILEGES = ("USAGE", "CREATE")
USAGE_ONLY = ("USAGE",)


@dataclass(frozen=True, slots=True)
class Grant:
    """Privileges of a role (its id, or PUBLIC)."""

    to: str
    privileges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """`id` is that of the item it is about with another letter: there is one for each."""

    id: str
    on: str
    # A role's id. The owner has all privileges, independent of the grants.
    owner: str
    # One for each grantee, in the order of their ids.
    grants: tuple[Grant, ...] = ()

    @property
    def name(self) -> str:
        """For messages: it has no name."""
        return f"access to {self.on}"

    def privileges_of(self, grantee: str) -> tuple[str, ...]:
        return next((g.privileges for g in self.grants if g.to == grantee), ())

    def changed(self, grantee: str, privileges: Iterable[str], *, revoke: bool) -> Access:
        """With the privileges given to or taken from one grantee."""
        has = set(self.privileges_of(grantee))
        has = has - set(privileges) if revoke else has | set(privileges)
        kept = [g for g in self.grants if g.to != grantee]
        if has:
            kept.append(Grant(grantee, tuple(p for p in PRIVILEGES if p in has)))
        return replace(self, grants=tuple(sorted(kept, key=lambda g: g.to)))


def access_id(item_id: str) -> str:
    return f"a{item_id[1:]}"
