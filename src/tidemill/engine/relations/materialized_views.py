"""The system relations about materialized views: definitions, statuses and frontiers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.sources import STATUS_COLUMNS, FrontierRow, Rows, Spec, StatusRow
from tidemill.ingest.status import RunState
from tidemill.types.json import canonical_json
from tidemill.views.service import Views

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


@dataclass(frozen=True, slots=True)
class ViewRow:
    """The state of a view: whether it is readable, and its status, in the form of a source's status."""

    hydrated: bool
    status: StatusRow


def view_rows(views: Views) -> Sequence[ViewRow]:
    rows: list[ViewRow] = []
    replacements = views.replacements()
    for item, status, machine in views.all():
        # As AS OF takes it: it is a time of the rows.
        since = status.since if status.state is RunState.FAILED else None
        new = replacements.get(item.id)
        more = {
            "detail": status.detail,
            "hint": status.hint,
            "since": since,
            "query_since": None if item.switched is None else item.switched.at,
            "replacement": None if new is None else new.state.value,
            "replacement_error": None if new is None else new.error,
        }
        details = {name: value for name, value in more.items() if value is not None}
        changed = datetime.fromtimestamp(status.since / 1000, UTC)
        told = StatusRow(item.id, changed, status.state.value, status.error, details or None)
        rows.append(ViewRow(machine is not None and machine.hydrated, told))
    return rows


def view_frontiers(views: Views) -> Sequence[FrontierRow]:
    """The frontiers of the open views. A view that is not readable yet is not complete at any time."""
    return [
        FrontierRow(item.id, machine.shard.since, machine.readable)
        for item, _, machine in views.all()
        if machine is not None
    ]


def _materialized_views(s: Situation) -> Rows:
    return [
        (v.id, item_oid(v.id), v.schema, v.name, v.sql, v.shard, v.retain_history_ms)
        for v in s.catalog.materialized_views()
    ]


def _statuses(s: Situation) -> Rows:
    names = {v.id: v.name for v in s.catalog.materialized_views()}
    told = [r.status for r in s.views() if r.status.source_id in names]
    return [
        (
            r.source_id,
            names[r.source_id],
            r.changed_at,
            r.status,
            r.error,
            None if r.details is None else canonical_json(json.dumps(dict(r.details))),
        )
        for r in told
    ]


MATERIALIZED_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_materialized_views",
        columns_of(
            """id text, oid oid, schema_id text, name text, definition text, shard_id text,
            retain_history_ms int8"""
        ),
        _materialized_views,
    ),
    (
        "mz_internal",
        "mz_materialized_view_statuses",
        columns_of(f"id text, name text, {STATUS_COLUMNS}"),
        _statuses,
    ),
]
