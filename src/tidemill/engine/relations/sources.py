"""The system relations about sources: their definitions, status, and statistics.

Definitions come from the catalog; the rest from the running sources, through a `SourcesView`. A table of a
source has the status of its source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tidemill.catalog.items import Source, SourceProgress, SourceTable
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.kinds import source_type
from tidemill.engine.relations.oids import item_oid
from tidemill.ingest.live_errors import LiveErrors
from tidemill.sources.message_errors import LISTED_HINT, PARTITION_AND_OFFSET, hint_of
from tidemill.types.json import canonical_json
from tidemill.types.model import (
    SqlType,
)

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

Rows: TypeAlias = list[tuple[Any, ...]]

_ERRORS_HINT = "Queries of the relation fail."


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """The times of a collection: readable from `since`, complete before `upper` (None: forever)."""

    object_id: str
    since: int
    upper: int | None


@dataclass(frozen=True, slots=True)
class BindingRow:
    """At `time` the records of `partition` (None: the source has none) before number `value` are included.
    `position` is what the progress relation shows instead of the number, if it does."""

    source_id: str
    time: int
    partition: str | None
    value: int
    position: str | None = None


@dataclass(frozen=True, slots=True)
class StatusRow:
    """How a source is, since when, and why. `details` is the rest of the error: its detail, its hint."""

    source_id: str
    changed_at: datetime
    status: str
    error: str | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ErrorsRow:
    """What a relation of a source could not read: its errors, and how many dead letters it has (None: it has
    no relation for them)."""

    source_id: str
    object_id: str
    errors: LiveErrors
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """What a source has done since this server runs. None is what is not known (yet)."""

    source_id: str
    messages_received: int
    bytes_received: int
    updates_staged: int
    updates_committed: int
    offset_known: int | None
    offset_committed: int | None
    snapshot_records_known: int | None = None
    snapshot_records_staged: int | None = None
    # Of its upsert state.
    records_indexed: int | None = None
    bytes_indexed: int | None = None
    rehydration_ms: int | None = None
    snapshot_bytes_known: int | None = None
    snapshot_bytes_staged: int | None = None
    # How far the collections are behind the upstream, where its position does not say it.
    lag_bytes: int | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition (None: the source has none): the upstream has records before number `known` (None: it was
    not asked yet), and those before `committed` are in the collections."""

    source_id: str
    partition: str | None
    known: int | None
    committed: int


@dataclass(frozen=True, slots=True)
class HydrationRow:
    """Whether a source has caught up once since this server runs, and can be read."""

    source_id: str
    hydrated: bool


class SourcesView(Protocol):
    """Information about the running sources. Called on worker threads; unknown sources are left out."""

    def bindings(self) -> Sequence[BindingRow]: ...

    def statuses(self) -> Sequence[StatusRow]: ...

    def errors(self) -> Sequence[ErrorsRow]:
        """Of sources and their tables that have errors or dead letters."""
        ...

    def statistics(self) -> Sequence[StatisticsRow]: ...

    def partitions(self) -> Sequence[PartitionRow]: ...

    def hydration(self) -> Sequence[HydrationRow]: ...

    def frontiers(self) -> Sequence[FrontierRow]:
        """Of sources, their tables and their progress relations, by the ids of those."""
        ...


def _sources(s: Situation) -> Rows:
    rows: Rows = []
    for item in s.catalog.items.values():
        if isinstance(item, Source):
            of, remap, interval, retain = None, item.remap_shard, item.interval_ms, item.retain_history_ms
        elif isinstance(item, SourceTable) and item.subsource:
            source = s.catalog.get(item.source, Source)
            of, remap, interval, retain = source.id, None, source.interval_ms, source.retain_history_ms
        else:
            continue
        rows.append(
            (
                item.id,
                item_oid(item.id),
                item.schema,
                item.name,
                source_type(item),
                item.envelope,
                of,
                item.shard,
                remap,
                interval,
                retain,
            )
        )
    return rows


def _progresses(s: Situation) -> Rows:
    found = [i for i in s.catalog.items.values() if isinstance(i, SourceProgress)]
    return [(p.id, p.name, p.source) for p in found]


def _bindings(s: Situation) -> Rows:
    return [(b.source_id, b.time, b.partition, b.value, b.position) for b in s.sources.bindings()]


def _with_tables(catalog: CatalogState, source_id: str) -> Iterator[Source | SourceTable]:
    """The source and its tables; none if it was dropped meanwhile."""
    source = catalog.items.get(source_id)
    if isinstance(source, Source):
        yield source
        yield from catalog.source_tables(source_id)


def _statuses(s: Situation) -> Rows:
    errors = {row.object_id: row for row in s.sources.errors()}
    rows: Rows = []
    for r in s.sources.statuses():
        for item in _with_tables(s.catalog, r.source_id):
            error, details = _with_errors(r, errors.get(item.id))
            told = canonical_json(json.dumps(details)) if details else None
            rows.append((item.id, item.name, source_type(item), r.changed_at, r.status, error, told))
    return rows


def _with_errors(r: StatusRow, found: ErrorsRow | None) -> tuple[str | None, dict[str, Any]]:
    """The error and the details of a relation's status. What keeps the source from going on comes first."""
    details: dict[str, Any] = dict(r.details or {})
    if found is None:
        return r.error, details
    if found.dead_letters is not None:
        details["dead_letters"] = found.dead_letters
    errors = found.errors
    if not errors.count:
        return r.error, details
    details["errors"] = errors.count
    if r.error is not None or not errors.first:
        return r.error, details
    if errors.first[0].detail is not None:
        details["detail"] = errors.first[0].detail
    details["hint"] = f"{_ERRORS_HINT} {hint_of(errors.first[0].detail) or LISTED_HINT}"
    return errors.first[0].text, details


def _errors(s: Situation) -> Rows:
    rows: Rows = []
    for r in s.sources.errors():
        item = s.catalog.items.get(r.object_id)
        if item is None:
            continue
        for error in r.errors.first:
            place = PARTITION_AND_OFFSET.search(error.detail or "")
            partition, offset = (None, None) if place is None else (place[1], int(place[2]))
            rows.append(
                (
                    r.source_id,
                    r.object_id,
                    item.name,
                    error.text,
                    error.detail,
                    partition,
                    offset,
                    error.time,
                    error.count,
                )
            )
    return rows


def _statistics(s: Situation) -> Rows:
    return [
        (
            r.source_id,
            r.messages_received,
            r.bytes_received,
            r.updates_staged,
            r.updates_committed,
            r.offset_known,
            r.offset_committed,
            r.snapshot_records_known,
            r.snapshot_records_staged,
            r.records_indexed,
            r.bytes_indexed,
            _interval(r.rehydration_ms),
            r.snapshot_bytes_known,
            r.snapshot_bytes_staged,
            r.lag_bytes,
            _interval(r.lag_ms),
        )
        for r in s.sources.statistics()
    ]


def _interval(milliseconds: int | None) -> dict[str, int] | None:
    return None if milliseconds is None else {"months": 0, "days": 0, "micros": milliseconds * 1000}


def _hydration(s: Situation) -> Rows:
    rows: Rows = [
        (item.id, r.hydrated) for r in s.sources.hydration() for item in _with_tables(s.catalog, r.source_id)
    ]
    views = {v.id for v in s.catalog.materialized_views()}
    return rows + [(r.status.source_id, r.hydrated) for r in s.views() if r.status.source_id in views]


Spec: TypeAlias = tuple[str, str, list[tuple[str, SqlType]], Callable[["Situation"], Rows]]

# Of the relations of statuses: of sources, sinks and materialized views.
STATUS_COLUMNS = "last_status_change_at timestamptz, status text, error text, details jsonb"

SOURCE_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_sources",
        columns_of(
            """id text, oid oid, schema_id text, name text, type text, envelope_type text, source_id text,
            shard_id text, remap_shard_id text, timestamp_interval_ms int8, retain_history_ms int8"""
        ),
        _sources,
    ),
    (
        "mz_catalog",
        "mz_source_progresses",
        columns_of("id text, name text, source_id text"),
        _progresses,
    ),
    (
        "mz_internal",
        "mz_source_bindings",
        columns_of("source_id text, mz_timestamp mz_timestamp, partition text, value uint8, position text"),
        _bindings,
    ),
    (
        "mz_internal",
        "mz_source_statuses",
        columns_of(f"id text, name text, type text, {STATUS_COLUMNS}"),
        _statuses,
    ),
    (
        "mz_internal",
        "mz_source_statistics",
        columns_of(
            """id text, messages_received int8, bytes_received int8, updates_staged int8,
            updates_committed int8, offset_known uint8, offset_committed uint8,
            snapshot_records_known int8, snapshot_records_staged int8, records_indexed int8,
            bytes_indexed int8, rehydration_latency interval, snapshot_bytes_known int8,
            snapshot_bytes_staged int8, lag_bytes int8, lag interval"""
        ),
        _statistics,
    ),
    ("mz_internal", "mz_hydration_statuses", columns_of("object_id text, hydrated bool"), _hydration),
]

PARTITIONS_SPEC: Spec = (
    "mz_internal",
    "mz_source_partitions",
    columns_of("source_id text, partition text, offset_known uint8, offset_committed uint8"),
    lambda s: [(r.source_id, r.partition, r.known, r.committed) for r in s.sources.partitions()],
)

SOURCE_ERRORS_SPEC: Spec = (
    "mz_internal",
    "mz_source_errors",
    columns_of(
        """source_id text, object_id text, name text, error text, detail text, partition text,
            offset uint8, mz_timestamp mz_timestamp, count int8"""
    ),
    _errors,
)
