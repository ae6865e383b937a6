"""Names, errors and JSON of the catalog: what a person sees when something is not there, is there already,
or is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.catalog import codec
from tidemill.catalog.items import BUILTINS, Key, Reference, Role, SystemParameter, Table, View
from tidemill.catalog.names import check_identifier
from tidemill.catalog.ops import (
    AddColumnOp,
    AlterSystemOp,
    CreateDatabaseOp,
    CreateSchemaOp,
    CreateTableOp,
    CreateViewOp,
    DropOp,
    Op,
    RenameOp,
    SetDefaultOp,
    SetNotNullOp,
    SetRetainHistoryOp,
    apply_all,
)
from tidemill.catalog.state import CatalogState
from tidemill.errors import TidemillError
from tidemill.types.model import (
    INT4,
    TEXT,
    Column,
    Kind,
    RelationDesc,
    SqlType,
    array,
    map_,
    numeric,
    record,
    varchar,
)

DESC = RelationDesc((Column("a", INT4, nullable=False), Column("b", TEXT)))


def _apply(state: CatalogState, *ops: Op) -> CatalogState:
    return apply_all(state, ops, time=7)


@pytest.fixture
def state() -> CatalogState:
    """u1 materialize, u2 public, u3 orders, u4 v on orders, u5 schema other, u6 other.orders."""
    empty = CatalogState(BUILTINS.items, next_id=1, time=0)
    return _apply(
        empty,
        CreateDatabaseOp("materialize"),
        CreateTableOp("u2", "orders", DESC, ("1", None), (Key(("a",), True),)),
        CreateViewOp("u2", "v", "SELECT a FROM orders", DESC, (), (Reference(("orders",), "u3"),)),
        CreateSchemaOp("u1", "other"),
        CreateTableOp("u5", "orders", DESC),
    )


def test_search_path(state: CatalogState) -> None:
    def find(*parts: str, path: tuple[str, ...] = ("public",)) -> str:
        return state.resolve(parts, "materialize", path).id

    assert find("orders") == "u3"
    assert find("orders", path=("gone", "other", "public")) == "u6"
    assert find("other", "orders") == "u6"
    assert find("materialize", "public", "orders") == "u3"
    assert state.resolve_new(["t"], "materialize", ["gone", "other"])[0].id == "u5"
    assert [s.name for s in state.schemas("u1")][:2] == ["public", "other"]
    table = state.get("u3", Table)
    assert table.shard == "u3-7" and table.defaults == ("1", None)


def _raised(call: Callable[[], object]) -> tuple[str, str, str | None, str | None]:
    with pytest.raises(TidemillError) as caught:
        call()
    e = caught.value
    return e.primary, e.sqlstate, e.detail, e.hint


def test_what_is_not_there(state: CatalogState) -> None:
    def look(*parts: str) -> tuple[str, str, str | None, str | None]:
        return _raised(lambda: state.resolve(parts, "materialize", ["public"]))

    assert look("ordrs") == (
        'relation "ordrs" does not exist',
        "42P01",
        None,
        'Perhaps you meant the relation "orders".',
    )
    assert look("zzz")[:2] == ('relation "zzz" does not exist', "42P01")
    assert look("other", "zzz")[0] == 'relation "other.zzz" does not exist'
    assert look("othr", "orders")[:2] == ('schema "othr" does not exist', "3F000")
    assert look("othr", "orders")[3] == 'Perhaps you meant the schema "other".'
    assert look("nodb", "public", "orders")[:2] == ('database "nodb" does not exist', "3D000")
    assert look("a", "b", "c", "d")[1] == "42601"
    assert _raised(lambda: state.resolve_new(["t"], "materialize", ["gone"]))[:2] == (
        "no schema has been selected to create in",
        "3F000",
    )
    assert _raised(lambda: state.resolve_new(["pg_catalog", "t"], "materialize", []))[1] == "42501"
    assert _raised(lambda: state.role("joe"))[:2] == ('role "joe" does not exist', "42704")


@pytest.mark.parametrize(
    ("op", "text", "sqlstate"),
    [
        (CreateTableOp("u2", "orders", DESC), 'relation "orders" already exists', "42P07"),
        (CreateViewOp("u2", "orders", "", DESC), 'relation "orders" already exists', "42P07"),
        (CreateSchemaOp("u1", "other"), 'schema "other" already exists', "42P06"),
        (CreateSchemaOp("u1", "pg_mine"), 'unacceptable schema name "pg_mine"', "42939"),
        (CreateDatabaseOp("materialize"), 'database "materialize" already exists', "42P04"),
        (RenameOp("u4", "orders"), 'relation "orders" already exists', "42P07"),
        (AddColumnOp("u3", Column("a", TEXT)), 'column "a" of relation "orders" already exists', "42701"),
        (SetDefaultOp("u3", "z", "1"), 'column "z" of relation "orders" does not exist', "42703"),
        (
            CreateTableOp("u2", "t", RelationDesc((Column("x", TEXT), Column("x", TEXT)))),
            'column "x" specified more than once',
            "42701",
        ),
        (CreateTableOp("u2", "", DESC), "zero-length delimited identifier", "42601"),
        (CreateTableOp("u2", "a\0b", DESC), 'invalid byte sequence for encoding "UTF8": 0x00', "22021"),
        (DropOp("u99"), "catalog item u99 does not exist", "42P01"),
        (DropOp("s1"), "schema mz_catalog is part of the system and cannot be changed", "42501"),
        (
            CreateViewOp("u2", "v", "", RelationDesc((Column("z", TEXT),)), replace=True),
            "cannot drop columns from view",
            "42P16",
        ),
        (
            CreateViewOp("u2", "v", "", DESC, ("u4",), replace=True),
            'view "v" would depend on itself',
            "42P17",
        ),
    ],
)
def test_what_is_refused(state: CatalogState, op: Op, text: str, sqlstate: str) -> None:
    assert _raised(lambda: _apply(state, op))[:2] == (text, sqlstate)


def test_drop_says_who_depends(state: CatalogState) -> None:
    more = _apply(state, CreateViewOp("u5", "w", "SELECT 1 FROM v", DESC, ("u4",)))
    primary, sqlstate, detail, hint = _raised(lambda: _apply(more, DropOp("u3")))
    assert primary == "cannot drop table orders because other objects depend on it"
    assert sqlstate == "2BP01"
    assert detail == "view v depends on table orders\nview other.w depends on view v"
    assert hint == "Use DROP ... CASCADE to drop the dependent objects too."
    assert [i.name for i in more.drop_order("u3")] == ["w", "v", "orders"]
    left = _apply(more, DropOp("u3", cascade=True))
    assert set(more.items) - set(left.items) == {"u3", "u4", "u7"}
    assert _raised(lambda: _apply(more, DropOp("u5")))[0].startswith("cannot drop schema other because")
    # A database with an empty `public` can be dropped without CASCADE.
    assert _apply(_apply(state, CreateDatabaseOp("d")), DropOp("u7")).items.keys() == state.items.keys()


def test_alterations(state: CatalogState) -> None:
    changed = _apply(
        state,
        AddColumnOp("u3", Column("c", TEXT), "'x'"),
        SetDefaultOp("u3", "a", None),
        SetNotNullOp("u3", "a", False),
        SetRetainHistoryOp("u3", 60_000),
        AlterSystemOp("max_tables", "5"),
        RenameOp("u3", "orders2"),
    )
    table = changed.get("u3", Table)
    assert table.name == "orders2"
    assert table.desc.names == ["a", "b", "c"] and table.desc.columns[0].nullable
    assert table.defaults == (None, None, "'x'")
    assert table.retain_history_ms == 60_000
    # What the view reads does not hang on its text.
    assert changed.get("u4", View).sql == state.get("u4", View).sql
    assert changed.get("u4", View).references == (Reference(("orders",), "u3"),)
    assert changed.parameters() == {"max_tables": "5"}
    assert _apply(changed, AlterSystemOp("max_tables", None)).parameters() == {}
    assert state.get("u3", Table).name == "orders"  # the old state is untouched


def test_identifiers() -> None:
    assert check_identifier("x" * 255) == "x" * 255
    with pytest.raises(TidemillError, match="256 bytes, the limit is 255"):
        check_identifier("ü" * 128)


_types = st.recursive(
    st.sampled_from([SqlType(k) for k in Kind if k not in (Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD)])
    | st.builds(numeric, st.integers(1, 38), st.integers(0, 38))
    | st.builds(varchar, st.integers(1, 1000)),
    lambda inner: (
        st.builds(array, inner)
        | st.builds(map_, inner)
        | st.builds(lambda a, b: record(Column("f", a), Column("g h", b, False)), inner, inner)
    ),
    max_leaves=6,
)


@given(st.lists(_types, max_size=4), st.text(min_size=1, max_size=5))
def test_items_survive_their_json(types: list[SqlType], name: str) -> None:
    desc = RelationDesc(tuple(Column(f"c{i}{name}", t, i % 2 == 0) for i, t in enumerate(types)))
    for item in (
        Table("u1", name, "u2", desc, "u1-1", (None,) * len(types), (Key((name,)),), 5),
        View("u1", name, "u2", "SELECT '" + name + "'", desc, ("u7",), (Reference((name, "b"), "u7"),)),
        Role("u1", name, True),
        SystemParameter("u1", name, name),
    ):
        text = codec.encode(item)
        assert codec.decode("u1", text) == item
        assert codec.encode(codec.decode("u1", text)) == text
