"""The description of a source before it is created, and the context to make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.catalog.connections import Secrets, options
from tidemill.catalog.items import Connection, ItemId, Source
from tidemill.catalog.state import CatalogState
from tidemill.errors import Notice, Unsupported
from tidemill.sources.contract import Gauge, OutputDefinition
from tidemill.sql import ast


@dataclass(frozen=True, slots=True)
class DescribeContext:
    """The context of a statement about sources."""

    catalog: CatalogState
    secrets: Secrets
    # A connection by its name in the statement, of this type; raises what is wrong with it.
    find: Callable[[ast.Name, str], Connection]
    # A source by its name in the statement, which the session may read.
    find_source: Callable[[ast.Name], Source]
    # The time at which the source is made.
    started: int
    # Whether ENVELOPE UPSERT (ORDER BY ...) may be used (`enable_upsert_order_by`).
    order_by: bool
    # The folder below which files may be read; empty: nowhere.
    files_root: str = ""

    def reached(self, connection: Connection) -> dict[str, Any]:
        """The options with the texts of the secrets. Only for immediate use; never store them."""
        return options(self.catalog, connection.id, self.secrets)


def refuse_choice(choice: ast.ColumnChoice, label: str) -> None:
    """For tables whose columns the statement cannot choose."""
    for words, names in (("TEXT COLUMNS", choice.text), ("EXCLUDE COLUMNS", choice.exclude)):
        if names:
            raise Unsupported(
                f"{words} is not possible for tables of {label}",
                hint="Leave it out.",
                position=names[0].offset + 1,
            )


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A subsource with an output of its own: its name, the output and its form in the definition, and the
    statement that would make it as a table."""

    name: ast.Name
    output: OutputDefinition
    spec: dict[str, Any]
    statement: ast.CreateTableFromSource


@dataclass(frozen=True, slots=True)
class Described:
    """`definition` is the argument of `sources.definition.open_source`, with connections by id. With one
    output, the source itself is a relation; with none or several, its rows are in tables. `label` is for
    messages."""

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
    # The source of the transaction topic that its envelope names.
    transactions: ItemId | None = None
    # The subsources, where each has an output of its own; None: FOR ... chooses some of `outputs`.
    tables: tuple[DescribedTable, ...] | None = None
    # Notices for the client that creates the source.
    notices: tuple[Notice, ...] = ()

    @property
    def own(self) -> OutputDefinition | None:
        return self.outputs[0] if len(self.outputs) == 1 else None
