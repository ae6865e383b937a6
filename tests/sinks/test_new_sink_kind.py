"""A new kind of target is three files and a line in three tables: one is made here and written to.

CONTRIBUTING.md has the recipe; nothing else is changed for the statement, the planner, the catalog and the
service to know the kind. Without Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from test_sink_tables import Life, until

from support.shards import DESC, memory_folder
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.engine.ddl import sink_targets as planners
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.sink_targets import SinkRequest, describe_sink
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.errors import SyntaxError_
from tidemill.sinks import open as openers
from tidemill.sinks.definition import Definition
from tidemill.sinks.target import Opening, SinkPace
from tidemill.sql import ast
from tidemill.sql.ast.base import offset_field
from tidemill.sql.names import quote_literal
from tidemill.sql.parse import parse
from tidemill.sql.parser import sink_targets as syntax
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.render import to_sql

SQL = "CREATE SINK s FROM t INTO SHELF 'a' FORMAT JSON ENVELOPE MATERIALIZE"


# -- the first file: sql/parser/sink_targets/shelf.py


@dataclass(frozen=True, slots=True)
class IntoShelf(ast.SinkTarget):
    """INTO SHELF 'name'."""

    WRITTEN: ClassVar[str] = "SHELF '...'"
    shelf: str
    offset: int = offset_field()

    def to_sql(self) -> str:
        return f"SHELF {quote_literal(self.shelf)}"


def parse_into_shelf(cursor: TokenCursor, offset: int) -> IntoShelf:
    return IntoShelf(cursor.string(), offset)


# -- the second file: engine/ddl/sink_targets/shelf.py


def describe_into_shelf(target: IntoShelf, request: SinkRequest) -> Definition:
    return Definition("shelf", request.format(), share=request.share(), path=target.shelf)


# -- the third file: sinks/shelf_target.py

SHELVES: dict[str, list[tuple[bytes, int | None]]] = {}


class ShelfTarget:
    pace = SinkPace(0.0, 0.01)

    def __init__(self, shelf: list[tuple[bytes, int | None]]) -> None:
        self._shelf = shelf

    def resume(self) -> int | None:
        return max((upper for _, upper in self._shelf if upper is not None), default=None)

    def send(self, message: bytes) -> None:
        self._shelf.append((message, None))

    def settle(self) -> None:
        pass

    def state(self, message: bytes, upper: int) -> None:
        self._shelf.append((message, upper))

    def close(self) -> None:
        pass


def open_shelf_target(opening: Opening) -> ShelfTarget:
    return ShelfTarget(SHELVES.setdefault(str(opening.definition.path), []))


# -- the lines


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(syntax.SINK_TARGETS, ("shelf",), (parse_into_shelf, IntoShelf.WRITTEN))
    monkeypatch.setitem(planners.SINK_TARGETS, IntoShelf, describe_into_shelf)
    monkeypatch.setitem(openers.SINKS, "shelf", open_shelf_target)


@pytest.fixture
def life() -> Iterator[Life]:
    SHELVES.clear()
    with TemporaryDirectory(dir=memory_folder()) as folder:
        made = Life(Path(folder))
        yield made
        made.end()


def create() -> ast.CreateSink:
    (parsed,) = parse(SQL)
    assert isinstance(parsed.statement, ast.CreateSink)
    return parsed.statement


def test_a_statement_makes_a_sink_that_writes(life: Life) -> None:
    schema = life.catalog.state.resolve_schema(("public",), "materialize").id
    life.catalog.transact([CreateTableOp(schema, "t", DESC, retain_history_ms=0)])
    life.insert(Counter({(1, "a"): 1, (2, "b"): 1}))
    statement, table = create(), life.table()
    assert to_sql(statement) == SQL
    view = cast(CatalogView, SimpleNamespace(state=life.catalog.state))
    external = External(SecretStore(None), "", lambda: 0, lambda _: None, lambda *_: True, lambda _: None)
    definition = describe_sink(SinkRequest(view, life.collections, external, statement, table))
    target, text = definition.target, definition.to_json()
    op = CreateSinkOp(schema, "s", definition.kind, target, text, SQL, table.id, DESC, None, True)
    life.catalog.transact([op])
    until(lambda: diffs() == [1, 1])
    life.insert(Counter({(1, "a"): -1}))
    until(lambda: diffs() == [1, 1, -1])


def diffs() -> list[int]:
    """Of the updates on the shelf: messages of updates are lists, statements are not."""
    found = [json.loads(message) for message, upper in list(SHELVES.get("a", ())) if upper is None]
    return [update["diff"] for updates in found for update in updates]


def test_it_is_among_the_kinds_that_a_hint_names() -> None:
    with pytest.raises(SyntaxError_, match="unknown kind of sink: SHELL") as caught:
        parse(SQL.replace("SHELF", "SHELL"))
    assert caught.value.hint == (
        "A sink can be made INTO KAFKA CONNECTION name (TOPIC '...') or INTO FILES '...' or INTO SHELF '...'."
    )
