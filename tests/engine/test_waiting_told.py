"""Statements that wait for sources and views: what they tell meanwhile, and what they are stopped with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.reader import reader_of
from tidemill.catalog.items import MaterializedView, Source, SourceTable
from tidemill.engine.read import completeness, reading
from tidemill.engine.read.completeness import until_complete
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.reading import AsOfTime, choose_time
from tidemill.engine.read.waiting import Readiness, SourceFailed, explain
from tidemill.errors import Notice, QueryCanceled, TidemillError, UndefinedObject
from tidemill.ingest.status import Report, RunState
from tidemill.sources.contract import SnapshotProgress, UpstreamLost
from tidemill.types.model import RelationDesc

REFUSED = TidemillError(
    "the Kafka brokers cannot be reached: h:1", detail="Connection refused.", hint="See BROKERS."
)
SERIALIZABLE = "SET transaction_isolation = 'serializable' reads at the latest time that is complete."


def source(name: str) -> Source:
    none = RelationDesc()
    return Source(name, name, "s", "kafka", "{}", "", none, f"d-{name}", "none", none, f"r-{name}", 0, 1000)


def table_of(name: str, source: str) -> SourceTable:
    return SourceTable(name, name, "s", source, name, RelationDesc(), f"d-{name}", "none", 0, subsource=False)


def view(name: str, *under: str) -> MaterializedView:
    return MaterializedView(name, name, "s", "", RelationDesc(), f"shard-{name}", 0, under)


@dataclass
class World:
    """Of each relation before which time it is complete, and its source's or its own report; a session."""

    until: dict[str, int] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    told: list[Notice] = field(default_factory=list)
    snapshot: SnapshotProgress | None = None
    begins_table: bool = False
    timeout: int = 20
    now: int = 100

    def stall(self, name: str, error: TidemillError = REFUSED) -> None:
        self.reports.setdefault(name, Report()).become(RunState.STALLED, error)

    def readable(self, item: Any) -> int:
        if item.name not in self.until:
            raise UndefinedObject(f'relation "{item.name}" does not exist')
        return self.until[item.name]

    def report(self, item: Any) -> Report:
        return self.reports.setdefault(item.name, Report())

    def machine(self, item: Any) -> Any:
        upstream = SimpleNamespace(counts="records", snapshot_progress=lambda: self.snapshot)
        hydrated = self.until[item.name] > 0
        return SimpleNamespace(hydrated=hydrated, behind=7, source=upstream, begins_table=self.begins_table)

    def readiness(self) -> Readiness:
        relations = cast(
            Any,
            SimpleNamespace(
                readable=self.readable,
                report=self.report,
                status=lambda item: self.report(item).status,
                machine=self.machine,
                hurry=lambda _: None,
            ),
        )
        catalog = SimpleNamespace(state=SimpleNamespace(items=self.items))
        return Readiness(relations, relations, relations, cast(Any, catalog))

    def reader(self) -> Reader:
        oracle = SimpleNamespace(read_ts=lambda: self.now, now=lambda: self.now)
        return reader_of(oracle, timeout=self.timeout, notice=self.told.append, readiness=self.readiness())


def stopped(world: World, *inputs: Any, at: int = 50) -> QueryCanceled:
    with pytest.raises(QueryCanceled) as e:
        asyncio.run(until_complete(world.reader(), inputs, at))
    assert (e.value.primary, e.value.sqlstate) == ("canceling statement due to statement timeout", "57014")
    return e.value


def test_the_source_and_its_reason_are_named() -> None:
    world = World({"a": 60, "orders": 40})
    world.stall("orders")
    error = stopped(world, source("a"), source("orders"))
    assert error.detail == (
        'It was waiting for "orders", which is stalled: the Kafka brokers cannot be reached: h:1. '
        "Connection refused."
    )
    assert error.hint == f"See BROKERS. {SERIALIZABLE}"


def test_a_table_is_named_with_its_source() -> None:
    world = World({"t": 0})
    world.stall("t", TidemillError("gone"))
    error = stopped(world, table_of("t", "s"), at=0)
    assert error.detail == 'It was waiting for "t", whose source is stalled: gone.'
    # Nothing of it can be read: no other isolation helps.
    assert error.hint == "SELECT * FROM mz_internal.mz_source_statuses tells how the sources are."


def test_one_that_is_only_late() -> None:
    error = stopped(World({"orders": 40}), source("orders"))
    assert error.detail == 'It was waiting for "orders" to be complete at 50. It is complete before 40 now.'
    assert error.hint == SERIALIZABLE
    error = stopped(World({"orders": 40}, begins_table=True), source("orders"))
    assert error.detail is not None
    assert error.detail.endswith("now. A table that was added to its source is read meanwhile.")


def test_times_are_shown_in_both_forms() -> None:
    at = 1795011172000
    error = stopped(World({"orders": at - 40}), source("orders"), at=at)
    assert error.detail == (
        'It was waiting for "orders" to be complete at 1795011172000 (2026-11-18 14:12:52+00). '
        "It is complete before 1795011171960 (2026-11-18 14:12:51.96+00) now."
    )
    # Those of another timeline are numbers of its own.
    theirs = replace(source("orders"), timeline="upstream")
    assert "(" not in (stopped(World({"orders": at - 40}), theirs, at=at).detail or "(")


def test_one_that_has_not_caught_up_yet() -> None:
    error = stopped(World({"orders": 0}), source("orders"), at=0)
    assert error.detail == (
        'It was waiting for "orders" to catch up with its upstream for the first time. '
        "It can be read from then on. 7 records are still to be read."
    )


def test_one_whose_snapshot_is_read() -> None:
    world = World({"orders": 0}, snapshot=SnapshotProgress(5000, 2000, 10 << 20, 4 << 20))
    error = stopped(world, source("orders"), at=0)
    assert error.detail == (
        'It was waiting for "orders" to be read for the first time: 40 % of the snapshot is there. '
        "2000 rows are read, of about 5000; 4.0 MB, of about 10.0 MB."
    )
    # Not all of it before it is.
    world.snapshot = SnapshotProgress(None, 2000, 10 << 20, 10 << 20)
    error = stopped(world, source("orders"), at=0)
    assert "90 % of the snapshot is there. 2000 rows are read; 10.0 MB" in (error.detail or "")
    # Of a table that was added later; the others have their rows.
    world = World({"t": 0, "orders": 40}, begins_table=True, snapshot=world.snapshot)
    assert "90 % of the snapshot is there" in (stopped(world, table_of("t", "s"), at=0).detail or "")
    assert "90 %" not in (stopped(world, source("orders")).detail or "")


def test_the_stalled_one_has_the_hint_and_not_all_are_named() -> None:
    names = ["a", "b", "c", "d", "e"]
    world = World(dict.fromkeys(names, 40))
    world.stall("c")
    error = stopped(world, *map(source, names))
    lines = (error.detail or "").split("\n")
    assert [line.split('"')[1] for line in lines[:3]] == ["a", "b", "c"]
    assert lines[3] == "And for 2 more."
    assert error.hint == f"See BROKERS. {SERIALIZABLE}"


def test_a_view_names_the_source_that_it_reads() -> None:
    items = {"v": view("v", "w"), "w": view("w", "orders", "ready"), "orders": table_of("orders", "s")}
    world = World({"v": 40, "w": 40, "orders": 40, "ready": 60}, items={**items, "ready": source("ready")})
    world.stall("orders")
    world.stall("ready")
    error = stopped(world, items["v"])
    assert (error.detail or "").startswith(
        'It was waiting for materialized view "v", which reads "orders", whose source is stalled: the Kafka'
    )


def test_a_view_that_is_stalled_itself() -> None:
    world = World({"v": 40})
    world.stall("v", TidemillError("division by zero"))
    error = stopped(world, view("v"))
    assert error.detail == ('It was waiting for materialized view "v", which is stalled: division by zero.')


def test_a_view_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "MAX_VIEW_SECONDS", 0.0)
    world = World({"v": 40, "orders": 40}, items={"orders": source("orders")})
    with pytest.raises(TidemillError, match='materialized view "v" is not complete at 50') as e:
        asyncio.run(until_complete(world.reader(), [view("v", "orders")], 50))
    assert e.value.detail == "It is complete before 40."
    world.stall("orders")
    with pytest.raises(TidemillError) as e:
        asyncio.run(until_complete(world.reader(), [view("v", "orders")], 50))
    assert 'which reads "orders", which is stalled: the Kafka brokers' in str(e.value.detail)


def test_a_cancel_is_told_too() -> None:
    world = World({"orders": 40}, timeout=0)
    reader = world.reader()

    async def go() -> None:
        waiting = asyncio.ensure_future(until_complete(reader, [source("orders")], 50))
        await asyncio.sleep(0)
        reader.execution.interrupt.cancel()
        await waiting

    with pytest.raises(QueryCanceled, match="due to user request") as e:
        asyncio.run(go())
    assert e.value.detail is not None


def test_one_that_was_dropped_is_not_asked_any_more() -> None:
    error = QueryCanceled("canceling statement due to user request")
    explain(error, World().readiness(), [source("orders")], 50)
    assert error.detail is None


def test_notices_tell_what_is_new_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "NOTICE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(completeness, "POLL_SECONDS", 0.0)
    world = World({"orders": 40}, timeout=0)
    reader = world.reader()

    async def go() -> None:
        waiting = asyncio.ensure_future(until_complete(reader, [source("orders")], 50))
        reasons = [f"reason {n}" for n in range(completeness.MAX_NOTICES + 3)]
        while not world.told:
            await asyncio.sleep(0)
        for reason in [*reasons, *reasons]:
            world.stall("orders", TidemillError(reason))
            for _ in range(20):
                await asyncio.sleep(0)
        world.until["orders"] = 60
        await waiting

    asyncio.run(go())
    texts = [n.text for n in world.told]
    assert texts[:2] == [
        'waiting for "orders" to be complete at 50',
        'waiting for "orders", which is stalled: reason 0',
    ]
    assert len(set(texts)) == len(texts) == completeness.MAX_NOTICES


@pytest.mark.parametrize("stalled", [False, True])
def test_a_time_to_come(stalled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "POLL_SECONDS", 0.001)
    world = World({"a": 60, "orders": 60})
    if stalled:
        world.stall("orders")
    with pytest.raises(QueryCanceled) as e:
        asyncio.run(
            choose_time(world.reader(), AsOfTime(10**9, at_least=False), [source("a"), source("orders")])
        )
    first, *rest = (e.value.detail or "").split("\n")
    assert first.startswith("It was waiting for time 1000000000. It is 100 now;")
    assert bool(rest) is stalled
    assert not stalled or rest[0].startswith('It was waiting for "orders", which is stalled: the Kafka')


ANEW = UpstreamLost('topic "t" was deleted and created anew', detail="Its id was 1.", hint="Drop the source.")


def failed(world: World, item: Any, at: int = 50) -> SourceFailed:
    with pytest.raises(SourceFailed) as e:
        asyncio.run(until_complete(world.reader(), [item], at))
    return e.value


def test_nobody_waits_for_a_source_that_has_failed_permanently() -> None:
    world = World({"orders": 40, "t": 0, "v": 30}, timeout=0)
    world.items["orders"] = source("orders")
    world.stall("orders", ANEW)
    world.stall("t", ANEW)
    error = failed(world, source("orders"))
    assert error.primary == 'source "orders" has failed: topic "t" was deleted and created anew'
    assert (error.detail, error.hint) == ("Its id was 1.", f"Drop the source. {SERIALIZABLE}")
    assert error.sqlstate == "58000"
    # Nothing of the table could ever be read.
    error = failed(world, table_of("t", "s"), at=0)
    assert error.primary == 'the source of "t" has failed: topic "t" was deleted and created anew'
    assert error.hint == "Drop the source."
    error = failed(world, view("v", "orders"))
    assert error.primary.startswith(
        'materialized view "v" is not complete: source "orders" has failed: topic'
    )
    # What it had is read without waiting.
    asyncio.run(until_complete(world.reader(), [source("orders"), view("v", "orders")], 29))
    assert not world.told


def test_a_source_that_may_go_on_is_waited_for() -> None:
    world = World({"orders": 40})
    world.stall("orders", ANEW)
    world.stall("orders")
    assert "which is stalled: the Kafka brokers" in str(stopped(world, source("orders")).detail)
    # Whatever nobody foresaw may pass.
    world.stall("orders", TidemillError("KeyError: 1"))
    assert "which is stalled: KeyError" in str(stopped(world, source("orders")).detail)
