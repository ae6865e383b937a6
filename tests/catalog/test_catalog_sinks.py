"""Sinks in the catalog: their JSON, what they keep from being dropped, and writers of one stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemill.catalog import codec
from tidemill.catalog.connection_ops import CreateConnectionOp
from tidemill.catalog.items import BUILTINS, Sink
from tidemill.catalog.ops import AddColumnOp, CreateDatabaseOp, CreateTableOp, DropOp, Op, RenameOp, apply_all
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.catalog.state import CatalogState
from tidemill.errors import DependentObjects, DuplicateObject, InvalidValue, TidemillError
from tidemill.sinks.definition import KAFKA, Definition
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4, nullable=False),))


def _apply(state: CatalogState, *ops: Op, time: int = 7) -> CatalogState:
    return apply_all(state, ops, time=time)


def create(name: str, relation: str = "u3", *, target: str = "here", **more: Any) -> CreateSinkOp:
    given: dict[str, Any] = {"desc": DESC, "as_of": None, "snapshot": True, "connections": ("u5",), **more}
    return CreateSinkOp("u2", name, "kafka", target, "{}", f"CREATE SINK {name}", relation, **given)


@pytest.fixture
def state() -> CatalogState:
    """u1 materialize, u2 public, u3 t, u4 other, u5 connection k, u6 sink s from t."""
    return _apply(
        CatalogState(BUILTINS.items, next_id=1, time=0),
        CreateDatabaseOp("materialize"),
        CreateTableOp("u2", "t", DESC),
        CreateTableOp("u2", "other", DESC),
        CreateConnectionOp("u2", "k", "kafka", "{}"),
        create("s"),
    )


def test_a_sink_and_its_json(state: CatalogState) -> None:
    sink = state.get("u6", Sink)
    assert (sink.as_of, sink.depends_on, state.sinks()) == (7, ("u3", "u5"), [sink])
    assert codec.decode("u6", codec.encode(sink)) == sink
    assert _apply(state, RenameOp("u6", "n")).get("u6", Sink).name == "n"
    assert state.describe(sink) == "sink s"
    with pytest.raises(DuplicateObject, match='sink "s" already exists'):
        _apply(state, CreateTableOp("u2", "s", DESC))


def test_a_definition_and_its_json(state: CatalogState) -> None:
    definition = Definition(
        KAFKA, "avro", topic="t", schema_id=3, share=(1, 4), connection="u5", registry="u9"
    )
    sink = state.get("u6", Sink)
    assert Definition.of(replace(sink, definition=definition.to_json())) == definition
    # A share is of the same stream as the others.
    assert definition.target == Definition(KAFKA, "avro", topic="t", connection="u5").target


def test_what_it_needs_stays(state: CatalogState) -> None:
    for item in ("u3", "u5"):
        with pytest.raises(DependentObjects, match="depend on it") as e:
            _apply(state, DropOp(item))
        assert "sink s depends on" in (e.value.detail or "")
        assert "u6" not in _apply(state, DropOp(item, cascade=True)).items
    assert "u3" in _apply(state, DropOp("u6")).items
    assert {"u3", "u5", "u6"} <= state.needed_by("u6").items.keys()


def test_writers_of_one_stream_begin_together(state: CatalogState) -> None:
    beside = _apply(state, create("beside"), time=50)
    assert beside.get("u7", Sink).as_of == 7
    assert _apply(state, create("apart", target="there"), time=50).get("u7", Sink).as_of == 50
    assert _apply(state, create("dated", target="there", as_of=20), time=50).get("u7", Sink).as_of == 20
    assert _apply(state, create("same", as_of=7), time=50).get("u7", Sink).as_of == 7


@pytest.mark.parametrize(
    ("op", "differs"),
    [
        (create("w", "u4"), "It writes another relation."),
        (create("w", snapshot=False), "It was made with SNAPSHOT = true."),
        (create("w", as_of=20), "Its stream begins at 7."),
        (create("w", desc=RelationDesc((*DESC.columns, Column("b", INT4)))), "It writes other columns"),
    ],
)
def test_another_history_is_refused(state: CatalogState, op: CreateSinkOp, differs: str) -> None:
    with pytest.raises(InvalidValue, match='sink "s" writes another history to the same place') as e:
        _apply(state, op)
    assert differs in (e.value.detail or "")


def test_what_is_gone_meanwhile(state: CatalogState) -> None:
    for op in (create("w", "u40"), create("w", connections=("u40",), target="there")):
        with pytest.raises(TidemillError, match="does not exist"):
            _apply(state, op)


def test_a_column_that_is_added_is_not_the_sinks(state: CatalogState) -> None:
    altered = _apply(state, AddColumnOp("u3", Column("b", INT4)))
    assert altered.get("u6", Sink).desc == DESC
