"""A new envelope is two files and a line in two tables, and a line more each for options and for a state of
its own: one is made here, registered, and used.

CONTRIBUTING.md has the recipe; nothing else is changed for the statement, the planner, the catalog, the rows
and SHOW CREATE SOURCE to know the kind. Without a broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from engine.kafka_context import World
from tidemill.catalog import sidecars
from tidemill.catalog.ops import apply_all
from tidemill.catalog.source_ops import CreateSourceOp
from tidemill.catalog.state import CatalogState
from tidemill.decode.contract import Decoder
from tidemill.decode.record_values import RecordValues, ValueReader
from tidemill.engine.ddl.upstreams import DescribeContext, Described
from tidemill.engine.ddl.upstreams import envelopes as planners
from tidemill.engine.read.show_create import create_source_sql
from tidemill.errors import SyntaxError_
from tidemill.sources.kafka import envelopes as meanings
from tidemill.sources.kafka.layout import EnvelopeLayout
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.sources.kafka.outputs import Opened, open_outputs
from tidemill.sql import ast
from tidemill.sql.ast.base import offset_field
from tidemill.sql.parse import parse
from tidemill.sql.parser import envelopes as syntax
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import TEXT, Column, RelationDesc

CREATE = (
    "CREATE SOURCE s FROM KAFKA BROKERS ('h:1') TOPIC 't' KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE SHOUT"
)


# -- the first file: sql/parser/envelopes/shout.py


@dataclass(frozen=True, slots=True)
class Shout(ast.Envelope):
    """SHOUT [(MARKS n)]."""

    kind: ClassVar[str] = "SHOUT"
    marks: int = 0
    offset: int = offset_field()

    @property
    def options(self) -> Sequence[str]:
        return (f"MARKS {self.marks}",) if self.marks else ()


def parse_shout(cursor: TokenCursor, offset: int) -> Shout:
    if not cursor.accept_symbol("("):
        return Shout(offset=offset)
    cursor.expect("marks")
    marks = cursor.integer()
    cursor.expect_symbol(")")
    return Shout(marks, offset)


# -- the second file: sources/kafka/envelopes/shout.py


@dataclass(frozen=True, slots=True)
class Loud:
    decoder: Decoder

    def read(self, values: pa.Array) -> RecordValues:
        decoded = self.decoder.decode(values)
        return RecordValues([pc.utf8_upper(decoded.columns[0])], ~valid_mask(values), decoded.errors)


class ShoutEnvelope(EnvelopeLayout):
    name = "shout"

    def values(self, decoder: Decoder, *, json_value: bool) -> ValueReader:
        return Loud(decoder)


# -- its options, and what it must remember


def describe_shout(
    shout: Shout, include: Sequence[Mapping[str, Any]], context: DescribeContext
) -> dict[str, Any]:
    return {"marks": shout.marks}


HEARD = RelationDesc((Column("word", TEXT),))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(syntax.ENVELOPES, ("shout",), parse_shout)
    monkeypatch.setitem(meanings.ENVELOPES, "shout", ShoutEnvelope())
    monkeypatch.setitem(planners.OPTIONS, Shout, describe_shout)
    monkeypatch.setitem(sidecars.SIDECARS, "shout", lambda shard, *_: [(f"{shard}-heard", HEARD)])


def test_messages_become_rows_as_it_says() -> None:
    described = World().describe(f"{CREATE} WITH (VALIDATE = false)")
    (spec,) = described.definition["outputs"]
    (opened,) = open_outputs("t", [spec])
    assert isinstance(opened, Opened)
    found = opened.rows.make(
        TopicMessages(0, pa.array([b"a", b"b"]), pa.array([b"one", None], pa.binary()), np.arange(2))
    )
    assert found.column("text").to_pylist() == ["ONE", None]
    assert found.column("mz_tombstone").to_pylist() == [False, True]
    assert described.outputs[0].key == ("key", "mz_key")


def test_a_source_has_its_options_and_its_shards_and_is_shown() -> None:
    world = World()
    sql = f"{CREATE} (MARKS 3)"
    described = world.describe(f"{sql} WITH (VALIDATE = false)")
    assert described.definition["outputs"][0]["envelope"] == {"kind": "shout", "marks": 3}
    state = apply_all(world.state, [creation(described, sql)], time=world.state.time + 1)
    (source,) = state.sources()
    assert source.envelope == "shout"
    beside = {c.shard: c.desc for c in state.collections() if c.shard.startswith(f"{source.shard}-h")}
    assert beside == {f"{source.shard}-heard": HEARD}
    assert shown(state).startswith(f"{sql} EXPOSE PROGRESS AS s_progress")


def test_it_is_among_the_kinds_that_a_hint_names_and_needs_a_key() -> None:
    with pytest.raises(SyntaxError_, match="unknown envelope: SHOTU") as caught:
        parse(CREATE.replace("SHOUT", "SHOTU"))
    assert "SHOUT" in (caught.value.hint or "")
    with pytest.raises(SyntaxError_, match="ENVELOPE SHOUT requires that KEY FORMAT be specified"):
        unkeyed = CREATE.replace("KEY FORMAT TEXT VALUE FORMAT", "FORMAT")
        World().describe(f"{unkeyed} WITH (VALIDATE = false)")


def creation(described: Described, sql: str) -> CreateSourceOp:
    own, gauge = described.own, described.gauge
    assert own is not None
    definition = json.dumps(described.definition)
    return CreateSourceOp(
        "u2",
        "s",
        described.type,
        definition,
        sql,
        own.desc,
        described.envelope,
        gauge.remap_desc,
        gauge.progress_desc,
        1000,
    )


def shown(state: CatalogState) -> str:
    (source,) = state.sources()
    return create_source_sql(state, ast.Name(("s",)), source)
