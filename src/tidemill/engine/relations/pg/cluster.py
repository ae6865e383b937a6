"""pg_catalog's relations about the whole server: databases, roles, tablespaces, sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.catalog.items import Role
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.owners import acl, owner_oid
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.sources import Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

UTF8 = 6
DEFAULT_TABLESPACE = 1663


def _databases(s: Situation) -> Iterable[Record]:
    for d in s.catalog.databases():
        yield {
            "oid": item_oid(d.id),
            "datname": d.name,
            "datdba": owner_oid(s.catalog, d),
            "encoding": UTF8,
            "datlocprovider": "c",
            "datallowconn": True,
            "datconnlimit": -1,
            "dattablespace": DEFAULT_TABLESPACE,
            "datcollate": "C",
            "datctype": "C",
            "datacl": acl(s.catalog, d),
        }


def roles(s: Situation) -> Iterable[Record]:
    for r in s.catalog.items.values():
        if isinstance(r, Role):
            yield {
                "oid": item_oid(r.id),
                "rolname": r.name,
                "rolsuper": r.superuser,
                "rolinherit": r.inherit,
                "rolcreaterole": r.createrole,
                "rolcreatedb": r.createdb,
                "rolcanlogin": r.login,
                "rolconnlimit": -1,
                "rolpassword": "********",
            }


def _members(s: Situation) -> Iterable[Record]:
    for member in s.catalog.roles():
        for role in member.member_of:
            yield {
                "oid": item_oid(member.id),
                "roleid": item_oid(role),
                "member": item_oid(member.id),
                "grantor": owner_oid(s.catalog, None),
                "inherit_option": member.inherit,
                "set_option": True,
            }


def _activity(s: Situation) -> Iterable[Record]:
    ids = {d.name: item_oid(d.id) for d in s.catalog.databases()}
    users = {r.name: item_oid(r.id) for r in s.catalog.items.values() if isinstance(r, Role)}
    for row in s.sessions():
        yield {
            "datid": ids.get(row.database),
            "datname": row.database,
            "pid": row.process_id,
            "usesysid": users.get(row.role),
            "usename": row.role,
            "application_name": row.application_name,
            "client_addr": row.client_address or None,
            "backend_start": row.connected_at,
            "state": row.state,
            "backend_type": "client backend",
        }


def _encryption(s: Situation) -> Iterable[Record]:
    for row in s.sessions():
        found = row.encryption
        known = {"version": found.version, "cipher": found.cipher, "bits": found.bits} if found else {}
        yield {"pid": row.process_id, "ssl": found is not None, **known}


_ROLE = """oid oid, rolname name, rolsuper bool, rolinherit bool, rolcreaterole bool, rolcreatedb bool,
    rolcanlogin bool, rolreplication bool, rolconnlimit int4, rolpassword text, rolvaliduntil timestamptz,
    rolbypassrls bool, rolconfig text[]"""

CLUSTER_SPECS: list[Spec] = [
    spec(
        "pg_catalog",
        "pg_database",
        """oid oid, datname name, datdba oid, encoding int4, datlocprovider char, datistemplate bool,
        datallowconn bool, datconnlimit int4, datfrozenxid oid, datminmxid oid, dattablespace oid,
        datcollate text, datctype text, daticulocale text, daticurules text, datcollversion text,
        datacl text[]""",
        _databases,
    ),
    spec("pg_catalog", "pg_roles", _ROLE, roles),
    spec(
        "pg_catalog",
        "pg_auth_members",
        """oid oid, roleid oid, member oid, grantor oid, admin_option bool, inherit_option bool, set_option
        bool""",
        _members,
    ),
    spec("pg_catalog", "pg_authid", _ROLE.replace(", rolconfig text[]", ""), roles),
    spec(
        "pg_catalog",
        "pg_user",
        """usename name, usesysid oid, usecreatedb bool, usesuper bool, userepl bool, usebypassrls bool,
        passwd text, valuntil timestamptz, useconfig text[]""",
        lambda s: (
            {
                "usename": r["rolname"],
                "usesysid": r["oid"],
                "usecreatedb": r["rolcreatedb"],
                "usesuper": r["rolsuper"],
                "passwd": "********",
            }
            for r in roles(s)
        ),
    ),
    spec(
        "pg_catalog",
        "pg_tablespace",
        "oid oid, spcname name, spcowner oid, spcacl text[], spcoptions text[]",
        lambda s: [
            {"oid": DEFAULT_TABLESPACE, "spcname": "pg_default", "spcowner": owner_oid(s.catalog, None)}
        ],
    ),
    spec(
        "pg_catalog",
        "pg_stat_activity",
        """datid oid, datname name, pid int4, leader_pid int4, usesysid oid, usename name,
        application_name text, client_addr text, client_hostname text, client_port int4,
        backend_start timestamptz, xact_start timestamptz, query_start timestamptz, state_change timestamptz,
        wait_event_type text, wait_event text, state text, backend_xid oid, backend_xmin oid, query_id int8,
        query text, backend_type text""",
        _activity,
        nulls=True,
    ),
    spec(
        "pg_catalog",
        "pg_stat_ssl",
        """pid int4, ssl bool, version text, cipher text, bits int4, client_dn text, client_serial int8,
        issuer_dn text""",
        _encryption,
        nulls=True,
    ),
]
