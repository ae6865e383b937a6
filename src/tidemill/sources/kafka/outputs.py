"""Outputs of a definition, opened: their layouts, and what makes rows for them.

Called by `source` on the driver for the layouts, and by `reader` in the tasks, where what was opened is kept
for the next tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.decode.contract import Decoder, legible
from tidemill.decode.debezium.narrow_schema import narrowed
from tidemill.decode.formats import open_decoder
from tidemill.sources.contract import Output
from tidemill.sources.kafka.consume import Wanted
from tidemill.sources.kafka.layout import Envelope, Layout, plan
from tidemill.sources.kafka.messages import Rows
from tidemill.sources.stream_rows import StreamRows, stream_output


@dataclass(frozen=True, slots=True)
class Opened:
    """An output whose records are rows."""

    layout: Layout
    rows: Rows

    @property
    def wanted(self) -> Wanted:
        """What the output needs of a record beside key and value."""
        asked = {item.what for item in self.layout.metadata}
        timestamps = "timestamp" in asked or "timestamp" in self.layout.order
        return Wanted(timestamps, bool(asked & {"headers", "header"}))


def is_stream(spec: Mapping[str, Any]) -> bool:
    """Whether its records are statements of a CDCv2 stream."""
    return spec["envelope"]["kind"] == Envelope.MATERIALIZE.value


def words(topic: str) -> tuple[str, str]:
    """How it is told where a record is (`contract.Stream`)."""
    return f'topic "{legible(topic)}", partition ', ", offset "


def output_of(topic: str, spec: Mapping[str, Any]) -> Output:
    """The output as the definition describes it. Raises what is wrong with it."""
    if is_stream(spec):
        return stream_output(spec, words(topic))
    key, value = _decoders(spec)
    return plan(spec, None if key is None else key.columns, value.columns).output


def open_output(topic: str, number: int, spec: Mapping[str, Any]) -> Opened | StreamRows:
    if is_stream(spec):
        return StreamRows(number, spec, words(topic))
    key, value = _decoders(spec)
    layout = plan(spec, None if key is None else key.columns, value.columns)
    return Opened(layout, Rows(layout, key, value, json_value=spec["value"]["format"] == "json"))


def _decoders(spec: Mapping[str, Any]) -> tuple[Decoder | None, Decoder]:
    value = spec["value"]
    if spec["envelope"]["kind"] == Envelope.DEBEZIUM_UPSERT.value:
        value = narrowed(value)
    return None if spec["key"] is None else open_decoder(spec["key"]), open_decoder(value)
