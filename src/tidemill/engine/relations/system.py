"""The system relations: the catalog and the state of the server as read-only tables.

Each is a row of `SYSTEM_RELATIONS`: a name, its columns and a function that makes its rows from a
`Situation`. A statement that reads one computes its rows from the catalog state of the statement and
the live figures of the engine. They store no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.arrangements import ArrangementFacts
from tidemill.catalog.items import (
    RELATIONS,
    SCHEMA_ITEMS,
    Relation,
    Role,
    Schema,
    Source,
    SourceTable,
    Table,
    View,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Encryption
from tidemill.engine.audit.log import AuditEvent
from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.comments import COMMENTS_SPEC
from tidemill.engine.relations.connections import CONNECTION_SPECS
from tidemill.engine.relations.durable_subscriptions import DURABLE_SUBSCRIPTIONS_SPEC, DurableRow
from tidemill.engine.relations.kinds import object_type
from tidemill.engine.relations.materialized_views import MATERIALIZED_SPECS, ViewRow
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.cluster import CLUSTER_SPECS
from tidemill.engine.relations.pg.descriptions import DESCRIPTION_SPECS
from tidemill.engine.relations.pg.empty import EMPTY_SPECS
from tidemill.engine.relations.pg.info import INFO_COLUMNS, INFO_SCHEMATA, INFO_SPECS, INFO_TABLES
from tidemill.engine.relations.pg.info_empty import INFO_EMPTY_SPECS
from tidemill.engine.relations.pg.oids import system_oid
from tidemill.engine.relations.pg.procs import PROC_SPECS
from tidemill.engine.relations.pg.relations import PG_SPECS
from tidemill.engine.relations.pg.session_objects import OWN_SESSION_SPECS, PreparedRow
from tidemill.engine.relations.pg.settings import SETTINGS_SPEC
from tidemill.engine.relations.pg.zones import ZONES_SPEC
from tidemill.engine.relations.roles import ROLE_SPECS
from tidemill.engine.relations.shards import SHARDS_SPEC, USAGE_SPEC
from tidemill.engine.relations.sinks import SINK_SPECS, SinkRow
from tidemill.engine.relations.sources import (
    PARTITIONS_SPEC,
    SOURCE_ERRORS_SPEC,
    SOURCE_SPECS,
    FrontierRow,
    Rows,
    SourcesView,
    Spec,
)
from tidemill.engine.relations.subscriptions import SUBSCRIPTION_SPECS, SubscriptionRow
from tidemill.engine.relations.view_stages import VIEW_STAGES_SPECS
from tidemill.engine.session.variables import SYSTEM_PARAMETERS, VariableRow
from tidemill.persist.shard import Shard
from tidemill.types.arrow import storage_schema
from tidemill.types.model import (
    Column,
    RelationDesc,
    for_spark,
    type_name,
)
from tidemill.types.wire import oid

if TYPE_CHECKING:
    from tidemill.engine.session.portals import Portals

# Ids of system relations start here, beyond those that the catalog's own builtins use.
FIRST_SYSTEM_RELATION_ID = 1000


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One connected session, for mz_sessions."""

    process_id: int
    role: str
    database: str
    application_name: str
    connected_at: datetime
    state: str
    client_address: str = ""
    encryption: Encryption | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the functions that make rows: a state of the catalog, and what shows the rest now."""

    catalog: CatalogState
    database: str
    sources: SourcesView
    sessions: Callable[[], Sequence[SessionRow]]
    audit_events: Callable[[], Sequence[AuditEvent]]
    subscriptions: Callable[[], Sequence[SubscriptionRow]]
    # Of the tables and materialized views.
    frontiers: Callable[[], Sequence[FrontierRow]]
    # What is kept to follow queries.
    arrangements: Callable[[], Sequence[ArrangementFacts]]
    # The states of the materialized views.
    views: Callable[[], Sequence[ViewRow]]
    sinks: Callable[[], Sequence[SinkRow]]
    durable: Callable[[], Sequence[DurableRow]]
    # Those that are open in this process.
    shards: Callable[[], Sequence[Shard]]
    # Of the current session.
    variables: Callable[[], Iterable[VariableRow]]
    prepared: Callable[[], Sequence[PreparedRow]]
    portals: Callable[[], Portals]


@dataclass(frozen=True, slots=True)
class SystemRelation:
    """`id` is stable within a release. Only the dependencies of views refer to it durably, by schema and
    name."""

    id: str
    schema: str
    name: str
    desc: RelationDesc
    rows: Callable[[Situation], Rows]

    @property
    def oid(self) -> int:
        return system_oid(self.schema, self.name, self.id)

    def table(self, situation: Situation) -> pa.Table:
        """The relation's rows for Spark."""
        schema = storage_schema(for_spark(self.desc))
        rows = self.rows(situation)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        arrays = [pa.array(values, type=f.type) for values, f in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)


def _objects(s: Situation) -> Rows:
    rows: Rows = []
    for item in s.catalog.items.values():
        if isinstance(item, SCHEMA_ITEMS):
            rows.append((item.id, item_oid(item.id), item.schema, item.name, object_type(item)))
    schemas = _system_schema_ids(s)
    for relation in SYSTEM_RELATIONS.values():
        rows.append((relation.id, relation.oid, schemas[relation.schema], relation.name, "view"))
    return rows


def _system_schema_ids(s: Situation) -> dict[str, str]:
    return {i.name: i.id for i in s.catalog.items.values() if isinstance(i, Schema) and i.database is None}


def _databases(s: Situation) -> Rows:
    return [(d.id, item_oid(d.id), d.name) for d in s.catalog.databases()]


def _schemas(s: Situation) -> Rows:
    found = [i for i in s.catalog.items.values() if isinstance(i, Schema)]
    return [(i.id, item_oid(i.id), i.database, i.name) for i in found]


def _tables(s: Situation) -> Rows:
    rows: Rows = []
    for t in s.catalog.items.values():
        if isinstance(t, Table):
            rows.append((t.id, item_oid(t.id), t.schema, t.name, t.shard, t.retain_history_ms, None))
        elif isinstance(t, SourceTable) and not t.subsource:
            retain = s.catalog.get(t.source, Source).retain_history_ms
            rows.append((t.id, item_oid(t.id), t.schema, t.name, t.shard, retain, t.source))
    return rows


def _views(s: Situation) -> Rows:
    found = [i for i in s.catalog.items.values() if isinstance(i, View)]
    return [(v.id, item_oid(v.id), v.schema, v.name, v.sql) for v in found]


def _roles(s: Situation) -> Rows:
    found = [i for i in s.catalog.items.values() if isinstance(i, Role)]
    return [(r.id, item_oid(r.id), r.name, r.superuser) for r in found]


def _shown(item: Relation) -> tuple[RelationDesc, tuple[str | None, ...]]:
    """The relation's columns and their defaults; a source whose rows are in tables has none."""
    desc = item.desc or RelationDesc(())
    return desc, item.defaults if isinstance(item, Table) else (None,) * len(desc.columns)


def _described(s: Situation) -> Iterable[tuple[str, RelationDesc, tuple[str | None, ...]]]:
    for item in s.catalog.items.values():
        if isinstance(item, RELATIONS):
            yield item.id, *_shown(item)
    for relation in SYSTEM_RELATIONS.values():
        yield relation.id, relation.desc, (None,) * len(relation.desc.columns)


def _columns(s: Situation) -> Rows:
    return [
        (item_id, c.name, n, c.nullable, type_name(c.type), default, oid(c.type))
        for item_id, desc, defaults in _described(s)
        for n, (c, default) in enumerate(zip(desc.columns, defaults, strict=True), 1)
    ]


def _dependencies(s: Situation) -> Rows:
    found = [i for i in s.catalog.items.values() if isinstance(i, SCHEMA_ITEMS)]
    return [(i.id, needed) for i in found for needed in i.depends_on]


def _sessions(s: Situation) -> Rows:
    return [
        (r.process_id, r.role, r.database, r.application_name, r.connected_at, r.state, r.client_address)
        for r in s.sessions()
    ]


def _frontiers(s: Situation) -> Rows:
    return [(r.object_id, r.since, r.upper) for r in (*s.frontiers(), *s.sources.frontiers())]


def _system_parameters(s: Situation) -> Rows:
    rows: Rows = []
    for parameter in SYSTEM_PARAMETERS.values():
        item = s.catalog.find_parameter(parameter.name)
        value = parameter.default if item is None else item.value
        rows.append((parameter.name, value, parameter.default, parameter.description))
    return rows


_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_objects",
        columns_of("id text, oid oid, schema_id text, name text, type text"),
        _objects,
    ),
    ("mz_catalog", "mz_databases", columns_of("id text, oid oid, name text"), _databases),
    (
        "mz_catalog",
        "mz_schemas",
        columns_of("id text, oid oid, database_id text, name text"),
        _schemas,
    ),
    (
        "mz_catalog",
        "mz_tables",
        columns_of(
            """id text, oid oid, schema_id text, name text, shard_id text, retain_history_ms int8,
            source_id text"""
        ),
        _tables,
    ),
    (
        "mz_catalog",
        "mz_views",
        columns_of("id text, oid oid, schema_id text, name text, definition text"),
        _views,
    ),
    (
        "mz_catalog",
        "mz_columns",
        columns_of(
            """id text, name text, position int4, nullable bool, type text, default text, type_oid oid"""
        ),
        _columns,
    ),
    ("mz_catalog", "mz_roles", columns_of("id text, oid oid, name text, superuser bool"), _roles),
    (
        "mz_internal",
        "mz_object_dependencies",
        columns_of("object_id text, referenced_object_id text"),
        _dependencies,
    ),
    (
        "mz_internal",
        "mz_sessions",
        columns_of(
            """process_id int4, role text, database text, application_name text, connected_at timestamptz,
            state text, client_address text"""
        ),
        _sessions,
    ),
    (
        "mz_internal",
        "mz_frontiers",
        columns_of("object_id text, read_frontier mz_timestamp, write_frontier mz_timestamp"),
        _frontiers,
    ),
    (
        "mz_internal",
        "mz_system_parameters",
        columns_of("name text, value text, default text, description text"),
        _system_parameters,
    ),
    SETTINGS_SPEC,
    ZONES_SPEC,
    *OWN_SESSION_SPECS,
    INFO_SCHEMATA,
    INFO_TABLES,
    INFO_COLUMNS,
    # After the others: ids follow the order.
    *SOURCE_SPECS,
    *CONNECTION_SPECS,
    *SUBSCRIPTION_SPECS,
    *MATERIALIZED_SPECS,
    *VIEW_STAGES_SPECS,
    *ROLE_SPECS,
    *SINK_SPECS,
    *PG_SPECS,
    *CLUSTER_SPECS,
    *PROC_SPECS,
    *DESCRIPTION_SPECS,
    COMMENTS_SPEC,
    *EMPTY_SPECS,
    *INFO_SPECS,
    *INFO_EMPTY_SPECS,
    SOURCE_ERRORS_SPEC,
    SHARDS_SPEC,
    USAGE_SPEC,
    PARTITIONS_SPEC,
    DURABLE_SUBSCRIPTIONS_SPEC,
]

SYSTEM_RELATIONS: dict[tuple[str, str], SystemRelation] = {
    (schema, name): SystemRelation(
        f"s{FIRST_SYSTEM_RELATION_ID + n}",
        schema,
        name,
        RelationDesc(tuple(Column(column, t) for column, t in columns)),
        rows,
    )
    for n, (schema, name, columns, rows) in enumerate(_SPECS)
}
SYSTEM_RELATIONS_BY_ID: dict[str, SystemRelation] = {r.id: r for r in SYSTEM_RELATIONS.values()}
SYSTEM_SCHEMAS = ("mz_catalog", "mz_internal", "pg_catalog", "information_schema")
