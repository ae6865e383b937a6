"""Envelopes of Kafka records: one module per kind, and an entry in `ENVELOPES`.

`plan` returns the layout of an output. The engine calls it when the output is created, and `outputs` when it
is opened. ENVELOPE MATERIALIZE is not included: its records are statements of a stream, not rows, whatever
the transport (`sources.stream_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.errors import SyntaxError_
from tidemill.sources.kafka.envelopes.debezium import DebeziumLayout
from tidemill.sources.kafka.envelopes.debezium_upsert import DebeziumUpsertLayout
from tidemill.sources.kafka.envelopes.none import NoEnvelopeLayout
from tidemill.sources.kafka.envelopes.upsert import UpsertLayout
from tidemill.sources.kafka.layout import EnvelopeLayout, IncludedColumn, Layout
from tidemill.types.model import Column

# By the `kind` that definitions have.
ENVELOPES: dict[str, EnvelopeLayout] = {
    each.name: each for each in (NoEnvelopeLayout(), UpsertLayout(), DebeziumUpsertLayout(), DebeziumLayout())
}


def envelope_of(spec: Mapping[str, Any]) -> EnvelopeLayout:
    """Of an output of a definition."""
    return ENVELOPES[spec["envelope"]["kind"]]


def plan(
    spec: Mapping[str, Any], key_columns: Sequence[Column] | None, value_columns: Sequence[Column]
) -> Layout:
    """The layout of an output, as the definition describes it (`name`, `key`, `value`, `include`,
    `envelope`); the columns are those of its decoders. Raises what is wrong with it."""
    include = [IncludedColumn.of(item) for item in spec.get("include") or ()]
    envelope = envelope_of(spec)
    envelope.check(spec, include)
    if spec["key"] is None and any(item.what == "key" for item in include):
        raise SyntaxError_("INCLUDE KEY requires specifying KEY FORMAT .. VALUE FORMAT, got bare FORMAT")
    return envelope.layout(spec, key_columns or (), value_columns, include)
