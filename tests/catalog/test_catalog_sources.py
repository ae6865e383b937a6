"""Sources in the catalog: their shards, what belongs to them, generated names, formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill import failpoints
from tidemill.catalog import codec, sidecars, store
from tidemill.catalog.items import BUILTINS
from tidemill.catalog.ops import CreateDatabaseOp, CreateTableOp, DropOp, RenameOp, apply_all
from tidemill.catalog.source_ops import (
    CreateSourceOp,
    CreateSourceTable,
    LearnSource,
    NewDeadLetters,
    NewSubsource,
    SetSourceHistory,
    SetSourceInterval,
)
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import DependentObjects, DuplicateObject, SyntaxError_, TidemillError, UndefinedObject
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.shard import Shard
from tidemill.types.model import INT4, INT8, TEXT, UINT8, Column, RelationDesc

ROWS = RelationDesc((Column("counter", INT8, nullable=False),))
REMAP = RelationDesc((Column("partition", INT4, nullable=False),))
PROGRESS = RelationDesc((*REMAP.columns, Column("offset", UINT8, nullable=False)))


def counter(schema: str, name: str = "s", progress: str | None = None) -> CreateSourceOp:
    """A source that is a relation itself."""
    definition = '{"kind":"load generator"}'
    return CreateSourceOp(
        schema, name, "load-generator", definition, "", ROWS, "none", REMAP, PROGRESS, 1000, progress
    )


def house(schema: str, name: str = "h", *outputs: str) -> CreateSourceOp:
    """A source that feeds tables."""
    subsources = tuple(NewSubsource(o, o, ROWS, "none") for o in outputs)
    return replace(counter(schema, name), desc=None, envelope=None, subsources=subsources)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment.open(str(tmp_path / "data"))
    yield env
    failpoints.arm("")
    env.close()


def public(catalog: Catalog) -> str:
    return catalog.state.resolve_schema(["public"], "materialize").id


def empty() -> tuple[CatalogState, str]:
    state = apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)
    return state, state.resolve_schema(["public"], "d").id


def test_shards_come_before_names_and_begin_with_the_source(env: Environment) -> None:
    catalog = Catalog.open(env)
    state = catalog.transact([counter(public(catalog)), house(public(catalog), "h", "bids", "lots")])
    found = {c.shard: c for c in state.collections()}
    (s, h) = state.sources()
    assert s.created == h.created == state.time
    assert set(found) == {
        s.shard,
        s.remap_shard,
        h.remap_shard,
        *(t.shard for t in state.source_tables(h.id)),
    }
    assert h.shard is None and [t.name for t in state.source_tables(h.id)] == ["bids", "lots"]
    for collection in found.values():
        shard = Shard.open(env.blobs, collection.shard, epoch=None)
        assert shard.since == shard.upper == state.time
        assert shard.desc.names == collection.desc.names
        assert collection.remap == (shard.desc.names == ["partition"])


def test_a_table_of_a_source_begins_when_it_is_made(env: Environment) -> None:
    catalog = Catalog.open(env)
    first = catalog.transact([house(public(catalog))])
    (h,) = first.sources()
    later = catalog.transact([CreateSourceTable(public(catalog), "b", h.id, "bids", ROWS, "none")])
    (table,) = later.source_tables(h.id)
    shard = Shard.open(env.blobs, table.shard, epoch=None)
    assert first.time < later.time == table.created == shard.since == shard.upper
    with pytest.raises(DuplicateObject, match='"bids" of source "h" already has a table'):
        catalog.transact([CreateSourceTable(public(catalog), "c", h.id, "bids", ROWS, "none")])
    with pytest.raises(UndefinedObject):
        catalog.transact([CreateSourceTable(public(catalog), "c", table.id, "lots", ROWS, "none")])


def test_dropped_sources_take_all_their_shards_along(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog.open(env)
    state = catalog.transact([counter(public(catalog)), house(public(catalog), "h", "bids")])
    shards = [c.shard for c in state.collections()]
    catalog.transact([DropOp(s.id) for s in state.sources()])
    assert not catalog.state.collections() and not catalog.state.relations(public(catalog))
    assert catalog.sweep() == 0
    monkeypatch.setattr(store, "DROP_GRACE_SECONDS", 0.0)
    assert catalog.sweep() == len(shards) == 4
    for shard in shards:
        with pytest.raises(ShardMissing):
            Shard.open(env.blobs, shard, epoch=None)


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    env = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(env)
    schema = public(catalog)
    before = catalog.transact([counter(schema), house(schema, "h", "bids"), counter(schema, "gone")])
    catalog.transact([DropOp(before.sources()[-1].id)])
    env.close()
    env = Environment.open(str(tmp_path / "data"))
    again = Catalog.open(env)
    assert dict(again.state.items) == dict(catalog.state.items)
    again.maintain()
    for collection in again.state.collections():
        # Maintenance has not touched what the tick has not opened: its upper says what is bound.
        shard = Shard.open(env.blobs, collection.shard, epoch=None)
        assert shard.upper == before.time and shard.epoch == 1
    assert len({i.path.split("/")[1] for i in env.blobs.list("shards")}) == 3 + 4
    env.close()


def test_a_crash_leaves_shards_that_the_next_server_sweeps(tmp_path: Path) -> None:
    env = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(env)
    discard = Catalog._discard  # pyright: ignore[reportPrivateUsage]
    failpoints.arm("catalog.before_put=enospc")
    try:
        Catalog._discard = lambda self, created: None  # pyright: ignore[reportPrivateUsage]
        with pytest.raises((TidemillError, OSError)):
            catalog.transact([house(public(catalog), "h", "bids")])
    finally:
        Catalog._discard = discard  # pyright: ignore[reportPrivateUsage]
        failpoints.arm("")
    assert not catalog.state.sources()
    env.close()
    env = Environment.open(str(tmp_path / "data"))
    again = Catalog.open(env)
    again.transact([counter(public(again))])
    again.sweep()
    named = {c.shard for c in again.state.collections()}
    assert {i.path.split("/")[1] for i in env.blobs.list("shards")} == {"catalog", "clock", "txns", *named}
    env.close()


def test_a_full_disk_makes_no_half_source(env: Environment) -> None:
    catalog = Catalog.open(env)
    failpoints.arm("catalog.before_put=enospc")
    with pytest.raises((TidemillError, OSError)):
        catalog.transact([house(public(catalog), "h", "bids", "lots")])
    assert not catalog.state.sources()
    assert {i.path.split("/")[1] for i in env.blobs.list("shards")} == {"catalog", "clock", "txns"}
    catalog.transact([house(public(catalog), "h", "bids", "lots")])


def test_listeners_hear_of_every_change_in_order(env: Environment) -> None:
    catalog = Catalog.open(env)
    heard: list[tuple[CatalogState, CatalogState]] = []
    catalog.on_change(lambda old, new: heard.append((old, new)))
    catalog.transact([counter(public(catalog))])
    with pytest.raises(DuplicateObject):
        catalog.transact([counter(public(catalog))])
    catalog.transact([DropOp(catalog.state.sources()[0].id)])
    assert [len(new.sources()) for _, new in heard] == [1, 0]
    assert heard[0][1] is heard[1][0] and heard[1][1] is catalog.state


def test_progress_names_step_aside() -> None:
    state, schema = empty()
    taken = [CreateTableOp(schema, n, ROWS) for n in ("s_progress", "s_progress1")]
    state = apply_all(state, [*taken, counter(schema)], time=2)
    assert state.progress(state.sources()[0].id).name == "s_progress2"
    # Also for a subsource of its own.
    state = apply_all(state, [house(schema, "h", "h_progress")], time=3)
    assert state.progress(state.sources()[1].id).name == "h_progress1"
    # A rename of the source leaves it as it is.
    state = apply_all(state, [RenameOp(state.sources()[0].id, "t")], time=4)
    assert state.progress(state.sources()[0].id).name == "s_progress2"


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "日" * 85])
def test_progress_names_fit(name: str) -> None:
    state, schema = empty()
    state = apply_all(state, [counter(schema, name)], time=2)
    progress = state.progress(state.sources()[0].id).name
    assert len(progress.encode()) <= 255 and progress.endswith("_progress")
    assert name.startswith(progress.removesuffix("_progress"))


def test_names_are_checked_together() -> None:
    state, schema = empty()
    for op in (
        counter(schema, "s", progress="s"),
        house(schema, "h", "a", "a"),
        house(schema, "h", "h"),
        replace(house(schema, "h", "a"), progress="a"),
    ):
        with pytest.raises(DuplicateObject, match="already exists") as caught:
            apply_all(state, [op], time=2)
        assert caught.value.sqlstate == "42P07"
    with pytest.raises(SyntaxError_):
        apply_all(state, [counter(schema, "s", progress="p" * 256)], time=2)
    with pytest.raises(DuplicateObject, match='column "counter" specified more than once'):
        twice = RelationDesc(ROWS.columns * 2)
        apply_all(state, [replace(counter(schema), desc=twice)], time=2)


def test_options_change() -> None:
    state, schema = empty()
    state = apply_all(state, [counter(schema)], time=2)
    (source,) = state.sources()
    changes = [SetSourceHistory(source.id, 5000), SetSourceInterval(source.id, 2000)]
    state = apply_all(state, changes, time=3)
    assert state.sources() == [replace(source, retain_history_ms=5000, interval_ms=2000)]
    state = apply_all(state, [SetSourceHistory(source.id, None)], time=4)
    assert state.sources()[0].retain_history_ms is None
    with pytest.raises(UndefinedObject):
        apply_all(state, [SetSourceInterval(state.progress(source.id).id, 2000)], time=5)


def test_what_was_found_out_is_kept_and_not_changed() -> None:
    state, schema = empty()
    lacks = json.dumps({"topic": "t", "topic_id": None})
    state = apply_all(state, [replace(counter(schema), definition=lacks)], time=2)
    (source,) = state.sources()
    for time in (3, 4):
        state = apply_all(state, [LearnSource(source.id, {"topic_id": "A"})], time=time)
        (after,) = state.sources()
        assert json.loads(after.definition) == {"topic": "t", "topic_id": "A"}
        assert after == replace(source, definition=after.definition)
    with pytest.raises(TidemillError, match="reads another upstream than before") as told:
        apply_all(state, [LearnSource(source.id, {"topic_id": "B"})], time=5)
    assert told.value.detail == "Its topic id was A; now it is B."
    # But for what changes upstream without harm.
    for marks in ({"k": 1}, {"k": 2}):
        state = apply_all(state, [LearnSource(source.id, {"marks": marks})], time=6)
        assert json.loads(state.sources()[0].definition)["marks"] == marks


@pytest.mark.parametrize(
    ("value", "kind"), [({"format": "json"}, 0), ({"format": "json", "components": 2}, 2)]
)
def test_what_a_stream_must_remember_has_its_kind_of_times(value: dict[str, object], kind: int) -> None:
    spec = {"envelope": {"kind": "materialize"}, "value": value}
    for definition in ({"kind": "files", "output": spec}, {"kind": "kafka", "outputs": [spec]}, spec):
        assert sidecars.kind_of(json.dumps(definition)) == kind
    assert sidecars.kind_of(None) == 0
    columns = sidecars.stash_desc(ROWS, kind).columns
    assert [c.name for c in columns if c.name.startswith("t")] == [f"t{n}" for n in range(max(kind, 1))]


LETTERS = RelationDesc((Column("error", TEXT, nullable=False),))


def topic_table(schema: str, source: str, name: str, letters: str | None) -> CreateSourceTable:
    made = NewDeadLetters("topic", LETTERS, letters, {"name": "topic", "dead_letters": True})
    return CreateSourceTable(
        schema, name, source, "topic", ROWS, "none", {"name": "topic"}, "", dead_letters=made
    )


def test_dead_letters_come_and_go_with_their_source_or_table() -> None:
    state, schema = empty()
    made = replace(counter(schema), dead_letters=NewDeadLetters("topic#2", LETTERS))
    state = apply_all(state, [made, house(schema)], time=2)
    s, h = state.sources()
    (letters,) = state.source_tables(s.id)
    assert (letters.name, letters.output, letters.owner) == ("s_dead_letters", "topic#2", s.id)
    state = apply_all(state, [topic_table(schema, h.id, "t", None)], time=3)
    state = apply_all(state, [topic_table(schema, h.id, "u", "bad")], time=4)
    tables = state.source_tables(h.id)
    assert [t.name for t in tables] == ["t", "t_dead_letters", "u", "bad"]
    assert [t.output for t in tables] == ["topic", "topic#2", "topic#3", "topic#4"]
    assert [json.loads(t.definition or "")["name"] for t in tables] == [t.output for t in tables]
    t, of_t, u, _ = tables
    assert of_t.owner == t.id and of_t.created == t.created and t.owner is None
    assert [codec.decode(i.id, codec.encode(i)) for i in tables] == tables
    with pytest.raises(
        DependentObjects, match="cannot drop subsource t_dead_letters because table t requires"
    ):
        apply_all(state, [DropOp(of_t.id)], time=5)
    state = apply_all(state, [DropOp(t.id)], time=5)
    assert [i.name for i in state.source_tables(h.id)] == ["u", "bad"]
    state = apply_all(state, [DropOp(s.id), DropOp(u.id), DropOp(h.id)], time=6)
    assert not state.collections()


def test_names_of_dead_letters() -> None:
    state, schema = empty()
    state = apply_all(state, [CreateTableOp(schema, "s_dead_letters", ROWS), house(schema)], time=2)
    unnamed = NewDeadLetters("topic#2", LETTERS)
    state = apply_all(state, [replace(counter(schema), dead_letters=unnamed)], time=3)
    (letters,) = state.source_tables(state.sources()[1].id)
    assert letters.name == "s_dead_letters1"
    h = state.sources()[0].id
    for taken in ("h", "t"):
        with pytest.raises(DuplicateObject, match=f'"{taken}" already exists'):
            apply_all(state, [topic_table(schema, h, "t", taken)], time=4)
        with pytest.raises(DuplicateObject, match=f'"{taken}" already exists'):
            named = replace(unnamed, name=taken)
            apply_all(state, [replace(counter(schema, "t"), dead_letters=named)], time=4)
