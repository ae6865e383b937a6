"""The catalog's operations against a naive model: a bag of nodes with names, parents and dependencies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemill.catalog import codec
from tidemill.catalog.connection_ops import AlterConnectionOp, CreateConnectionOp, CreateSecretOp
from tidemill.catalog.items import (
    BUILTINS,
    Connection,
    Database,
    Item,
    Schema,
    Secret,
    Source,
    SourceProgress,
    SourceTable,
    Table,
    View,
)
from tidemill.catalog.ops import (
    AddColumnOp,
    CreateDatabaseOp,
    CreateSchemaOp,
    CreateTableOp,
    CreateViewOp,
    DropOp,
    Op,
    RenameOp,
    apply_all,
)
from tidemill.catalog.source_ops import CreateSourceOp, CreateSourceTable, NewSubsource
from tidemill.catalog.state import CatalogState
from tidemill.errors import DependentObjects, DuplicateObject, TidemillError
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4), Column("b", TEXT)))
EMPTY = RelationDesc(())
RELATIONS = ("table", "view", "source", "source table", "progress")
# What shares the names of a schema.
NAMED = (*RELATIONS, "secret", "connection")


@dataclass(frozen=True)
class Node:
    kind: str
    name: str
    parent: str | None
    deps: frozenset[str] = frozenset()
    columns: int = 0
    # It goes with this one, and only so.
    owner: str | None = None


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
        if isinstance(item, Source):
            return Node("source", item.name, item.schema, frozenset(item.depends_on))
        if isinstance(item, SourceTable):
            owner = item.source if item.subsource else None
            return Node("source table", item.name, item.schema, frozenset(item.depends_on), owner=owner)
        if isinstance(item, SourceProgress):
            return Node("progress", item.name, item.schema, frozenset({item.source}), owner=item.source)
        if isinstance(item, Secret):
            return Node("secret", item.name, item.schema)
        if isinstance(item, Connection):
            return Node("connection", item.name, item.schema, frozenset(item.depends_on))
        return Node(type(item).__name__, item.name, None)

    def pick(self, data: st.DataObject, *kinds: str) -> str | None:
        ids = sorted(i for i, n in self.model.items() if n.kind in kinds)
        return data.draw(st.sampled_from(ids)) if ids else None

    def taken(self, kinds: tuple[str, ...], parent: str | None, name: str) -> bool:
        return any(n.kind in kinds and n.parent == parent and n.name == name for n in self.model.values())

    def create(self, op: Op, node: Node, extra: Node | None = None) -> None:
        kinds = NAMED if node.kind in NAMED else (node.kind,)
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
        self.create(CreateDatabaseOp(name), Node("database", name, None), Node("schema", "public", None))

    @rule(data=st.data(), name=names)
    def create_schema(self, data: st.DataObject, name: str) -> None:
        if (db := self.pick(data, "database")) is not None:
            self.create(CreateSchemaOp(db, name), Node("schema", name, db))

    @rule(data=st.data(), name=names)
    def create_table(self, data: st.DataObject, name: str) -> None:
        if (schema := self.pick(data, "schema")) is not None:
            self.create(CreateTableOp(schema, name, DESC), Node("table", name, schema, columns=2))

    @rule(data=st.data(), name=names)
    def create_view(self, data: st.DataObject, name: str) -> None:
        schema = self.pick(data, "schema")
        deps = {d for d in (self.pick(data, *RELATIONS), self.pick(data, *RELATIONS)) if d}
        if schema is not None:
            op = CreateViewOp(schema, name, "SELECT 1", DESC, tuple(sorted(deps)))
            self.create(op, Node("view", name, schema, frozenset(deps), 2))

    @rule(data=st.data(), name=names, progress=st.none() | names, subsources=st.lists(names, max_size=2))
    def create_source(
        self, data: st.DataObject, name: str, progress: str | None, subsources: list[str]
    ) -> None:
        schema = self.pick(data, "schema")
        if schema is None:
            return
        tables = tuple(NewSubsource(n, f"o{i}", DESC, "none") for i, n in enumerate(subsources))
        needed = tuple(sorted({c for c in [self.pick(data, "connection")] if c}))
        desc = None if tables else DESC
        op = CreateSourceOp(
            schema,
            name,
            "load-generator",
            "{}",
            "",
            desc,
            None,
            EMPTY,
            DESC,
            1000,
            progress,
            tables,
            depends_on=needed,
        )
        given = [name, *subsources, *([progress] if progress else [])]
        if len(set(given)) < len(given) or any(self.taken(NAMED, schema, n) for n in given):
            with pytest.raises(DuplicateObject, match="already exists"):
                self.transact([op])
            return
        free = (f"{name}_progress{n or ''}" for n in range(100))
        progress = progress or next(n for n in free if not self.taken(NAMED, schema, n))
        state = self.transact([op])
        (source,) = (s.id for s in state.sources() if s.id not in self.model)
        assert source not in self.ever, "an id was used twice"
        self.model[source] = Node("source", name, schema, frozenset(needed))
        belongs = frozenset({source})
        self.model[state.progress(source).id] = Node("progress", progress, schema, belongs, owner=source)
        for table, sub in zip(state.source_tables(source), subsources, strict=True):
            self.model[table.id] = Node("source table", sub, schema, belongs, owner=source)
        self.ever |= set(self.model)

    @rule(data=st.data(), name=names)
    def create_source_table(self, data: st.DataObject, name: str) -> None:
        schema, source = self.pick(data, "schema"), self.pick(data, "source")
        if schema is not None and source is not None:
            outputs = {t.output for t in self.state.source_tables(source)}
            output = next(o for o in (f"o{n}" for n in range(100)) if o not in outputs)
            op = CreateSourceTable(schema, name, source, output, DESC, "none")
            connection = self.pick(data, "connection")
            if connection is not None:
                op = replace(op, definition={}, sql="", connections=(connection,))
            needed = frozenset({source, *op.connections})
            self.create(op, Node("source table", name, schema, needed))

    @rule(data=st.data(), name=names)
    def create_secret(self, data: st.DataObject, name: str) -> None:
        if (schema := self.pick(data, "schema")) is not None:
            self.create(CreateSecretOp(schema, name), Node("secret", name, schema))

    @rule(data=st.data(), name=names)
    def create_connection(self, data: st.DataObject, name: str) -> None:
        schema, secret = self.pick(data, "schema"), self.pick(data, "secret")
        if schema is not None:
            secrets = () if secret is None else (secret,)
            op = CreateConnectionOp(schema, name, "kafka", "{}", secrets)
            self.create(op, Node("connection", name, schema, frozenset(secrets)))

    @rule(data=st.data())
    def alter_connection(self, data: st.DataObject) -> None:
        connection, secret = self.pick(data, "connection"), self.pick(data, "secret")
        if connection is not None:
            secrets = () if secret is None else (secret,)
            self.transact([AlterConnectionOp(connection, "{}", "{}", secrets)])
            self.model[connection] = replace(self.model[connection], deps=frozenset(secrets))

    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        if (table := self.pick(data, "table")) is not None:
            node = self.model[table]
            self.transact([AddColumnOp(table, Column(f"c{node.columns}", TEXT))])
            self.model[table] = replace(node, columns=node.columns + 1)

    @rule(data=st.data(), name=names)
    def rename(self, data: st.DataObject, name: str) -> None:
        if (item := self.pick(data, "database", "schema", *NAMED)) is not None:
            node = self.model[item]
            kinds = NAMED if node.kind in NAMED else (node.kind,)
            if self.taken(kinds, node.parent, name):
                with pytest.raises(DuplicateObject, match="already exists"):
                    self.transact([RenameOp(item, name)])
            else:
                self.transact([RenameOp(item, name)])
                self.model[item] = replace(node, name=name)

    @rule(data=st.data(), cascade=st.booleans())
    def drop(self, data: st.DataObject, cascade: bool) -> None:
        item = self.pick(data, "database", "schema", *NAMED)
        if item is None:
            return
        if self.model[item].owner is not None:
            with pytest.raises(DependentObjects, match="requires it"):
                self.transact([DropOp(item, cascade)])
            return
        going = {item}
        while more := {i for i, n in self.model.items() if (n.parent in going or n.deps & going)} - going:
            going |= more
        lone_public = all(
            self.model[i].kind == "schema" and self.model[i].name == "public" for i in going - {item}
        )
        others = {i for i in going - {item} if self.model[i].owner not in going}
        if cascade or not others or (self.model[item].kind == "database" and lone_public):
            self.transact([DropOp(item, cascade)])
            self.model = {i: n for i, n in self.model.items() if i not in going}
        else:
            with pytest.raises(DependentObjects, match="because other objects depend on it") as caught:
                self.transact([DropOp(item)])
            assert caught.value.detail and len(caught.value.detail.splitlines()) == len(others)

    @rule(data=st.data())
    def all_or_nothing(self, data: st.DataObject) -> None:
        before = self.state
        if (schema := self.pick(data, "schema")) is not None:
            with pytest.raises(TidemillError):
                self.transact([CreateSchemaOp(self.model[schema].parent or "", "zz"), DropOp("u999999")])
            assert self.state is before

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "model"):
            return
        users = {i: n for i, n in self.state.items.items() if i.startswith("u")}
        assert {i: self.node(n) for i, n in users.items()} == self.model
        for item_id, node in self.model.items():
            item = self.state.items[item_id]
            if node.kind in NAMED:
                full = self.state.full_name(item)
                assert self.state.resolve_item(full, "nowhere", ()).id == item_id
            assert codec.decode(item_id, codec.encode(item)) == item


TestCatalogModel = CatalogMachine.TestCase
TestCatalogModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
