"""Sink definition, as the catalog stores it: a value, and its canonical JSON.

Created by the engine at CREATE SINK, read by the code that runs the sink. It refers to connections by id.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.catalog.items import ItemId, Sink
from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.json import JsonCodec
from tidemill.errors import Internal
from tidemill.types.arrow import arrow_schema

KAFKA, FILES = "kafka", "files"
AVRO, JSON = "avro", "json"
MATERIALIZE, UPSERT, DEBEZIUM = "materialize", "upsert", "debezium"

# A single writer: it writes all updates.
WHOLE = (0, 1)

Codec = AvroCodec | JsonCodec


@dataclass(frozen=True, slots=True)
class Definition:
    # KAFKA with `topic`, FILES with `path` (below the configured folder).
    kind: str
    format: str
    envelope: str = MATERIALIZE
    topic: str | None = None
    path: str | None = None
    # The id of the stream's schema in the registry, which messages contain. None: they contain none.
    schema_id: int | None = None
    # The number of this writer, and the number of writers.
    share: tuple[int, int] = WHOLE
    connection: ItemId | None = None
    registry: ItemId | None = None
    # With another envelope than MATERIALIZE: the key's columns, the id of its schema, the topic with the
    # progress, and the names of the relation (database, schema, name) for those who read the messages.
    key: tuple[str, ...] = ()
    key_schema_id: int | None = None
    progress_topic: str | None = None
    origin: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def target(self) -> str:
        """The target's identity: sinks with the same target write one stream."""
        place = {"connection": self.connection, "kind": self.kind, "path": self.path, "topic": self.topic}
        return json.dumps(place, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def of(sink: Sink) -> Definition:
        body: dict[str, Any] = json.loads(sink.definition)
        for name in ("share", "key", "origin"):
            body[name] = tuple(body.get(name, ()))
        return Definition(**body)


def codec_of(sink: Sink, definition: Definition) -> Codec:
    """The codec of the stream's messages; columns have their SQL names."""
    if definition.envelope != MATERIALIZE:
        raise Internal(f"a sink with envelope {definition.envelope}")
    schema = arrow_schema(sink.desc)
    if definition.format == AVRO:
        return AvroCodec(schema, schema_id=definition.schema_id)
    return JsonCodec(schema)
