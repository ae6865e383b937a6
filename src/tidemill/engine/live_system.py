"""The live state of the server for the system relations. `reader` asks for it for each statement that reads
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.durable_subscriptions import durable_rows
from tidemill.engine.relations.materialized_views import view_frontiers, view_rows
from tidemill.engine.relations.sinks import sink_rows
from tidemill.engine.relations.sources import FrontierRow
from tidemill.engine.relations.system import SessionRow, Situation

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine
    from tidemill.engine.session.session import EngineSession


def situation(engine: TidemillEngine, session: EngineSession, catalog: CatalogState) -> Situation:
    return Situation(
        catalog,
        session.variables.get("database"),
        engine.sources,
        sessions=lambda: [_session_row(s) for s in engine.sessions],
        audit_events=engine.audit.events,
        subscriptions=engine.subscriptions.table,
        frontiers=lambda: _frontiers(engine, catalog),
        arrangements=engine.arrangements.listed,
        views=lambda: view_rows(engine.views),
        sinks=lambda: sink_rows(engine.sinks, engine.environment.oracle.now()),
        durable=lambda: durable_rows(engine.durable, engine.environment.oracle.now()),
        shards=engine.environment.open_shards,
        variables=session.variables.rows,
        prepared=session.statements.table,
        portals=lambda: session.portals,
    )


def _frontiers(engine: TidemillEngine, catalog: CatalogState) -> Sequence[FrontierRow]:
    now = engine.environment.oracle.read_ts()
    rows: list[FrontierRow] = []
    for table in catalog.tables():
        shard = engine.environment.open_shard(table.shard)
        rows.append(FrontierRow(table.id, shard.since, max(now + 1, shard.upper or 0)))
    known = {view.id for view in catalog.materialized_views()}
    return rows + [row for row in view_frontiers(engine.views) if row.object_id in known]


def _session_row(s: EngineSession) -> SessionRow:
    return SessionRow(
        s.process_id,
        s.identity.login_name,
        s.variables.get("database"),
        s.variables.get("application_name"),
        s.connected_at,
        "active" if s.interrupt.running else "idle",
        s.identity.address,
        s.encryption,
    )
