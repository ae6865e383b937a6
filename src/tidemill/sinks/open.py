"""A sink's machine, as the catalog has the sink today. Called by `service` when a sink is opened or its
connection changed."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.catalog.connections import options
from tidemill.catalog.items import Sink
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.cdcv2.avro import AvroCodec
from tidemill.files_root import below_root
from tidemill.inputs.collections import Collections
from tidemill.persist.environment import Environment
from tidemill.query.spark import SparkHost
from tidemill.sinks.definition import KAFKA, Definition, codec_of
from tidemill.sinks.feed import RelationFeed, relation_of
from tidemill.sinks.files_target import FilesTarget
from tidemill.sinks.kafka_target import KafkaTarget
from tidemill.sinks.machine import Machine
from tidemill.sinks.target import Check, Target, Written


@dataclass(frozen=True, slots=True)
class SinkOpener:
    """Opens sinks of one server."""

    environment: Environment
    collections: Collections
    spark: SparkHost
    secrets: SecretStore
    # The folder below which sinks may write files.
    files_root: str

    def open(self, catalog: CatalogState, sink: Sink, written: Written) -> Machine:
        """Raises what is wrong with its connections."""
        definition = Definition.of(sink)
        holder: list[Machine] = []
        target = self._target(catalog, sink, definition, written, lambda: holder[0].check())
        feed = RelationFeed(self.collections, self.spark, relation_of(catalog, sink), sink.desc)
        holder.append(Machine(sink, definition, feed, target, written))
        return holder[0]

    def _target(
        self, catalog: CatalogState, sink: Sink, definition: Definition, written: Written, check: Check
    ) -> Target:
        if definition.kind == KAFKA:
            assert definition.connection is not None and definition.topic is not None
            reached = options(catalog, definition.connection, self.secrets)
            return KafkaTarget(reached, definition.topic, definition.share, written, check)
        root, path = self.files_root, definition.path or ""
        codec = codec_of(sink, definition)
        schema = codec.avro_schema if isinstance(codec, AvroCodec) else None
        # Names of files are lower case letters and digits: ids of environments and items are.
        writer = f"{self.environment.id[:8]}{sink.id}"
        life = self.environment.epoch
        return FilesTarget(
            lambda: below_root(root, path),
            definition.format,
            schema,
            definition.share,
            writer,
            life,
            written,
        )
