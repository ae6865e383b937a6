"""information_schema: the standard's views of the current database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.catalog.items import Role, Source, SourceProgress, SourceTable, Table
from tidemill.engine.relations.pg.owners import owner_of
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.pg.types import column_oid, types
from tidemill.engine.relations.pg.world import PgRelation, world
from tidemill.engine.relations.sources import Spec
from tidemill.types.arrow import NUMERIC_PRECISION
from tidemill.types.model import Kind, SqlType

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

_SCHEMA = "information_schema"


def _schemata(s: Situation) -> Iterable[Record]:
    for schema in world(s.catalog, s.database).schemas:
        owner = owner_of(s.catalog, None if schema.database is None else schema).name
        yield {"catalog_name": s.database, "schema_name": schema.name, "schema_owner": owner}


def table_type(r: PgRelation) -> str:
    """The table's type in `tables`. Sources and materialized views have types of our own."""
    if r.kind == "m":
        return "MATERIALIZED VIEW"
    if isinstance(r.item, Source | SourceProgress) or (isinstance(r.item, SourceTable) and r.item.subsource):
        return "SOURCE"
    return "BASE TABLE" if isinstance(r.item, Table | SourceTable) else "VIEW"


def _tables(s: Situation) -> Iterable[Record]:
    for r in world(s.catalog, s.database).relations:
        yield {
            "table_catalog": s.database,
            "table_schema": r.schema,
            "table_name": r.name,
            "table_type": table_type(r),
            "is_insertable_into": "YES" if isinstance(r.item, Table) else "NO",
            "is_typed": "NO",
        }


def _columns(s: Situation) -> Iterable[Record]:
    for r, number in world(s.catalog, s.database).columns():
        column = r.desc.columns[number - 1]
        t = types()[column_oid(column.type)]
        yield {
            "table_catalog": s.database,
            "table_schema": r.schema,
            "table_name": r.name,
            "column_name": column.name,
            "ordinal_position": number,
            "column_default": r.default(number),
            "is_nullable": "YES" if column.nullable else "NO",
            "data_type": _data_type(column.type, t.sql_name),
            **_sizes(column.type),
            "udt_catalog": s.database,
            "udt_schema": "pg_catalog",
            "udt_name": t.name,
            "dtd_identifier": str(number),
            "is_self_referencing": "NO",
            "is_identity": "NO",
            "is_generated": "NEVER",
            "is_updatable": "YES" if isinstance(r.item, Table) else "NO",
        }


def _data_type(t: SqlType, name: str) -> str:
    return "ARRAY" if t.kind is Kind.ARRAY else name


_BITS = {Kind.INT2: 16, Kind.INT4: 32, Kind.INT8: 64, Kind.FLOAT4: 24, Kind.FLOAT8: 53}
_TIMES = (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)


def _sizes(t: SqlType) -> Record:
    if t.kind in (Kind.VARCHAR, Kind.CHAR):
        octets = None if t.length is None else t.length * 4
        return {"character_maximum_length": t.length, "character_octet_length": octets}
    if t.kind is Kind.TEXT:
        return {"character_octet_length": 1 << 30}
    if t.kind in _BITS:
        scale = None if t.kind in (Kind.FLOAT4, Kind.FLOAT8) else 0
        return {"numeric_precision": _BITS[t.kind], "numeric_precision_radix": 2, "numeric_scale": scale}
    if t.kind is Kind.NUMERIC:
        whole = {"numeric_precision_radix": 10}
        return (
            whole
            if t.precision is None
            else {**whole, "numeric_precision": t.precision, "numeric_scale": t.scale}
        )
    if t.kind is Kind.UINT8:
        return {
            "numeric_precision": min(20, NUMERIC_PRECISION),
            "numeric_precision_radix": 10,
            "numeric_scale": 0,
        }
    if t.kind in _TIMES:
        return {"datetime_precision": 6}
    return {"datetime_precision": 0} if t.kind is Kind.DATE else {}


def _views(s: Situation) -> Iterable[Record]:
    for r in world(s.catalog, s.database).relations:
        if r.kind == "v":
            yield {
                "table_catalog": s.database,
                "table_schema": r.schema,
                "table_name": r.name,
                "view_definition": r.definition,
                "check_option": "NONE",
                "is_updatable": "NO",
                "is_insertable_into": "NO",
                "is_trigger_updatable": "NO",
                "is_trigger_deletable": "NO",
                "is_trigger_insertable_into": "NO",
            }


def _constraint(s: Situation, r: PgRelation, name: str) -> Record:
    """The catalog, schema and name of a constraint and its table."""
    return {
        "constraint_catalog": s.database,
        "constraint_schema": r.schema,
        "constraint_name": name,
        "table_catalog": s.database,
        "table_schema": r.schema,
        "table_name": r.name,
    }


def _constraints(s: Situation) -> Iterable[Record]:
    for r in world(s.catalog, s.database).relations:
        for key in r.keys:
            yield {
                **_constraint(s, r, key.name),
                "constraint_type": "PRIMARY KEY" if key.primary else "UNIQUE",
                "is_deferrable": "NO",
                "initially_deferred": "NO",
                "enforced": "NO",
                "nulls_distinct": None if key.primary else "YES",
            }
        for column in _not_null(r):
            yield {
                **_constraint(s, r, _not_null_name(r, column)),
                "constraint_type": "CHECK",
                "is_deferrable": "NO",
                "initially_deferred": "NO",
                "enforced": "YES",
            }


def _not_null(r: PgRelation) -> list[str]:
    return [c.name for c in r.desc.columns if not c.nullable] if isinstance(r.item, Table) else []


def _not_null_name(r: PgRelation, column: str) -> str:
    return f"{r.name}_{column}_not_null"


def _checks(s: Situation) -> Iterable[Record]:
    """In the standard, NOT NULL is a check constraint."""
    for r in world(s.catalog, s.database).relations:
        for column in _not_null(r):
            yield {
                "constraint_catalog": s.database,
                "constraint_schema": r.schema,
                "constraint_name": _not_null_name(r, column),
                "check_clause": f"{column} IS NOT NULL",
            }


def _constraint_tables(s: Situation) -> Iterable[Record]:
    """Only keys, as in PostgreSQL."""
    for record in _constraints(s):
        if record["constraint_type"] != "CHECK":
            yield {name: record[name] for name in _CONSTRAINT_TABLE}


def _element_types(s: Situation) -> Iterable[Record]:
    for r, number in world(s.catalog, s.database).columns():
        element = r.desc.columns[number - 1].type.element
        if r.desc.columns[number - 1].type.kind is not Kind.ARRAY or element is None:
            continue
        t = types()[column_oid(element)]
        yield {
            "object_catalog": s.database,
            "object_schema": r.schema,
            "object_name": r.name,
            "object_type": "TABLE",
            "collection_type_identifier": str(number),
            "data_type": t.sql_name,
            "udt_catalog": s.database,
            "udt_schema": "pg_catalog",
            "udt_name": t.name,
            "dtd_identifier": f"a{number}",
        }


def _key_columns(s: Situation) -> Iterable[Record]:
    for r in world(s.catalog, s.database).relations:
        for key in r.keys:
            for at, number in enumerate(key.numbers, 1):
                yield {
                    **_constraint(s, r, key.name),
                    "column_name": r.desc.names[number - 1],
                    "ordinal_position": at,
                }


def _constraint_columns(s: Situation) -> Iterable[Record]:
    for record in _key_columns(s):
        del record["ordinal_position"]
        yield record


def _roles(s: Situation) -> Iterable[Record]:
    for r in s.catalog.items.values():
        if isinstance(r, Role):
            yield {"role_name": r.name}


_TABLE = "table_catalog name, table_schema name, table_name name"

INFO_SCHEMATA = spec(
    _SCHEMA,
    "schemata",
    """catalog_name name, schema_name name, schema_owner name, default_character_set_catalog name,
    default_character_set_schema name, default_character_set_name name, sql_path text""",
    _schemata,
    nulls=True,
)
INFO_TABLES = spec(
    _SCHEMA,
    "tables",
    f"""{_TABLE}, table_type text, self_referencing_column_name name, reference_generation text,
    user_defined_type_catalog name, user_defined_type_schema name, user_defined_type_name name,
    is_insertable_into text, is_typed text, commit_action text""",
    _tables,
    nulls=True,
)
INFO_COLUMNS = spec(
    _SCHEMA,
    "columns",
    f"""{_TABLE}, column_name name, ordinal_position int4, column_default text, is_nullable text,
    data_type text, character_maximum_length int4, character_octet_length int4, numeric_precision int4,
    numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type text,
    interval_precision int4, character_set_catalog name, character_set_schema name, character_set_name name,
    collation_catalog name, collation_schema name, collation_name name, domain_catalog name,
    domain_schema name, domain_name name, udt_catalog name, udt_schema name, udt_name name,
    scope_catalog name, scope_schema name, scope_name name, maximum_cardinality int4, dtd_identifier name,
    is_self_referencing text, is_identity text, identity_generation text, identity_start text,
    identity_increment text, identity_maximum text, identity_minimum text, identity_cycle text,
    is_generated text, generation_expression text, is_updatable text""",
    _columns,
    nulls=True,
)
_CONSTRAINT_TABLE = (
    "table_catalog",
    "table_schema",
    "table_name",
    "constraint_catalog",
    "constraint_schema",
    "constraint_name",
)
_CONSTRAINT = "constraint_catalog name, constraint_schema name, constraint_name name"

INFO_SPECS: list[Spec] = [
    spec(
        _SCHEMA,
        "views",
        f"""{_TABLE}, view_definition text, check_option text, is_updatable text, is_insertable_into text,
        is_trigger_updatable text, is_trigger_deletable text, is_trigger_insertable_into text""",
        _views,
        nulls=True,
    ),
    spec(
        _SCHEMA,
        "table_constraints",
        f"""{_CONSTRAINT}, {_TABLE}, constraint_type text, is_deferrable text, initially_deferred text,
        enforced text, nulls_distinct text""",
        _constraints,
        nulls=True,
    ),
    spec(
        _SCHEMA,
        "key_column_usage",
        f"""{_CONSTRAINT}, {_TABLE}, column_name name, ordinal_position int4,
        position_in_unique_constraint int4""",
        _key_columns,
        nulls=True,
    ),
    spec(
        _SCHEMA, "constraint_column_usage", f"{_TABLE}, column_name name, {_CONSTRAINT}", _constraint_columns
    ),
    spec(
        _SCHEMA,
        "referential_constraints",
        f"""{_CONSTRAINT}, unique_constraint_catalog name, unique_constraint_schema name,
        unique_constraint_name name, match_option text, update_rule text, delete_rule text""",
    ),
    spec(_SCHEMA, "check_constraints", f"{_CONSTRAINT}, check_clause text", _checks),
    spec(_SCHEMA, "constraint_table_usage", f"{_TABLE}, {_CONSTRAINT}", _constraint_tables),
    spec(
        _SCHEMA,
        "element_types",
        """object_catalog name, object_schema name, object_name name, object_type text,
        collection_type_identifier name, data_type text, character_maximum_length int4,
        character_octet_length int4, character_set_catalog name, character_set_schema name,
        character_set_name name, collation_catalog name, collation_schema name, collation_name name,
        numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, datetime_precision int4,
        interval_type text, interval_precision int4, udt_catalog name, udt_schema name, udt_name name,
        scope_catalog name, scope_schema name, scope_name name, maximum_cardinality int4,
        dtd_identifier name""",
        _element_types,
        nulls=True,
    ),
    spec(
        _SCHEMA,
        "information_schema_catalog_name",
        "catalog_name name",
        lambda s: [{"catalog_name": s.database}],
    ),
    spec(_SCHEMA, "enabled_roles", "role_name name", _roles),
    spec(_SCHEMA, "applicable_roles", "grantee name, role_name name, is_grantable text"),
    spec(
        _SCHEMA,
        "character_sets",
        """character_set_catalog name, character_set_schema name, character_set_name name,
        character_repertoire name, form_of_use name, default_collate_catalog name,
        default_collate_schema name, default_collate_name name""",
        lambda s: [{"character_set_name": "UTF8", "character_repertoire": "UCS", "form_of_use": "UTF8"}],
        nulls=True,
    ),
]
