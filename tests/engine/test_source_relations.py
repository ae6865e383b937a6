"""The system relations about sources, from a catalog state and what is told of sources that run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tidemill.arrangements import ArrangementFacts
from tidemill.catalog.items import BUILTINS
from tidemill.catalog.ops import CreateDatabaseOp, CreateTableOp, CreateViewOp, apply_all
from tidemill.catalog.source_ops import CreateSourceOp, CreateSourceTable, NewSubsource
from tidemill.catalog.state import CatalogState
from tidemill.engine.audit.log import AuditEvent
from tidemill.engine.relations.durable_subscriptions import DurableRow
from tidemill.engine.relations.materialized_views import ViewRow
from tidemill.engine.relations.pg.session_objects import PreparedRow
from tidemill.engine.relations.sinks import SinkRow
from tidemill.engine.relations.sources import (
    BindingRow,
    ErrorsRow,
    FrontierRow,
    HydrationRow,
    PartitionRow,
    SourcesView,
    StatisticsRow,
    StatusRow,
)
from tidemill.engine.relations.subscriptions import SubscriptionRow
from tidemill.engine.relations.system import (
    SYSTEM_RELATIONS,
    SYSTEM_RELATIONS_BY_ID,
    SessionRow,
    Situation,
    SystemRelation,
)
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.variables import VariableRow
from tidemill.ingest.live_errors import NO_ERRORS, LiveError, LiveErrors
from tidemill.persist.shard import Shard
from tidemill.sources.message_errors import BAD_MESSAGES_HINT
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import INT8, UINT8, Column, RelationDesc, for_spark

ROWS = RelationDesc((Column("counter", INT8, nullable=False),))
PROGRESS = RelationDesc((Column("offset", UINT8, nullable=False),))
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Told:
    """Two sources of which u3 is well and u5 is not; u99 was dropped a moment ago."""

    def bindings(self) -> Sequence[BindingRow]:
        return [BindingRow("u3", 1000, None, 5), BindingRow("u3", 2000, "7", 2**64 - 1)]

    def statuses(self) -> Sequence[StatusRow]:
        bad = StatusRow("u5", AT, "stalled", "no such host", {"hint": "Look.", "detail": "It is gone."})
        return [StatusRow("u3", AT, "running"), bad, StatusRow("u99", AT, "running")]

    def statistics(self) -> Sequence[StatisticsRow]:
        return [
            StatisticsRow("u3", 10, 80, 10, 9, 2**63, 9, 4, 4, 7, 700, 1500),
            StatisticsRow("u5", 0, 0, 0, 0, None, None),
        ]

    def errors(self) -> Sequence[ErrorsRow]:
        first = LiveError("Decode error: x", 'Topic "t", partition 7, offset 12.', 2000)
        other = LiveError("Envelope error: y", None, 2001, 3)
        return [
            ErrorsRow("u3", "u3", LiveErrors(4, (first, other))),
            ErrorsRow("u5", "u7", LiveErrors(1, (first,)), 2),
            ErrorsRow("u5", "u8", NO_ERRORS, 5),
            ErrorsRow("u5", "dropped", LiveErrors(1, (first,))),
        ]

    def partitions(self) -> Sequence[PartitionRow]:
        return [PartitionRow("u3", "7", 2**64 - 1, 9), PartitionRow("u5", None, None, 0)]

    def hydration(self) -> Sequence[HydrationRow]:
        return [HydrationRow("u3", True), HydrationRow("u5", False)]

    def frontiers(self) -> Sequence[FrontierRow]:
        return [FrontierRow("u3", 500, 2001)]


class Truncated(Told):
    """An error that is not about a message, so that no dead letters would help."""

    def errors(self) -> Sequence[ErrorsRow]:
        return [ErrorsRow("u3", "u3", LiveErrors(1, (LiveError("truncated", "Create it again.", 2000),)))]


class NoSources:
    """Nothing is told."""

    def bindings(self) -> Sequence[BindingRow]:
        return ()

    def statuses(self) -> Sequence[StatusRow]:
        return ()

    def errors(self) -> Sequence[ErrorsRow]:
        return ()

    def statistics(self) -> Sequence[StatisticsRow]:
        return ()

    def partitions(self) -> Sequence[PartitionRow]:
        return ()

    def hydration(self) -> Sequence[HydrationRow]:
        return ()

    def frontiers(self) -> Sequence[FrontierRow]:
        return ()


@dataclass
class Now:
    catalog: CatalogState
    sources: SourcesView
    database: str = "d"

    def sessions(self) -> Sequence[SessionRow]:
        return []

    def audit_events(self) -> Sequence[AuditEvent]:
        return []

    def sinks(self) -> Sequence[SinkRow]:
        return []

    def shards(self) -> Sequence[Shard]:
        return []

    def frontiers(self) -> Sequence[FrontierRow]:
        return [FrontierRow("u9", 1, 2)]

    def views(self) -> Sequence[ViewRow]:
        return []

    def subscriptions(self) -> Sequence[SubscriptionRow]:
        return []

    def arrangements(self) -> Sequence[ArrangementFacts]:
        return []

    def durable(self) -> Sequence[DurableRow]:
        return []

    def variables(self) -> Iterable[VariableRow]:
        return []

    def prepared(self) -> Sequence[PreparedRow]:
        return []

    def portals(self) -> Portals:
        return Portals()


def catalog() -> CatalogState:
    """u3 source c, u4 its progress; u5 source h, u6 its progress, u7 subsource bids, u8 table lots; u9 a
    table, u10 a view over a progress relation."""
    state = apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)
    s = "u2"
    one = CreateSourceOp(s, "c", "load-generator", "{}", "", ROWS, "upsert", RelationDesc(()), PROGRESS, 1000)
    bids = NewSubsource("bids", "bids", ROWS, "none")
    many = CreateSourceOp(
        s, "h", "load-generator", "{}", "", None, None, RelationDesc(()), PROGRESS, 2000, "far", (bids,), 9000
    )
    lots = CreateSourceTable(s, "lots", "u5", "auctions", ROWS, "none")
    rest = [CreateTableOp(s, "t", ROWS), CreateViewOp(s, "v", "SELECT 1", ROWS, ("u4",))]
    return apply_all(state, [one, many, lots, *rest], time=2)


def rows(name: str, told: SourcesView | None = None) -> list[dict[str, Any]]:
    (found,) = [r for (_, n), r in SYSTEM_RELATIONS.items() if n == name]
    return found.table(cast(Situation, Now(catalog(), told or Told()))).to_pylist()


def test_sources() -> None:
    found = {r["name"]: r for r in rows("mz_sources")}
    assert list(found) == ["c", "h", "bids"]
    assert found["c"] == {
        "id": "u3",
        "oid": 16387,
        "schema_id": "u2",
        "name": "c",
        "type": "load-generator",
        "envelope_type": "upsert",
        "source_id": None,
        "shard_id": "u3-2",
        "remap_shard_id": "u3-2-remap",
        "timestamp_interval_ms": 1000,
        "retain_history_ms": None,
    }
    assert (found["h"]["envelope_type"], found["h"]["shard_id"], found["h"]["source_id"]) == (
        None,
        None,
        None,
    )
    bids = found["bids"]
    assert (bids["type"], bids["source_id"], bids["remap_shard_id"]) == ("subsource", "u5", None)
    assert (bids["timestamp_interval_ms"], bids["retain_history_ms"]) == (2000, 9000)


def test_objects_and_progress() -> None:
    kinds = {r["name"]: r["type"] for r in rows("mz_objects") if r["id"].startswith("u")}
    assert kinds == {
        "c": "source",
        "c_progress": "source_progress",
        "h": "source",
        "far": "source_progress",
        "bids": "source",
        "lots": "table",
        "t": "table",
        "v": "view",
    }
    assert rows("mz_source_progresses") == [
        {"id": "u4", "name": "c_progress", "source_id": "u3"},
        {"id": "u6", "name": "far", "source_id": "u5"},
    ]
    tables = {r["name"]: (r["source_id"], r["retain_history_ms"]) for r in rows("mz_tables")}
    assert tables == {"lots": ("u5", 9000), "t": (None, None)}
    depends = {(r["object_id"], r["referenced_object_id"]) for r in rows("mz_object_dependencies")}
    assert depends == {("u4", "u3"), ("u6", "u5"), ("u7", "u5"), ("u8", "u5"), ("u10", "u4")}
    kinds = {r["table_name"]: r["table_type"] for r in rows("tables") if r["table_schema"] == "public"}
    assert (kinds["c"], kinds["far"], kinds["lots"], kinds["v"]) == ("SOURCE", "SOURCE", "BASE TABLE", "VIEW")
    columns = [r for r in rows("mz_columns") if r["id"] in ("u4", "u5")]
    assert [(r["id"], r["name"], r["type"]) for r in columns] == [("u4", "offset", "uint8")]


def test_the_hint_of_an_error_fits_its_source() -> None:
    details = json.loads(rows("mz_source_statuses", Truncated())[0]["details"])
    assert details["detail"] == "Create it again." and details["hint"] == (
        "Queries of the relation fail. "
        "SELECT * FROM mz_internal.mz_source_errors lists what could not be read."
    )


def test_what_is_told() -> None:
    assert [tuple(r.values()) for r in rows("mz_source_bindings")] == [
        ("u3", 1000, None, 5, None),
        ("u3", 2000, "7", 2**64 - 1, None),
    ]
    assert [tuple(r.values()) for r in rows("mz_source_partitions")] == [
        ("u3", "7", 2**64 - 1, 9),
        ("u5", None, None, 0),
    ]
    statuses = [tuple(r.values()) for r in rows("mz_source_statuses")]
    well = json.loads(statuses[0][-1])
    assert statuses[0][:-1] == ("u3", "c", "load-generator", AT, "running", "Decode error: x")
    assert (well["errors"], well["detail"]) == (4, 'Topic "t", partition 7, offset 12.')
    assert well["hint"] == f"Queries of the relation fail. {BAD_MESSAGES_HINT}"
    # What keeps the source from going on comes first.
    ill = {"hint": "Look.", "detail": "It is gone."}
    assert [(*row[:-1], json.loads(row[-1])) for row in statuses[1:]] == [
        ("u5", "h", "load-generator", AT, "stalled", "no such host", ill),
        ("u7", "bids", "subsource", AT, "stalled", "no such host", {**ill, "errors": 1, "dead_letters": 2}),
        ("u8", "lots", "table", AT, "stalled", "no such host", {**ill, "dead_letters": 5}),
    ]
    first = ("Decode error: x", 'Topic "t", partition 7, offset 12.', "7", 12, 2000, 1)
    assert [tuple(r.values()) for r in rows("mz_source_errors")] == [
        ("u3", "u3", "c", *first),
        ("u3", "u3", "c", "Envelope error: y", None, None, None, 2001, 3),
        ("u5", "u7", "bids", *first),
    ]
    well, ill = rows("mz_source_statistics")
    assert (well["offset_known"], well["rehydration_latency"]["micros"]) == (2**63, 1_500_000)
    assert (well["records_indexed"], well["bytes_indexed"]) == (7, 700)
    assert (
        ill["offset_known"] is None and ill["rehydration_latency"] is None and ill["messages_received"] == 0
    )
    hydrated = {r["object_id"]: r["hydrated"] for r in rows("mz_hydration_statuses")}
    assert hydrated == {"u3": True, "u5": False, "u7": False, "u8": False}
    assert {r["object_id"]: r["write_frontier"] for r in rows("mz_frontiers")} == {"u3": 2001, "u9": 2}


@pytest.mark.parametrize("relation", SYSTEM_RELATIONS_BY_ID.values(), ids=lambda r: r.name)
def test_every_relation_is_as_it_says(relation: SystemRelation) -> None:
    table = relation.table(cast(Situation, Now(catalog(), NoSources())))
    assert table.schema.types == arrow_schema(for_spark(relation.desc)).types
    assert SYSTEM_RELATIONS[relation.schema, relation.name] is relation
