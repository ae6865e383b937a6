"""The live state of the server for the system relations: implements `system.Situation`.

The engine makes one for each statement that reads system relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.catalog.state import CatalogState
from tidemill.engine.audit.log import AuditEvent
from tidemill.engine.relations.materialized_views import ViewRow, view_frontiers, view_rows
from tidemill.engine.relations.pg.session_objects import PreparedRow
from tidemill.engine.relations.sinks import SinkRow, sink_rows
from tidemill.engine.relations.sources import FrontierRow, SourcesView
from tidemill.engine.relations.subscriptions import SubscriptionRow
from tidemill.engine.relations.system import SessionRow
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.variables import VariableRow

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine
    from tidemill.engine.session.session import EngineSession


@dataclass(frozen=True, slots=True)
class LiveSituation:
    """`relations.system.Situation` of one statement."""

    engine: TidemillEngine
    session: EngineSession
    catalog: CatalogState

    @property
    def database(self) -> str:
        return self.session.variables.get("database")

    def sessions(self) -> Sequence[SessionRow]:
        return [_session_row(s) for s in self.engine.sessions]

    def audit_events(self) -> Sequence[AuditEvent]:
        return self.engine.audit.events()

    def subscriptions(self) -> Sequence[SubscriptionRow]:
        return self.engine.subscriptions.table()

    @property
    def sources(self) -> SourcesView:
        return self.engine.sources

    def frontiers(self) -> Sequence[FrontierRow]:
        now = self.engine.environment.oracle.read_ts()
        rows: list[FrontierRow] = []
        for table in self.catalog.tables():
            shard = self.engine.environment.open_shard(table.shard)
            rows.append(FrontierRow(table.id, shard.since, max(now + 1, shard.upper or 0)))
        known = {view.id for view in self.catalog.materialized_views()}
        return rows + [row for row in view_frontiers(self.engine.views) if row.object_id in known]

    def views(self) -> Sequence[ViewRow]:
        return view_rows(self.engine.views)

    def sinks(self) -> Sequence[SinkRow]:
        return sink_rows(self.engine.sinks, self.engine.environment.oracle.now())

    def variables(self) -> Iterable[VariableRow]:
        return self.session.variables.rows()

    def prepared(self) -> Sequence[PreparedRow]:
        return self.session.statements.table()

    def portals(self) -> Portals:
        return self.session.portals


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
