"""What statements about Kafka are worked out with, without a server: a catalog of connections and secrets."""

from __future__ import annotations

import json
from typing import Any

from tidemill.catalog.connection_ops import CreateConnectionOp, CreateSecretOp
from tidemill.catalog.connections import expect_type
from tidemill.catalog.items import BUILTINS, Connection, Secret, Source
from tidemill.catalog.ops import CreateDatabaseOp, apply_all
from tidemill.catalog.state import CatalogState
from tidemill.engine.ddl.upstreams import DescribeContext, Described, describe
from tidemill.sql import ast
from tidemill.sql.parse import parse

STARTED = 1_700_000_000_000


class World:
    """`connection(name, kind, options)` and `secret(name, text)` add what statements may name."""

    def __init__(self) -> None:
        first = CatalogState(BUILTINS.items, next_id=1, time=0)
        self.state = apply_all(first, [CreateDatabaseOp("d")], time=1)
        self.texts: dict[str, str] = {}
        self.order_by = True

    def read(self, secret: Secret) -> str:
        return self.texts[secret.id]

    def secret(self, name: str, text: str) -> dict[str, str]:
        """As an option of a connection has it."""
        self.state = apply_all(self.state, [CreateSecretOp("u2", name)], time=self.state.time + 1)
        (made,) = [s for s in self.state.secrets() if s.name == name]
        self.texts[made.id] = text
        return {"secret": made.id}

    def connection(self, name: str, kind: str, **options: Any) -> str:
        """Its id."""
        op = CreateConnectionOp("u2", name, kind, json.dumps(options))
        self.state = apply_all(self.state, [op], time=self.state.time + 1)
        (made,) = [c for c in self.state.connections() if c.name == name]
        return made.id

    def context(self) -> DescribeContext:
        def find(name: ast.Name, kind: str) -> Connection:
            item = self.state.resolve_item(name.parts, "d", ["public"], "connection")
            assert isinstance(item, Connection)
            return expect_type(item, kind)

        def find_source(name: ast.Name) -> Source:
            item = self.state.resolve_item(name.parts, "d", ["public"], "relation")
            assert isinstance(item, Source)
            return item

        return DescribeContext(self.state, self, find, find_source, STARTED, self.order_by)

    def describe(self, sql: str) -> Described:
        (parsed,) = parse(sql)
        assert isinstance(parsed.statement, ast.CreateSource)
        return describe(parsed.statement, self.context())
