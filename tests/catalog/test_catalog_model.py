"""The catalog's operations against a naive model: a bag of nodes with names, parents and dependencies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemill.catalog import codec
from tidemill.catalog.items import BUILTINS, Database, Item, Schema, Table, View
from tidemill.catalog.ops import (
    AddColumn,
    CreateDatabase,
    CreateSchema,
    CreateTable,
    CreateView,
    Drop,
    Op,
    Rename,
    apply_all,
)
from tidemill.catalog.state import CatalogState
from tidemill.errors import DependentObjects, DuplicateObject, TidemillError
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", TEXT)))


@dataclass(frozen=True)
class Node:
    kind: str
    name: str
    parent: str | None
    deps: frozenset[str] = frozenset()
    columns: int = 0


class CatalogMachine(RuleBasedStateMachine):
    """`transact` and `reopen` are overridden by the durable catalog's test."""

    def transact(self, ops: list[Op]) -> CatalogState:
        self.time += 1
        self.state = apply_all(self.state, ops, time=self.time)
        return self.state

    def begin(self) -> None:
        self.time = 0
        self.state = CatalogState(BUILTINS.items, next_id=1, time=0)

    @initialize()
    def start(self) -> None:
        self.begin()
        self.model: dict[str, Node] = {
            i.id: self.node(i) for i in self.state.items.values() if i.id.startswith("u")
        }
        self.ever: set[str] = set(self.model)

    @staticmethod
    def node(item: Item) -> Node:
        if isinstance(item, Database):
            return Node("database", item.name, None)
        if isinstance(item, Schema):
            return Node("schema", item.name, item.database)
        if isinstance(item, Table):
            return Node("table", item.name, item.schema, columns=len(item.desc.columns))
        if isinstance(item, View):
            return Node("view", item.name, item.schema, frozenset(item.depends_on), len(item.desc.columns))
        return Node(type(item).__name__, item.name, None)

    def pick(self, data: st.DataObject, *kinds: str) -> str | None:
        ids = sorted(i for i, n in self.model.items() if n.kind in kinds)
        return data.draw(st.sampled_from(ids)) if ids else None

    def taken(self, kinds: tuple[str, ...], parent: str | None, name: str) -> bool:
        return any(n.kind in kinds and n.parent == parent and n.name == name for n in self.model.values())

    def create(self, op: Op, node: Node, extra: Node | None = None) -> None:
        kinds = ("table", "view") if node.kind in ("table", "view") else (node.kind,)
        if self.taken(kinds, node.parent, node.name):
            with pytest.raises(DuplicateObject, match="already exists"):
                self.transact([op])
            return
        state = self.transact([op])
        new = sorted(set(state.items) - set(self.model) - {i.id for i in BUILTINS.items})
        assert not set(new) & self.ever, "an id was used twice"
        self.ever |= set(new)
        by_kind = {self.node(state.items[i]).kind: i for i in new}
        self.model[by_kind[node.kind]] = node
        if extra is not None:
            self.model[by_kind[extra.kind]] = replace(extra, parent=by_kind[node.kind])
        assert len(new) == (1 if extra is None else 2)

    names = st.sampled_from(["a", "b", "c", 'Odd "näme"'])

    @rule(name=names)
    def create_database(self, name: str) -> None:
        self.create(CreateDatabase(name), Node("database", name, None), Node("schema", "public", None))

    @rule(data=st.data(), name=names)
    def create_schema(self, data: st.DataObject, name: str) -> None:
        if (db := self.pick(data, "database")) is not None:
            self.create(CreateSchema(db, name), Node("schema", name, db))

    @rule(data=st.data(), name=names)
    def create_table(self, data: st.DataObject, name: str) -> None:
        if (schema := self.pick(data, "schema")) is not None:
            self.create(CreateTable(schema, name, DESC), Node("table", name, schema, columns=2))

    @rule(data=st.data(), name=names)
    def create_view(self, data: st.DataObject, name: str) -> None:
        schema = self.pick(data, "schema")
        deps = {d for d in (self.pick(data, "table", "view"), self.pick(data, "table", "view")) if d}
        if schema is not None:
            op = CreateView(schema, name, "SELECT 1", DESC, tuple(sorted(deps)))
            self.create(op, Node("view", name, schema, frozenset(deps), 2))

    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        if (table := self.pick(data, "table")) is not None:
            node = self.model[table]
            self.transact([AddColumn(table, Column(f"c{node.columns}", TEXT))])
            self.model[table] = replace(node, columns=node.columns + 1)

    @rule(data=st.data(), name=names)
    def rename(self, data: st.DataObject, name: str) -> None:
        if (item := self.pick(data, "database", "schema", "table", "view")) is not None:
            node = self.model[item]
            kinds = ("table", "view") if node.kind in ("table", "view") else (node.kind,)
            if self.taken(kinds, node.parent, name):
                with pytest.raises(DuplicateObject, match="already exists"):
                    self.transact([Rename(item, name)])
            else:
                self.transact([Rename(item, name)])
                self.model[item] = replace(node, name=name)

    @rule(data=st.data(), cascade=st.booleans())
    def drop(self, data: st.DataObject, cascade: bool) -> None:
        item = self.pick(data, "database", "schema", "table", "view")
        if item is None:
            return
        going = {item}
        while more := {i for i, n in self.model.items() if (n.parent in going or n.deps & going)} - going:
            going |= more
        lone_public = all(
            self.model[i].kind == "schema" and self.model[i].name == "public" for i in going - {item}
        )
        if cascade or going == {item} or (self.model[item].kind == "database" and lone_public):
            self.transact([Drop(item, cascade)])
            self.model = {i: n for i, n in self.model.items() if i not in going}
        else:
            with pytest.raises(DependentObjects, match="because other objects depend on it") as caught:
                self.transact([Drop(item)])
            assert caught.value.detail and len(caught.value.detail.splitlines()) == len(going) - 1

    @rule(data=st.data())
    def all_or_nothing(self, data: st.DataObject) -> None:
        before = self.state
        if (schema := self.pick(data, "schema")) is not None:
            with pytest.raises(TidemillError):
                self.transact([CreateSchema(self.model[schema].parent or "", "zz"), Drop("u999999")])
            assert self.state is before

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "model"):
            return
        users = {i: n for i, n in self.state.items.items() if i.startswith("u")}
        assert {i: self.node(n) for i, n in users.items()} == self.model
        for item_id, node in self.model.items():
            item = self.state.items[item_id]
            if node.kind in ("table", "view"):
                full = self.state.full_name(item)
                assert self.state.resolve(full, "nowhere", ()).id == item_id
            assert codec.decode(item_id, codec.encode(item)) == item


TestCatalogModel = CatalogMachine.TestCase
TestCatalogModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
