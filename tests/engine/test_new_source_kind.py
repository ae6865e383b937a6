"""A new kind of source is three files and a line in three tables: one is made here, registered, and read.

CONTRIBUTING.md has the recipe; nothing else is changed for the statement, the planner, the catalog, the ticks
and SHOW CREATE SOURCE to know the kind. Without Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine.kafka_context import World
from tidemill.catalog.store import Catalog
from tidemill.engine.ddl import upstreams as planners
from tidemill.engine.ddl.upstreams import DescribeContext, Described
from tidemill.engine.read.show_create import create_source_sql
from tidemill.errors import InvalidValue, SyntaxError_
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.storage import SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.sources import definition as definitions
from tidemill.sources.contract import (
    EVENTS,
    OutputDefinition,
    SourceBatch,
    SourcePiece,
    SourceReader,
    UpstreamSource,
)
from tidemill.sources.generators.load import batch_schema
from tidemill.sources.offsets import Offsets
from tidemill.sql import ast
from tidemill.sql.ast.base import offset_field
from tidemill.sql.names import quote_literal
from tidemill.sql.parse import parse
from tidemill.sql.parser import upstreams as syntax
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.render import to_sql
from tidemill.types.model import TEXT, Column, RelationDesc

WAIT_SECONDS = 180.0


# -- the first file: sql/parser/upstreams/letters.py


@dataclass(frozen=True, slots=True)
class Letters(ast.Upstream):
    """FROM LETTERS OF 'word'."""

    word: str
    offset: int = offset_field()

    def to_sql(self) -> str:
        return f"LETTERS OF {quote_literal(self.word)}"


def parse_letters(cursor: TokenCursor) -> Letters:
    offset = cursor.offset
    cursor.expect("of")
    return Letters(cursor.string(), offset)


# -- the second file: engine/ddl/upstreams/letters.py


def describe_letters(statement: ast.CreateSource, letters: Letters, context: DescribeContext) -> Described:
    definition = {"kind": "letters", "word": letters.word, "started": context.started}
    return Described("letters", "word", definition, EVENTS, (OUTPUT,))


# -- the third file: sources/letters/source.py

OUTPUT = OutputDefinition("letters", RelationDesc((Column("letter", TEXT, nullable=False),)))


@dataclass(frozen=True, slots=True)
class LettersReader:
    word: str

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        found = np.array(list(self.word))[piece.lower : piece.upper].tolist()
        rows = pa.RecordBatch.from_arrays([pa.array(found, pa.string())], schema=batch_schema(OUTPUT))
        yield SourceBatch(0, rows, piece.records, piece.records)


class LettersSource(UpstreamSource):
    gauge = EVENTS
    outputs = (OUTPUT,)

    def __init__(self, definition: Mapping[str, Any], files_root: str) -> None:
        self._word = str(definition["word"])

    def frontier(self, now: int) -> Offsets:
        return Offsets({None: len(self._word)})

    def reader(self) -> SourceReader:
        return LettersReader(self._word)


# -- the lines


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(syntax.UPSTREAMS, ("letters",), parse_letters)
    monkeypatch.setitem(planners.UPSTREAMS, Letters, describe_letters)
    monkeypatch.setitem(definitions.SOURCES, "letters", LettersSource)


def test_a_statement_makes_a_source_that_is_read_and_shown(tmp_path: Path) -> None:
    (parsed,) = parse("create source s from letters of 'abcab'")
    described = World().describe("create source s from letters of 'abcab'")
    assert isinstance(parsed.statement, ast.CreateSource)
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    ingestion = Ingestion(environment, catalog, LocalRunner(str(tmp_path / "state")))
    try:
        storage = Storage(environment, catalog, ingestion)
        schema = catalog.state.schema(catalog.state.database("materialize").id, "public").id
        sql = to_sql(parsed.statement)
        (made,) = storage.create_sources([SourceDescription(schema, "s", described.definition, sql, 100)])
        assert letters_of(storage, made) == list("aabbc")
        (source,) = catalog.state.sources()
        assert (source.type, json.loads(source.definition)["word"]) == ("letters", "abcab")
        shown = create_source_sql(catalog.state, ast.Name(("s",)), source)
        assert shown.startswith("CREATE SOURCE s FROM LETTERS OF 'abcab' EXPOSE PROGRESS AS s_progress")
    finally:
        ingestion.stop()
        environment.close()


def letters_of(storage: Storage, made: str) -> list[str]:
    """Once something is there: one binding covers the word."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        rendered = storage.render(StorageCollectionId(made))
        if rendered.upper > 0:
            with rendered.snapshot(rendered.upper - 1) as snapshot:
                found = snapshot.read().column("letter").to_pylist()
            if found:
                return sorted(found)
        time.sleep(0.01)
    raise AssertionError("nothing was read")


def test_it_is_among_the_kinds_that_a_hint_names() -> None:
    with pytest.raises(SyntaxError_, match="unknown kind of source") as caught:
        parse("create source s from leters of 'abc'")
    assert "LETTERS" in (caught.value.hint or "")


def test_what_is_wrong_is_shown_at_its_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(statement: ast.CreateSource, letters: Letters, context: DescribeContext) -> Described:
        raise InvalidValue("no such word")

    monkeypatch.setitem(planners.UPSTREAMS, Letters, refuse)
    with pytest.raises(InvalidValue) as caught:
        World().describe("create source s from letters of 'x'")
    assert caught.value.position == len("create source s from letters ") + 1
