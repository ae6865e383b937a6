"""The state of the running sources for the system relations: implements `relations.sources.SourcesView`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemill.catalog.store import Catalog
from tidemill.engine.relations.sources import (
    BindingRow,
    ErrorsRow,
    FrontierRow,
    HydrationRow,
    PartitionRow,
    StatisticsRow,
    StatusRow,
)
from tidemill.ingest.live_errors import ErrorFinder
from tidemill.ingest.machine import SourceMachine
from tidemill.ingest.service import Ingestion
from tidemill.ingest.status import RunState
from tidemill.reclock.progress import all_bindings
from tidemill.sources.offsets import Offsets


class LiveSources:
    def __init__(self, ingestion: Ingestion, catalog: Catalog) -> None:
        self._ingestion = ingestion
        self._catalog = catalog
        self._finder = ErrorFinder()

    def _machines(self) -> list[tuple[str, SourceMachine]]:
        return [(item.id, machine) for item, _, machine in self._ingestion.all() if machine is not None]

    def bindings(self) -> Sequence[BindingRow]:
        return [
            BindingRow(source_id, time, partition, value, position)
            for source_id, machine in self._machines()
            for time, partition, value, position in all_bindings(machine.remap.shard, machine.source.gauge)
        ]

    def statuses(self) -> Sequence[StatusRow]:
        rows: list[StatusRow] = []
        for item, report, machine in self._ingestion.all():
            status = report.status
            # Waiting is normal for a CDCv2 stream: it is not reported as an error of the source.
            waits = [] if machine is None else machine.stalls()
            more = {"detail": status.detail, "hint": status.hint, "waits": "; ".join(waits) or None}
            if status.state is RunState.RUNNING and report.slow is not None:
                every = f"{item.interval_ms / 1000:g} s"
                more["detail"] = f"Its last tick took {report.slow:.1f} s; it is due every {every}."
            details = {name: text for name, text in more.items() if text is not None}
            changed = datetime.fromtimestamp(status.since / 1000, UTC)
            rows.append(StatusRow(item.id, changed, status.state.value, status.error, details or None))
        return rows

    def errors(self) -> Sequence[ErrorsRow]:
        state = self._catalog.state
        rows: list[ErrorsRow] = []
        shards: set[str] = set()
        for item, _, machine in self._ingestion.all():
            if machine is None:
                continue
            by_shard = {feed.rows.id: feed.rows for feed in machine.feeds}
            shards |= by_shard.keys()
            for relation in (item, *state.source_tables(item.id)):
                shard = by_shard.get(relation.shard or "")
                complete = 0 if shard is None else machine.complete(shard.id)
                if shard is None or not complete:
                    continue
                beside = state.dead_letters(relation)
                letters = None if beside is None else by_shard.get(beside.shard)
                found = self._finder.find(shard, complete)
                # Dead letters have no retractions: updates are rows.
                aside = None if letters is None else sum(part.rows for part in letters.parts)
                if found.count or aside is not None:
                    rows.append(ErrorsRow(item.id, relation.id, found, aside))
        self._finder.keep(shards)
        return rows

    def statistics(self) -> Sequence[StatisticsRow]:
        rows: list[StatisticsRow] = []
        for item, report, machine in self._ingestion.all():
            s = report.statistics
            known = None if machine is None or machine.upstream is None else _total(machine.upstream)
            committed = None if machine is None else _total(machine.ingested)
            snapshot = SnapshotFigure() if machine is None else snapshot_figure(machine)
            lag = None if machine is None else machine.source.lag(machine.ingested)
            rows.append(
                StatisticsRow(
                    source_id=item.id,
                    messages_received=s.messages_received,
                    bytes_received=s.bytes_received,
                    updates_staged=s.updates_staged,
                    updates_committed=s.updates_committed,
                    offset_known=known,
                    offset_committed=committed,
                    snapshot_records_known=snapshot.records_known,
                    snapshot_records_staged=snapshot.records_read,
                    snapshot_bytes_known=snapshot.bytes_known,
                    snapshot_bytes_staged=snapshot.bytes_read,
                    lag_bytes=None if lag is None else lag.bytes,
                    lag_ms=None if lag is None or lag.seconds is None else int(lag.seconds * 1000),
                    records_indexed=None if machine is None else _indexed(machine),
                    bytes_indexed=s.state_bytes,
                    rehydration_ms=s.rehydration_ms,
                )
            )
        return rows

    def partitions(self) -> Sequence[PartitionRow]:
        rows: list[PartitionRow] = []
        for source_id, machine in self._machines():
            done, known = machine.ingested.as_dict(), machine.upstream
            for partition in done.keys() | (known.as_dict().keys() if known else set()):
                name = None if partition is None else str(partition)
                there = None if known is None else known[partition]
                rows.append(PartitionRow(source_id, name, there, done.get(partition, 0)))
        return rows

    def hydration(self) -> Sequence[HydrationRow]:
        return [
            HydrationRow(item.id, machine is not None and machine.hydrated)
            for item, _, machine in self._ingestion.all()
        ]

    def frontiers(self) -> Sequence[FrontierRow]:
        state = self._catalog.state
        rows: list[FrontierRow] = []
        for item, _, machine in self._ingestion.all():
            if machine is None:
                continue
            by_shard = {feed.rows.id: feed.rows for feed in machine.feeds}
            named = [(item.id, item.shard), *((t.id, t.shard) for t in state.source_tables(item.id))]
            rows += [
                FrontierRow(item_id, by_shard[shard].since, machine.complete(shard))
                for item_id, shard in named
                if shard is not None and shard in by_shard
            ]
            if item.id in state.items:
                rows.append(
                    FrontierRow(state.progress(item.id).id, machine.remap.shard.since, machine.readable)
                )
        return rows


@dataclass(frozen=True, slots=True)
class SnapshotFigure:
    """What the first catch-up must read, and how much of it has been read; None is what is not known."""

    records_known: int | None = None
    records_read: int | None = None
    bytes_known: int | None = None
    bytes_read: int | None = None


def snapshot_figure(machine: SourceMachine) -> SnapshotFigure:
    """Records before the source's beginning (removed by retention, or excluded by START OFFSET) do not
    count."""
    found = machine.source.snapshot_progress()
    if found is not None:
        return SnapshotFigure(found.rows_known, found.rows_read, found.bytes_known, found.bytes_read)
    first = machine.first
    if first is None or machine.source.counts != "records":
        return SnapshotFigure()
    before, done = _total(machine.source.start), machine.ingested
    read = sum(min(end, done[p]) for p, end in first.items()) - before
    return SnapshotFigure(_total(first) - before, read)


def _indexed(machine: SourceMachine) -> int | None:
    """The number of keys in its upsert state: each has a row or an error in the collection now. None if it
    keeps no such state."""
    keyed = [feed.rows.parts for feed in machine.feeds if machine.source.outputs[feed.output].key is not None]
    # Diffs are only 1 and -1, because the key is part of the row.
    return sum(part.rows - 2 * part.retractions for parts in keyed for part in parts) if keyed else None


def _total(offsets: Offsets) -> int:
    return sum(value for _, value in offsets.items())
