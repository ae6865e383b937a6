"""Opening of a sink's machine from the current catalog.

Called by `service` when a sink is opened or its connection changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.catalog.connections import options
from tidemill.catalog.items import Sink
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.inputs.collections import Collections
from tidemill.persist.environment import Environment
from tidemill.query.spark import SparkHost
from tidemill.sinks.definition import FILES, KAFKA, Definition, codec_of
from tidemill.sinks.feed import RelationFeed, relation_of
from tidemill.sinks.files_target import open_files_target
from tidemill.sinks.kafka_target import open_kafka_target
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.target import Opening, TargetWriter, Written

# By the `kind` of a definition.
SINKS: dict[str, Callable[[Opening], TargetWriter]] = {KAFKA: open_kafka_target, FILES: open_files_target}


@dataclass(frozen=True, slots=True)
class SinkOpener:
    """Opens sinks of one server."""

    environment: Environment
    collections: Collections
    spark: SparkHost
    secrets: SecretStore
    # The folder below which sinks may write files.
    files_root: str

    def open(self, catalog: CatalogState, sink: Sink, written: Written) -> SinkMachine:
        """Opens the machine. Raises the errors of its connections."""
        definition = Definition.of(sink)
        holder: list[SinkMachine] = []
        through = definition.connection
        opening = Opening(
            definition,
            codec_of(sink, definition),
            {} if through is None else options(catalog, through, self.secrets),
            self.files_root,
            # Ids of environments and items are lower case letters and digits.
            f"{self.environment.id[:8]}{sink.id}",
            self.environment.epoch,
            written,
            lambda: holder[0].check(),
        )
        target = SINKS[definition.kind](opening)
        feed = RelationFeed(self.collections, self.spark, relation_of(catalog, sink), sink.desc)
        holder.append(SinkMachine(sink, definition, feed, target, written))
        return holder[0]
