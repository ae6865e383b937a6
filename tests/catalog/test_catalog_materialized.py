"""Materialized views in the catalog: their JSON, what they keep from being dropped or replaced, and what is
left of a catalog when only they matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.catalog import codec
from tidemill.catalog.items import BUILTINS, MaterializedView, Reference
from tidemill.catalog.materialized_ops import CreateMaterializedViewOp, SetViewHistory
from tidemill.catalog.ops import (
    CreateDatabaseOp,
    CreateTableOp,
    CreateViewOp,
    DropOp,
    Op,
    RenameOp,
    apply_all,
)
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import DependentObjects, DuplicateObject, UndefinedObject
from tidemill.persist.environment import Environment
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4),))


def _apply(state: CatalogState, *ops: Op) -> CatalogState:
    return apply_all(state, ops, time=7)


@pytest.fixture
def state() -> CatalogState:
    """u1 materialize, u2 public, u3 t, u4 other, u5 view v on t, u6 materialized view m on v and t."""
    references = (Reference(("v",), "u5", 1), Reference(("t",), "u3", 1))
    return _apply(
        CatalogState(BUILTINS.items, next_id=1, time=0),
        CreateDatabaseOp("materialize"),
        CreateTableOp("u2", "t", DESC),
        CreateTableOp("u2", "other", DESC),
        CreateViewOp("u2", "v", "SELECT a FROM t", DESC, (), (Reference(("t",), "u3"),)),
        CreateMaterializedViewOp("u2", "m", "SELECT v.a FROM v, t", DESC, references, 5000),
    )


def test_a_view_and_its_json(state: CatalogState) -> None:
    view = state.get("u6", MaterializedView)
    assert (view.shard, view.created, view.depends_on) == ("u6-7", 7, ("u5", "u3"))
    assert codec.decode("u6", codec.encode(view)) == view
    assert [c.shard for c in state.collections()] == ["u3-7", "u4-7", "u6-7"]
    changed = _apply(state, SetViewHistory("u6", None), RenameOp("u6", "n"), RenameOp("u3", "s"))
    again = changed.get("u6", MaterializedView)
    assert (again.name, again.retain_history_ms, again.references) == ("n", None, view.references)


def test_what_it_reads_stays(state: CatalogState) -> None:
    for item in ("u3", "u5"):
        with pytest.raises(DependentObjects, match="depend on it") as e:
            _apply(state, DropOp(item))
        assert "materialized view m depends on" in (e.value.detail or "")
    with pytest.raises(DependentObjects, match="cannot replace view v: materialized view m depends on it"):
        _apply(state, CreateViewOp("u2", "v", "SELECT 1 AS a", DESC, replace=True))
    assert "u6" not in _apply(state, DropOp("u3", cascade=True)).items
    assert "u5" in _apply(state, DropOp("u6")).items


def test_its_name_is_one_among_all(state: CatalogState) -> None:
    with pytest.raises(DuplicateObject, match='relation "t" already exists'):
        _apply(state, CreateMaterializedViewOp("u2", "t", "SELECT 1", DESC, ()))
    with pytest.raises(UndefinedObject):
        _apply(state, CreateMaterializedViewOp("u2", "x", "SELECT 1", DESC, (Reference(("y",), "u99"),)))


def test_what_a_view_needs_is_a_catalog_by_itself(state: CatalogState) -> None:
    needed = state.needed_by("u6")
    assert set(needed.items) == {"u1", "u2", "u3", "u5", "u6"}
    assert needed.full_name(needed.relation("u6")) == ("materialize", "public", "m")


def test_its_shard_comes_and_goes_with_it(tmp_path: Path) -> None:
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    schema = catalog.state.schemas(catalog.state.databases()[0].id)[0].id
    catalog.transact([CreateMaterializedViewOp(schema, "m", "SELECT 1 AS a", DESC, ())])
    (view,) = catalog.state.materialized_views()
    shard = environment.open_ingested(view.shard)
    assert shard.upper == shard.since == view.created
    environment.close()
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    assert catalog.state.materialized_views() == [view]
    # It has nothing to say about times that it was not there for.
    assert environment.open_ingested(view.shard).upper == view.created
    catalog.transact([DropOp(view.id)])
    assert not catalog.state.materialized_views()
    environment.close()
