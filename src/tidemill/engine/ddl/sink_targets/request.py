"""The parts of CREATE SINK that all targets share.

Used by the sink target modules. Every method raises if the sink cannot be created.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tidemill.catalog.connections import options
from tidemill.catalog.items import ItemId
from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.json import JsonCodec
from tidemill.decode.registry import Registry
from tidemill.engine.ddl.catalog_changes import find_connection
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.sink_targets.place import Beginning
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError
from tidemill.inputs.collections import Collections
from tidemill.sinks.definition import AVRO, JSON, WHOLE, Definition
from tidemill.sinks.feed import Sinkable
from tidemill.sinks.presence import Wished
from tidemill.sql import ast
from tidemill.time.shown import show_time
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import RelationDesc

# A generous limit of the writers of one stream; each sends only its share.
MAX_WRITERS = 256
# What Avro has for names of fields.
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """A CREATE SINK statement and its context. Checks may contact brokers and the registry, so they run on a
    worker thread."""

    view: CatalogView
    collections: Collections
    external: External
    statement: ast.CreateSink
    relation: Sinkable

    @property
    def desc(self) -> RelationDesc:
        """The written columns: the visible columns of the relation."""
        return RelationDesc((self.relation.desc or RelationDesc(())).columns)

    def format(self) -> str:
        """The format of the definition. Raises if it cannot represent the columns."""
        form, position = self.statement.format, self.statement.format.offset + 1
        try:
            if form.kind == "JSON":
                JsonCodec(arrow_schema(self.desc))
                return JSON
            _check_names(self.desc)
            AvroCodec(arrow_schema(self.desc))
        except TidemillError as e:
            e.position = position
            raise
        return AVRO

    def share(self) -> tuple[int, int]:
        """The number of this writer and the number of writers."""
        said = self.statement.share
        if said is None:
            return WHOLE
        if not (1 <= said.writers <= MAX_WRITERS and 0 <= said.number < said.writers):
            raise InvalidValue(
                f"SHARE {said.number} OF {said.writers} is not possible",
                hint=f"Writers are numbered from 0 on; there may be 1 to {MAX_WRITERS}.",
                sqlstate="22023",
            )
        return said.number, said.writers

    def check_as_of(self) -> None:
        at = self.statement.as_of
        if at is None:
            return
        since, upper = (
            self.collections.shard(self.relation).since,
            self.collections.complete(self.relation),
        )
        if not since <= at < upper:
            raise InvalidValue(
                f'"{self.relation.name}" cannot be read at {show_time(at)}',
                detail=f"It is readable from {show_time(since)} to before {show_time(upper)}.",
                hint="AS OF is a time in between.",
                sqlstate="22000",
            )

    def beginning(self, found: Definition) -> Beginning:
        """The state to check against the destination of the definition."""
        return Beginning(
            found.share,
            any(sink.target == found.target for sink in self.view.state.sinks()),
            self.statement.join,
            self.statement.as_of is not None,
            self.collections.shard(self.relation).since,
        )

    def wished(self, form: str, registry: ItemId | None) -> Wished:
        """The stream that the sink would write there."""
        schema = arrow_schema(self.desc)
        codec = AvroCodec(schema) if form == AVRO else JsonCodec(schema)
        return Wished(form, codec, None if registry is None else Registry(self.reached(registry)))

    def stream_schema(self) -> str:
        """The schema of a CDCv2 stream in Avro."""
        return AvroCodec(arrow_schema(self.desc)).avro_schema

    def registered(self, registry: ItemId, subject: str, schema: str) -> int:
        """The id of the schema in the registry."""
        client = Registry(self.reached(registry))
        try:
            return asking(lambda: client.register(subject, schema), avoidable=False)
        except TidemillError as e:
            e.position = self.statement.format.offset + 1
            raise

    def reached(self, connection: ItemId) -> dict[str, Any]:
        """The connection with the texts of its secrets. Only for immediate use; never store it."""
        return options(self.view.state, connection, self.external.secrets)

    def connection(self, name: ast.Name, kind: str) -> ItemId:
        """The connection of that name."""
        return find_connection(self.view, name, kind).id


def refuse_key(request: SinkRequest) -> None:
    key = request.statement.key
    if key is not None:
        raise SyntaxError_(
            "ENVELOPE MATERIALIZE has no KEY",
            detail="It tells rows by all of their columns.",
            hint="Leave KEY out, or write ENVELOPE UPSERT or ENVELOPE DEBEZIUM.",
            position=key.offset + 1,
        )


def _check_names(desc: RelationDesc) -> None:
    for column in desc.columns:
        if not _AVRO_NAME.fullmatch(column.name):
            raise InvalidValue(
                f'"{column.name}" is no name of a field in Avro',
                detail="Such names have letters, digits and underscores, and begin with no digit.",
                hint="Use FORMAT JSON, or make the sink from a materialized view with other names.",
                sqlstate="42602",
            )
