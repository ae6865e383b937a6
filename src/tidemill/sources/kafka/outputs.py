"""Outputs of a definition, opened: their layouts, and what makes rows for them.

Called by `source` on the driver for the layouts, and by `reader` in the tasks, where what was opened is kept
for the next tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.decode.contract import Decoder
from tidemill.decode.formats import open_decoder
from tidemill.sources.kafka.consume import Wanted
from tidemill.sources.kafka.debezium import narrowed
from tidemill.sources.kafka.layout import Envelope, Layout, plan
from tidemill.sources.kafka.messages import Rows


@dataclass(frozen=True, slots=True)
class Opened:
    layout: Layout
    rows: Rows

    @property
    def wanted(self) -> Wanted:
        """What the output needs of a record beside key and value."""
        asked = {item.what for item in self.layout.metadata}
        timestamps = "timestamp" in asked or "timestamp" in self.layout.order
        return Wanted(timestamps, bool(asked & {"headers", "header"}))


def layout_of(spec: Mapping[str, Any]) -> Layout:
    """The layout of an output as the definition describes it. Raises what is wrong with it."""
    key, value = _decoders(spec)
    return plan(spec, None if key is None else key.columns, value.columns)


def open_output(spec: Mapping[str, Any]) -> Opened:
    key, value = _decoders(spec)
    layout = plan(spec, None if key is None else key.columns, value.columns)
    return Opened(layout, Rows(layout, key, value, json_value=spec["value"]["format"] == "json"))


def _decoders(spec: Mapping[str, Any]) -> tuple[Decoder | None, Decoder]:
    value = spec["value"]
    if spec["envelope"]["kind"] == Envelope.DEBEZIUM_UPSERT.value:
        value = narrowed(value)
    return None if spec["key"] is None else open_decoder(spec["key"]), open_decoder(value)
