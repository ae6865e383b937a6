"""Opened outputs of a definition: their layouts and their row builders.

`source` calls this module on the driver for the layouts. `reader` calls it in the tasks, and keeps opened
outputs for the next tick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from tidemill.catalog.sidecars import MATERIALIZE
from tidemill.decode.contract import Decoder, legible
from tidemill.decode.formats import open_decoder
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.kafka.changes import ChangeRows
from tidemill.sources.kafka.consume import Wanted
from tidemill.sources.kafka.dead_letters import ASIDE, TWIN, dead_letters, twin_output, without_errors
from tidemill.sources.kafka.envelopes import envelope_of, plan
from tidemill.sources.kafka.envelopes.debezium import DebeziumLayout
from tidemill.sources.kafka.layout import Layout
from tidemill.sources.kafka.messages import RecordRows, RowMaker, TopicMessages, no_messages
from tidemill.sources.stream_rows import StreamRows, stream_output

# What makes rows of records, by the name of the envelope; others are made by `RecordRows`.
MAKERS: Mapping[str, Callable[..., RowMaker]] = {DebeziumLayout.name: ChangeRows}


class OpenOutput(Enum):
    """Which rows of its messages an output keeps."""

    ALL = "all"
    GOOD = "good"  # those without an error
    DEAD_LETTERS = "dead letters"  # one row for each error, with the columns of `dead_letters.DESC`


@dataclass(frozen=True, slots=True)
class Opened:
    """An output whose records are rows."""

    layout: Layout
    rows: RowMaker
    kept: OpenOutput = OpenOutput.ALL

    @property
    def wanted(self) -> Wanted:
        """The fields of a record that the output needs in addition to key and value."""
        asked = {item.what for item in self.layout.metadata}
        timestamps = "timestamp" in asked or "timestamp" in self.layout.order
        return Wanted(timestamps or self.kept is OpenOutput.DEAD_LETTERS, bool(asked & {"headers", "header"}))

    def make(self, messages: TopicMessages, made: dict[RowMaker, pa.RecordBatch]) -> pa.RecordBatch:
        """The rows of the messages. `made` caches the rows that other outputs built from the same
        messages."""
        rows = made.get(self.rows)
        if rows is None:
            rows = made[self.rows] = self.rows.make(messages)
        match self.kept:
            case OpenOutput.ALL:
                return rows
            case OpenOutput.GOOD:
                return without_errors(rows)
            case OpenOutput.DEAD_LETTERS:
                return dead_letters(self.rows.speaking(messages), rows)

    def none(self) -> pa.RecordBatch:
        """No rows."""
        return self.make(no_messages(), {})


def is_stream(spec: Mapping[str, Any]) -> bool:
    """Whether its records are statements of a CDCv2 stream."""
    return spec["envelope"]["kind"] == MATERIALIZE


def words(topic: str) -> tuple[str, str]:
    """The words that describe the position of a record (`contract.StreamSpec`)."""
    return f'topic "{legible(topic)}", partition ', ", offset "


def output_of(topic: str, spec: Mapping[str, Any]) -> OutputDefinition:
    """The output according to the definition. Raises for an invalid one."""
    if is_stream(spec):
        return stream_output(spec, words(topic))
    if spec.get(TWIN):
        return twin_output(spec["name"])
    key, value = _decoders(spec)
    return placed(topic, plan(spec, None if key is None else key.columns, value.columns).output)


def placed(topic: str, output: OutputDefinition) -> OutputDefinition:
    """The output with the name of its topic, where errors of the tick need it."""
    return replace(output, place=f'topic "{legible(topic)}"') if output.changes else output


def open_outputs(topic: str, specs: Sequence[Mapping[str, Any]]) -> tuple[Opened | StreamRows, ...]:
    """The outputs of a definition, in their order. An output and its dead letters share one decoder."""
    shared: dict[str, Opened] = {}
    found: list[Opened | StreamRows] = []
    for number, spec in enumerate(specs):
        if is_stream(spec):
            found.append(StreamRows(number, spec, words(topic)))
            continue
        same = {name: part for name, part in spec.items() if name not in ("name", TWIN)}
        known = json.dumps(same, sort_keys=True)
        if known not in shared:
            shared[known] = _opened(spec)
        kept = (
            OpenOutput.DEAD_LETTERS
            if spec.get(TWIN)
            else OpenOutput.GOOD
            if spec.get(ASIDE)
            else OpenOutput.ALL
        )
        found.append(replace(shared[known], kept=kept))
    return tuple(found)


def _opened(spec: Mapping[str, Any]) -> Opened:
    key, value = _decoders(spec)
    layout = plan(spec, None if key is None else key.columns, value.columns)
    maker = MAKERS.get(layout.envelope.name, RecordRows)
    return Opened(layout, maker(layout, key, value, json_value=spec["value"]["format"] == "json"))


def _decoders(spec: Mapping[str, Any]) -> tuple[Decoder | None, Decoder]:
    value = envelope_of(spec).value_format(spec["value"])
    return None if spec["key"] is None else open_decoder(spec["key"]), open_decoder(value)
