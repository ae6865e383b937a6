"""COMMENT ON in the catalog: written, changed, taken away, and gone with what it is about."""

from __future__ import annotations

import pytest

from tidemill.catalog.comment_ops import MAX_COMMENT_BYTES, SetComment
from tidemill.catalog.items import BUILTINS
from tidemill.catalog.ops import (
    CreateDatabaseOp,
    CreateRoleOp,
    CreateSchemaOp,
    CreateTableOp,
    CreateViewOp,
    DropOp,
    DropRoleOp,
    RenameOp,
    apply_all,
)
from tidemill.catalog.state import CatalogState
from tidemill.errors import LimitExceeded, TidemillError, Unsupported
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", TEXT)))


@pytest.fixture
def state() -> CatalogState:
    empty = CatalogState(BUILTINS.items, next_id=1, time=0)
    made = apply_all(empty, [CreateDatabaseOp("d")], time=1)
    schema = made.schema(made.database("d").id, "public").id
    return apply_all(
        made, [CreateTableOp(schema, "t", DESC), CreateViewOp(schema, "v", "SELECT 1", DESC, ("u3",))], time=2
    )


def texts(state: CatalogState) -> list[tuple[str, str | None, str]]:
    return [(c.on, c.column, c.text) for c in state.comments()]


def test_set_replaced_and_taken_away(state: CatalogState) -> None:
    state = apply_all(state, [SetComment("u3", None, "one"), SetComment("u3", "b", "two")], time=3)
    assert texts(state) == [("u3", None, "one"), ("u3", "b", "two")]
    kept = state.comment("u3")
    state = apply_all(state, [SetComment("u3", None, "three")], time=4)
    again = state.comment("u3")
    assert kept is not None and again is not None and (again.id, again.text) == (kept.id, "three")
    for nothing in (None, ""):
        assert apply_all(state, [SetComment("u3", None, nothing)], time=5).comment("u3") is None
    assert apply_all(state, [SetComment("u4", None, None)], time=5).comment("u4") is None


def test_it_stays_with_a_new_name_and_goes_with_the_thing(state: CatalogState) -> None:
    ops = [SetComment("u3", None, "t"), SetComment("u3", "a", "a"), SetComment("u4", None, "v")]
    state = apply_all(state, [*ops, RenameOp("u3", "other")], time=3)
    assert texts(state) == [("u3", None, "t"), ("u3", "a", "a"), ("u4", None, "v")]
    assert texts(apply_all(state, [DropOp("u4")], time=4)) == [("u3", None, "t"), ("u3", "a", "a")]
    assert texts(apply_all(state, [DropOp("u3", cascade=True)], time=4)) == []


def test_it_goes_with_its_database(state: CatalogState) -> None:
    database = state.database("d").id
    made = apply_all(state, [CreateSchemaOp(database, "s")], time=3)
    schema = made.schema(database, "s").id
    made = apply_all(made, [SetComment(schema, None, "s"), SetComment(database, None, "d")], time=4)
    assert len(texts(made)) == 2
    assert texts(apply_all(made, [DropOp(database, cascade=True)], time=5)) == []


def test_it_goes_with_its_role(state: CatalogState) -> None:
    state = apply_all(state, [CreateRoleOp("r")], time=3)
    role = state.role("r").id
    state = apply_all(state, [SetComment(role, None, "who")], time=4)
    assert texts(state) == [(role, None, "who")]
    assert texts(apply_all(state, [DropRoleOp(role)], time=5)) == []


def test_bad_ones(state: CatalogState) -> None:
    with pytest.raises(LimitExceeded):
        apply_all(state, [SetComment("u3", None, "x" * (MAX_COMMENT_BYTES + 1))], time=3)
    with pytest.raises(TidemillError):
        apply_all(state, [SetComment("u99", None, "x")], time=3)
    with pytest.raises(Unsupported):
        apply_all(state, [SetComment("s1", None, "x")], time=3)
