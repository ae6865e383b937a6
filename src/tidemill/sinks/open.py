"""Opening of a sink's machine from the current catalog.

Called by `service` when a sink is opened or its connection changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.catalog.connections import options
from tidemill.catalog.items import Sink
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.inputs.collections import Collections
from tidemill.persist.environment import Environment
from tidemill.query.spark import SparkHost
from tidemill.sinks.cdcv2_writer import Cdcv2Writer
from tidemill.sinks.definition import DEBEZIUM, FILES, KAFKA, MATERIALIZE, Definition, codec_of
from tidemill.sinks.feed import RelationFeed, relation_of
from tidemill.sinks.files_target import open_files_target
from tidemill.sinks.kafka_target import open_kafka_target
from tidemill.sinks.kafka_transactions import TransactionalTopic
from tidemill.sinks.keyed_writer import KeyedWriter
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.rows.messages import Origin, RowMessages
from tidemill.sinks.target import Check, Opening, SinkError, TargetWriter, Written
from tidemill.sinks.writer import SinkWriter

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
        """Opens the machine. Raises the errors of its connections, and SinkError for a sink of another
        history."""
        if self.environment.history.before(sink.id):
            raise SinkError(
                f'sink "{sink.name}" is older than the backup that was restored',
                detail="What it has written may contain changes that were lost since.",
                hint="DROP the sink, and CREATE it anew into another place.",
            )
        definition = Definition.of(sink)
        holder: list[SinkMachine] = []
        feed = RelationFeed(self.collections, self.spark, relation_of(catalog, sink), sink.desc)
        of = self._cdcv2 if definition.envelope == MATERIALIZE else self._keyed
        writer = of(catalog, sink, definition, feed.names, written, lambda: holder[0].check())
        holder.append(SinkMachine(sink, feed, writer))
        return holder[0]

    def _cdcv2(
        self,
        catalog: CatalogState,
        sink: Sink,
        definition: Definition,
        names: Sequence[str],
        written: Written,
        check: Check,
    ) -> SinkWriter:
        codec = codec_of(sink, definition)
        opening = Opening(
            definition,
            codec,
            self._connection(catalog, definition),
            self.files_root,
            self._name(sink),
            self.environment.epoch,
            written,
            check,
        )
        target = SINKS[definition.kind](opening)
        return Cdcv2Writer(codec, definition.share, names, target, written)

    def _keyed(
        self,
        catalog: CatalogState,
        sink: Sink,
        definition: Definition,
        names: Sequence[str],
        written: Written,
        check: Check,
    ) -> SinkWriter:
        topic, progress = definition.topic, definition.progress_topic
        assert topic is not None and progress is not None
        target = TransactionalTopic(
            self._connection(catalog, definition),
            topic,
            progress,
            self._name(sink),
            self.environment.epoch,
            written,
            check,
        )
        key, ids = [sink.desc.names.index(name) for name in definition.key], None
        if definition.key_schema_id is not None and definition.schema_id is not None:
            ids = definition.key_schema_id, definition.schema_id
        origin = Origin(sink.name, *definition.origin)
        form, envelope = definition.format, definition.envelope
        messages = RowMessages(sink.desc.columns, key, form, envelope, origin, ids)
        tombstones = definition.envelope == DEBEZIUM
        return KeyedWriter(sink.desc, key, names, messages, target, written, tombstones=tombstones)

    def _connection(self, catalog: CatalogState, definition: Definition) -> Mapping[str, Any]:
        through = definition.connection
        return {} if through is None else options(catalog, through, self.secrets)

    def _name(self, sink: Sink) -> str:
        """Ids of histories and items are lower case letters and digits."""
        return f"{self.environment.history.id[:8]}{sink.id}"
