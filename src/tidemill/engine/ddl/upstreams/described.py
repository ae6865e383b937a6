"""What the engine knows of a source before it is made, and what it needs to find out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.catalog.connections import Secrets, options
from tidemill.catalog.items import Connection, ItemId
from tidemill.catalog.state import CatalogState
from tidemill.errors import Notice
from tidemill.sources.contract import Gauge, OutputDefinition
from tidemill.sql import ast


@dataclass(frozen=True, slots=True)
class DescribeContext:
    """What a statement about sources is worked out with."""

    catalog: CatalogState
    secrets: Secrets
    # A connection by its name in the statement, of this type; raises what is wrong with it.
    find: Callable[[ast.Name, str], Connection]
    # The time at which the source is made.
    started: int
    # Whether ENVELOPE UPSERT (ORDER BY ...) may be used (`enable_upsert_order_by`).
    order_by: bool
    # The folder below which files may be read; empty: nowhere.
    files_root: str = ""

    def reached(self, connection: Connection) -> dict[str, Any]:
        """Its options with the texts of secrets: only to be used, never to be kept."""
        return options(self.catalog, connection.id, self.secrets)


@dataclass(frozen=True, slots=True)
class Described:
    """`definition` is what `sources.definition.open_source` takes, with connections by their ids. One output
    is the source itself; with none or several its rows are in tables. `label` is for messages."""

    type: str
    label: str
    definition: dict[str, Any]
    gauge: Gauge
    outputs: tuple[OutputDefinition, ...]
    # How messages become rows, where the source is a relation itself.
    envelope: str | None = None
    # Those that the definition names.
    connections: tuple[ItemId, ...] = ()
    # With ON ERROR DEAD LETTER the last output of the definition. It is none of `outputs`.
    dead_letters: OutputDefinition | None = None
    # What whoever makes the source should know.
    notices: tuple[Notice, ...] = ()

    @property
    def own(self) -> OutputDefinition | None:
        return self.outputs[0] if len(self.outputs) == 1 else None
