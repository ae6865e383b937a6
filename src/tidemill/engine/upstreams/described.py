"""What the engine knows of a source before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.sources.contract import Gauge, Output


@dataclass(frozen=True, slots=True)
class Described:
    """`definition` is what `sources.definition.open_source` takes. With `several` the outputs are tables of
    their own; else the one output is the source itself. `label` is for messages."""

    type: str
    label: str
    definition: dict[str, Any]
    gauge: Gauge
    outputs: tuple[Output, ...]

    @property
    def several(self) -> bool:
        return len(self.outputs) > 1
