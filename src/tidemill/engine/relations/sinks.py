"""The system relations about sinks: definitions, statuses and written updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.sources import STATUS_COLUMNS, Rows, Spec
from tidemill.ingest.status import RunStatus
from tidemill.sinks.definition import Definition
from tidemill.sinks.service import Sinks
from tidemill.types.json import canonical_json

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


@dataclass(frozen=True, slots=True)
class SinkRow:
    """The state of a sink, and its output since this server started. Everything before `frontier` is written
    and counted; None if that is unknown."""

    id: str
    status: RunStatus
    messages: int
    bytes: int
    updates: int
    statements: int
    in_flight: int
    frontier: int | None
    # The lag behind the clock, in milliseconds.
    lag: int | None


def sink_rows(sinks: Sinks, now: int) -> Sequence[SinkRow]:
    rows: list[SinkRow] = []
    for item, status, w, frontier in sinks.all():
        known = frontier or None
        lag = None if known is None else max(0, now - known + 1)
        rows.append(
            SinkRow(item.id, status, w.messages, w.bytes, w.updates, w.statements, w.in_flight, known, lag)
        )
    return rows


def _sinks(s: Situation) -> Rows:
    rows: Rows = []
    for sink in s.catalog.sinks():
        definition = Definition.of(sink)
        number, writers = definition.share
        rows.append(
            (
                sink.id,
                item_oid(sink.id),
                sink.schema,
                sink.name,
                sink.type,
                definition.connection,
                sink.relation,
                definition.topic or definition.path,
                definition.format,
                definition.envelope,
                sink.snapshot,
                sink.as_of,
                None if writers == 1 else f"{number} of {writers}",
            )
        )
    return rows


def _statuses(s: Situation) -> Rows:
    known = {sink.id: sink for sink in s.catalog.sinks()}
    rows: Rows = []
    for row in s.sinks():
        status = row.status
        if row.id not in known:
            continue
        more = {"detail": status.detail, "hint": status.hint}
        details = {name: text for name, text in more.items() if text is not None}
        rows.append(
            (
                row.id,
                known[row.id].name,
                known[row.id].type,
                datetime.fromtimestamp(status.since / 1000, UTC),
                status.state.value,
                status.error,
                canonical_json(json.dumps(details)) if details else None,
            )
        )
    return rows


def _statistics(s: Situation) -> Rows:
    known = {sink.id for sink in s.catalog.sinks()}
    return [
        (
            r.id,
            r.messages,
            r.bytes,
            r.updates,
            r.statements,
            r.in_flight,
            r.frontier,
            None if r.lag is None else {"months": 0, "days": 0, "micros": r.lag * 1000},
        )
        for r in s.sinks()
        if r.id in known
    ]


SINK_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_sinks",
        columns_of(
            """id text, oid oid, schema_id text, name text, type text, connection_id text, relation_id text,
            target text, format text, envelope_type text, snapshot bool, as_of mz_timestamp, share text"""
        ),
        _sinks,
    ),
    (
        "mz_internal",
        "mz_sink_statuses",
        columns_of(f"id text, name text, type text, {STATUS_COLUMNS}"),
        _statuses,
    ),
    (
        "mz_internal",
        "mz_sink_statistics",
        columns_of(
            """id text, messages_sent int8, bytes_sent int8, updates_sent int8, statements_sent int8,
            bytes_in_flight int8, frontier mz_timestamp, lag interval"""
        ),
        _statistics,
    ),
]
