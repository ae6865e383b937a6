"""pg_catalog's relations about one database: namespaces, classes, columns, types, keys, dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.catalog.items import SCHEMA_ITEMS
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.definitions import index_definition
from tidemill.engine.relations.pg.oids import class_oid, default_oid
from tidemill.engine.relations.pg.owners import acl, owner_of, owner_oid
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.pg.types import (
    C_COLLATION,
    DEFAULT_COLLATION,
    SUBSCRIPT_HANDLER,
    collation_of,
    column_oid,
    column_typmod,
    io_oids,
    types,
)
from tidemill.engine.relations.pg.world import PgRelation, World, world
from tidemill.engine.relations.sources import Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

# The access method that is shown for indexes of keys. Tables have none.
BTREE = 403
# The operator class of every key's column: ordered by its type's default order.
DEFAULT_OPCLASS = 1978


def _world(s: Situation) -> World:
    return world(s.catalog, s.database)


def _namespaces(s: Situation) -> Iterable[Record]:
    for schema in _world(s).schemas:
        owner = owner_oid(s.catalog, None if schema.database is None else schema)
        yield {
            "oid": item_oid(schema.id),
            "nspname": schema.name,
            "nspowner": owner,
            "nspacl": acl(s.catalog, schema),
        }


def _classes(s: Situation) -> Iterable[Record]:
    w = _world(s)
    for r in w.relations:
        owner = owner_oid(s.catalog, r.item)
        yield {
            "oid": r.oid,
            "relname": r.name,
            "relnamespace": r.namespace,
            "relowner": owner,
            "relfilenode": r.oid,
            "reltuples": -1.0,
            "relhasindex": bool(r.keys),
            "relpersistence": "p",
            "relkind": r.kind,
            "relnatts": len(r.desc.columns),
            "relhasrules": r.kind == "v",
            "relispopulated": True,
            "relreplident": "d" if r.kind in "rm" and r.item is not None else "n",
            "relacl": acl(s.catalog, r.item),
        }
        for key in r.keys:
            yield {
                "oid": key.index,
                "relname": key.name,
                "relnamespace": r.namespace,
                "relowner": owner,
                "relam": BTREE,
                "relfilenode": key.index,
                "reltuples": -1.0,
                "relpersistence": "p",
                "relkind": "i",
                "relnatts": len(key.numbers),
                "relispopulated": True,
                "relreplident": "n",
            }


def _attributes(s: Situation) -> Iterable[Record]:
    w = _world(s)
    for r in w.relations:
        for number in range(1, len(r.desc.columns) + 1):
            yield _attribute(r, r.oid, number, number)
        for key in r.keys:
            for at, number in enumerate(key.numbers, 1):
                yield {**_attribute(r, key.index, number, at), "attnotnull": False, "atthasdef": False}


def _attribute(r: PgRelation, owner: int, number: int, at: int) -> Record:
    column = r.desc.columns[number - 1]
    t = types()[column_oid(column.type)]
    return {
        "attrelid": owner,
        "attname": column.name,
        "atttypid": t.oid,
        "attlen": t.length,
        "attnum": at,
        "attndims": 1 if t.name.startswith("_") and t.element else 0,
        "attcacheoff": -1,
        "atttypmod": column_typmod(column.type),
        "attbyval": 0 < t.length <= 8,
        "attalign": _ALIGN.get(t.length, "i"),
        "attstorage": "p" if t.length > 0 else "x",
        "attnotnull": not column.nullable,
        "atthasdef": r.default(number) is not None,
        "attislocal": True,
        "attstattarget": -1,
        "attcollation": collation_of(column.type),
    }


_ALIGN = {1: "c", 2: "s", 4: "i", 8: "d", 16: "d"}


def _defaults(s: Situation) -> Iterable[Record]:
    for r, number in _world(s).columns():
        default = r.default(number)
        if default is not None:
            yield {"oid": default_oid(r.id, number), "adrelid": r.oid, "adnum": number, "adbin": default}


def _types(s: Situation) -> Iterable[Record]:
    w = _world(s)
    namespace = next(o for o, name in w.namespaces.items() if name == "pg_catalog")
    owner = owner_oid(s.catalog, None)
    for t in types().values():
        reads, writes, receives, sends = io_oids(t)
        array = t.name.startswith("_") and t.element != 0
        yield {
            "oid": t.oid,
            "typname": t.name,
            "typnamespace": namespace,
            "typowner": owner,
            "typlen": t.length,
            "typbyval": 0 < t.length <= 8,
            "typtype": t.kind,
            "typcategory": t.category,
            "typispreferred": t.preferred,
            "typisdefined": True,
            "typdelim": ",",
            "typelem": t.element,
            "typarray": t.array,
            "typsubscript": SUBSCRIPT_HANDLER if array else 0,
            "typinput": reads,
            "typoutput": writes,
            "typreceive": receives,
            "typsend": sends,
            "typalign": _ALIGN.get(t.length, "i"),
            "typstorage": "p" if t.length > 0 else "x",
            "typtypmod": -1,
            "typcollation": t.collation,
        }


def _indexes(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        for key in r.keys:
            width = len(key.numbers)
            yield {
                "indexrelid": key.index,
                "indrelid": r.oid,
                "indnatts": width,
                "indnkeyatts": width,
                "indisunique": True,
                "indisprimary": key.primary,
                "indimmediate": True,
                "indisvalid": True,
                "indisready": True,
                "indislive": True,
                "indkey": list(key.numbers),
                "indcollation": [collation_of(r.desc.columns[n - 1].type) for n in key.numbers],
                "indclass": [DEFAULT_OPCLASS] * width,
                "indoption": [0] * width,
            }


def _constraints(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        for key in r.keys:
            yield {
                "oid": key.constraint,
                "conname": key.name,
                "connamespace": r.namespace,
                "contype": "p" if key.primary else "u",
                "convalidated": True,
                "conrelid": r.oid,
                "conindid": key.index,
                "conislocal": True,
                "connoinherit": True,
                "conkey": list(key.numbers),
            }


def _tables(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        if r.kind == "r":
            yield {
                "schemaname": r.schema,
                "tablename": r.name,
                "tableowner": owner_of(s.catalog, r.item).name,
                "hasindexes": bool(r.keys),
            }


def _views(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        if r.kind == "v":
            owner = owner_of(s.catalog, r.item).name
            yield {"schemaname": r.schema, "viewname": r.name, "viewowner": owner, "definition": r.definition}


def _matviews(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        if r.kind == "m":
            yield {
                "schemaname": r.schema,
                "matviewname": r.name,
                "matviewowner": owner_of(s.catalog, r.item).name,
                "ispopulated": True,
                "definition": r.definition,
            }


def _index_texts(s: Situation) -> Iterable[Record]:
    for r in _world(s).relations:
        for key in r.keys:
            yield {
                "schemaname": r.schema,
                "tablename": r.name,
                "indexname": key.name,
                "indexdef": index_definition(r, key),
            }


def _dependencies(s: Situation) -> Iterable[Record]:
    """The dependencies of views on their inputs, and of keys on their tables."""
    classes = class_oid("pg_class")
    for item in s.catalog.items.values():
        if isinstance(item, SCHEMA_ITEMS):
            for needed in item.depends_on:
                yield {
                    "classid": classes,
                    "objid": item_oid(item.id),
                    "refclassid": classes,
                    "refobjid": item_oid(needed),
                    "deptype": "n",
                }


PG_SPECS: list[Spec] = [
    spec("pg_catalog", "pg_namespace", "oid oid, nspname name, nspowner oid, nspacl text[]", _namespaces),
    spec(
        "pg_catalog",
        "pg_class",
        """oid oid, relname name, relnamespace oid, reltype oid, reloftype oid, relowner oid, relam oid,
        relfilenode oid, reltablespace oid, relpages int4, reltuples float4, relallvisible int4,
        reltoastrelid oid, relhasindex bool, relisshared bool, relpersistence char, relkind char,
        relnatts int2, relchecks int2, relhasrules bool, relhastriggers bool, relhassubclass bool,
        relrowsecurity bool, relforcerowsecurity bool, relispopulated bool, relreplident char,
        relispartition bool, relrewrite oid, relfrozenxid oid, relminmxid oid, relacl text[],
        reloptions text[], relpartbound text""",
        _classes,
    ),
    spec(
        "pg_catalog",
        "pg_attribute",
        """attrelid oid, attname name, atttypid oid, attlen int2, attnum int2, attcacheoff int4,
        atttypmod int4, attndims int2, attbyval bool, attalign char, attstorage char, attcompression char,
        attnotnull bool, atthasdef bool, atthasmissing bool, attidentity char, attgenerated char,
        attisdropped bool, attislocal bool, attinhcount int2, attstattarget int2, attcollation oid,
        attacl text[], attoptions text[], attfdwoptions text[], attmissingval text""",
        _attributes,
    ),
    spec("pg_catalog", "pg_attrdef", "oid oid, adrelid oid, adnum int2, adbin text", _defaults),
    spec(
        "pg_catalog",
        "pg_type",
        """oid oid, typname name, typnamespace oid, typowner oid, typlen int2, typbyval bool, typtype char,
        typcategory char, typispreferred bool, typisdefined bool, typdelim char, typrelid oid,
        typsubscript regproc, typelem oid, typarray oid, typinput regproc, typoutput regproc,
        typreceive regproc, typsend regproc, typmodin regproc, typmodout regproc, typanalyze regproc,
        typalign char, typstorage char,
        typnotnull bool, typbasetype oid, typtypmod int4, typndims int4, typcollation oid,
        typdefaultbin text, typdefault text, typacl text[]""",
        _types,
    ),
    spec(
        "pg_catalog",
        "pg_index",
        """indexrelid oid, indrelid oid, indnatts int2, indnkeyatts int2, indisunique bool,
        indnullsnotdistinct bool, indisprimary bool, indisexclusion bool, indimmediate bool,
        indisclustered bool, indisvalid bool, indcheckxmin bool, indisready bool, indislive bool,
        indisreplident bool, indkey int2vector, indcollation oidvector, indclass oidvector,
        indoption int2vector,
        indexprs text, indpred text""",
        _indexes,
    ),
    spec(
        "pg_catalog",
        "pg_constraint",
        """oid oid, conname name, connamespace oid, contype char, condeferrable bool, condeferred bool,
        convalidated bool, conrelid oid, contypid oid, conindid oid, conparentid oid, confrelid oid,
        confupdtype char, confdeltype char, confmatchtype char, conislocal bool, coninhcount int2,
        connoinherit bool, conkey int2[], confkey int2[], conpfeqop oid[], conppeqop oid[], conffeqop oid[],
        confdelsetcols int2[], conexclop oid[], conbin text""",
        _constraints,
    ),
    spec(
        "pg_catalog",
        "pg_tables",
        """schemaname name, tablename name, tableowner name, tablespace name, hasindexes bool, hasrules bool,
        hastriggers bool, rowsecurity bool""",
        lambda s: ({"tablespace": None, **r} for r in _tables(s)),
    ),
    spec(
        "pg_catalog",
        "pg_views",
        "schemaname name, viewname name, viewowner name, definition text",
        _views,
    ),
    spec(
        "pg_catalog",
        "pg_matviews",
        """schemaname name, matviewname name, matviewowner name, tablespace name, hasindexes bool,
        ispopulated bool, definition text""",
        lambda s: ({"tablespace": None, **r} for r in _matviews(s)),
    ),
    spec(
        "pg_catalog",
        "pg_indexes",
        "schemaname name, tablename name, indexname name, tablespace name, indexdef text",
        lambda s: ({"tablespace": None, **r} for r in _index_texts(s)),
    ),
    spec(
        "pg_catalog",
        "pg_am",
        "oid oid, amname name, amhandler regproc, amtype char",
        lambda s: [
            {"oid": BTREE, "amname": "btree", "amtype": "i"},
        ],
    ),
    spec(
        "pg_catalog",
        "pg_collation",
        """oid oid, collname name, collnamespace oid, collowner oid, collprovider char,
        collisdeterministic bool, collencoding int4, collcollate text, collctype text, colliculocale text,
        collicurules text, collversion text""",
        lambda s: (
            {
                "oid": number,
                "collname": name,
                "collnamespace": next(o for o, n in _world(s).namespaces.items() if n == "pg_catalog"),
                "collowner": owner_oid(s.catalog, None),
                "collprovider": "d" if name == "default" else "c",
                "collisdeterministic": True,
                "collencoding": -1,
                "collcollate": None if name == "default" else name,
                "collctype": None if name == "default" else name,
            }
            for number, name in ((DEFAULT_COLLATION, "default"), (C_COLLATION, "C"), (951, "POSIX"))
        ),
    ),
    spec(
        "pg_catalog",
        "pg_depend",
        "classid oid, objid oid, objsubid int4, refclassid oid, refobjid oid, refobjsubid int4, deptype char",
        _dependencies,
    ),
]
