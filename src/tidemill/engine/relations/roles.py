"""The system relations about roles, owners, privileges, and the audit log. None of them shows a password or a
value derived from one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.catalog.access import PUBLIC, RELATION_PRIVILEGES
from tidemill.catalog.items import Role, is_system, kind_name
from tidemill.catalog.privileges import access_of
from tidemill.catalog.role_ops import ownable
from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.sources import Rows, Spec
from tidemill.types.model import NAME, TEXT

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _attributes(s: Situation) -> Rows:
    return [
        (r.id, r.name, r.superuser, r.login, r.inherit, r.createdb, r.createrole, r.verifier is not None)
        for r in s.catalog.roles()
    ]


def _members(s: Situation) -> Rows:
    return [(role, member.id) for member in s.catalog.roles() for role in member.member_of]


def _name_of(s: Situation, role_id: str) -> str:
    role = s.catalog.items.get(role_id)
    return role.name if isinstance(role, Role) else role_id


def _owners(s: Situation) -> Rows:
    return [
        (item.id, kind_name(item), item.name, access.owner, _name_of(s, access.owner))
        for item in s.catalog.items.values()
        if ownable(item) and not is_system(item.id)
        for access in (access_of(s.catalog, item),)
    ]


def _privileges(s: Situation) -> Rows:
    rows: Rows = []
    for item in s.catalog.items.values():
        if ownable(item) and not is_system(item.id):
            for grant in access_of(s.catalog, item).grants:
                to = None if grant.to == PUBLIC else grant.to
                name = PUBLIC if to is None else _name_of(s, to)
                rows += [(item.id, kind_name(item), item.name, to, name, p) for p in grant.privileges]
    return rows


def _table_privileges(s: Situation) -> Rows:
    """The privileges on the relations of the session's database; the owner's first."""
    rows: Rows = []
    database = s.catalog.database(s.database)
    for schema in s.catalog.schemas(database.id):
        for item in s.catalog.relations(schema.id):
            access = access_of(s.catalog, item)
            owner = _name_of(s, access.owner)
            granted = [(owner, p) for p in RELATION_PRIVILEGES]
            for grant in access.grants:
                name = "PUBLIC" if grant.to == PUBLIC else _name_of(s, grant.to)
                granted += [(name, p) for p in grant.privileges]
            rows += [
                (
                    owner,
                    grantee,
                    s.database,
                    schema.name,
                    item.name,
                    p,
                    "YES" if grantee == owner else "NO",
                    "NO",
                )
                for grantee, p in granted
            ]
    return rows


def _events(s: Situation) -> Rows:
    return [
        (
            e.id,
            e.occurred_at,
            e.type,
            e.role,
            e.client_address,
            e.object_type,
            e.object_id,
            e.object_name,
            e.detail,
        )
        for e in s.audit_events()
    ]


_TABLE_PRIVILEGES = [
    *((name, NAME) for name in ("grantor", "grantee", "table_catalog", "table_schema", "table_name")),
    *((name, TEXT) for name in ("privilege_type", "is_grantable", "with_hierarchy")),
]

ROLE_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_role_attributes",
        columns_of(
            """id text, name text, superuser bool, login bool, inherit bool, createdb bool, createrole bool,
            has_password bool"""
        ),
        _attributes,
    ),
    ("mz_catalog", "mz_role_members", columns_of("role_id text, member text"), _members),
    (
        "mz_internal",
        "mz_owners",
        columns_of("object_id text, object_type text, name text, owner_id text, owner text"),
        _owners,
    ),
    (
        "mz_internal",
        "mz_privileges",
        columns_of(
            """object_id text, object_type text, name text, grantee_id text, grantee text, privilege text"""
        ),
        _privileges,
    ),
    (
        "mz_catalog",
        "mz_audit_events",
        columns_of(
            """id int8, occurred_at timestamptz, event_type text, role text, client_address text,
            object_type text, object_id text, object_name text, detail text"""
        ),
        _events,
    ),
    ("information_schema", "table_privileges", _TABLE_PRIVILEGES, _table_privileges),
    ("information_schema", "role_table_grants", _TABLE_PRIVILEGES, _table_privileges),
]
