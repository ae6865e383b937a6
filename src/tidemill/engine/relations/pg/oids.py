"""OIDs of objects that are not catalog items: system relations, keys, defaults, constraints.

All follow from ids, which are never reused. PostgreSQL's own catalogs have PostgreSQL's OIDs: clients have
some of them built in.
"""

from __future__ import annotations

from tidemill.engine.relations.oids import item_oid

_KNOWN = {
    "pg_type": 1247,
    "pg_attribute": 1249,
    "pg_proc": 1255,
    "pg_class": 1259,
    "pg_authid": 1260,
    "pg_auth_members": 1261,
    "pg_database": 1262,
    "pg_tablespace": 1213,
    "pg_attrdef": 2604,
    "pg_cast": 2605,
    "pg_constraint": 2606,
    "pg_conversion": 2607,
    "pg_depend": 2608,
    "pg_description": 2609,
    "pg_index": 2610,
    "pg_inherits": 2611,
    "pg_language": 2612,
    "pg_namespace": 2615,
    "pg_opclass": 2616,
    "pg_operator": 2617,
    "pg_rewrite": 2618,
    "pg_trigger": 2620,
    "pg_opfamily": 2753,
    "pg_extension": 3079,
    "pg_policy": 3256,
    "pg_collation": 3456,
    "pg_enum": 3501,
    "pg_range": 3541,
    "pg_am": 2601,
    "pg_shdescription": 2396,
}
# Above the OIDs of all items in a catalog of a million: keys (64 numbers per table: index and constraint of
# each), and defaults (one per column).
_KEYS = 1 << 30
_PER_TABLE = 64
_DEFAULTS = 1 << 31
_PER_COLUMN = 2048
_SPACE = (1 << 30) - 1


def system_oid(schema: str, name: str, relation_id: str) -> int:
    """The OID of a system relation."""
    return _KNOWN.get(name, item_oid(relation_id)) if schema == "pg_catalog" else item_oid(relation_id)


def class_oid(name: str) -> int:
    """The OID of one of PostgreSQL's catalogs, as in the `classoid` of pg_description."""
    return _KNOWN[name]


def key_oids(item_id: str, number: int) -> tuple[int, int]:
    """The OIDs of a table's key, counted from 0: its index and its constraint."""
    first = _KEYS + ((int(item_id[1:]) * _PER_TABLE + 2 * number) & _SPACE)
    return first, first + 1


def default_oid(item_id: str, column: int) -> int:
    return _DEFAULTS + ((int(item_id[1:]) * _PER_COLUMN + column) & _SPACE)
