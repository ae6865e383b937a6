"""CREATE SINK. The catalog's change makes the item; whoever runs sinks follows the catalog (`sinks.service`).

Everything that can be known is found out before: that the place can be reached and written to, that it is
free or goes on with this very history, that the registry takes the schema. Dropping and renaming are as for
everything else (`ddl.objects`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from tidemill.catalog import ops, sink_ops
from tidemill.catalog.connections import KAFKA as KAFKA_CONNECTION
from tidemill.catalog.connections import SCHEMA_REGISTRY, expect_type, options
from tidemill.catalog.items import Connection, ItemId, Sink, SourceProgress, View
from tidemill.catalog.state import CatalogState
from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.json import JsonCodec
from tidemill.decode.registry import Registry
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import item_at, skip, transact
from tidemill.engine.ddl.sink_target_check import Beginning, check_files, check_topic, topic_name
from tidemill.engine.ddl.upstreams.reach import asking
from tidemill.engine.session.plan import Action, Plan
from tidemill.engine.session.session import EngineSession
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, Unsupported, WrongObjectType
from tidemill.files_root import below_root
from tidemill.inputs.timelines import check_ours
from tidemill.sinks.definition import AVRO, FILES, JSON, KAFKA, WHOLE, Definition
from tidemill.sinks.feed import Sinkable
from tidemill.sinks.presence import Wished
from tidemill.sql import ast
from tidemill.sql.render import to_sql
from tidemill.time.shown import show_time
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import RelationDesc

_VERB = "CREATE SINK"
# More writers of one stream than anybody has: each sends its share alone.
MAX_WRITERS = 256
# What Avro has for names of fields.
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def plan_create_sink(s: EngineSession, statement: ast.CreateSink, catalog: CatalogState) -> Plan:
    schema, name, existing = item_at(s, statement.name, catalog)
    if existing is not None:
        if statement.if_not_exists and isinstance(existing, Sink):
            return skip(_VERB, f'sink "{name}" already exists, skipping', "42710")
        raise ops.already_exists(existing)
    relation = _relation(s, statement.relation, catalog)
    asked = _Asked(s, statement, catalog, relation)

    async def act(s: EngineSession) -> Outcome:
        definition = await s.interrupt.guard(s.blocking(asked.definition))
        connections = (definition.connection, definition.registry)
        op = sink_ops.CreateSink(
            schema.id,
            name,
            definition.kind,
            definition.target,
            definition.to_json(),
            to_sql(replace(statement, if_not_exists=False, cluster=None, join=False)),
            relation.id,
            asked.desc,
            statement.as_of,
            statement.snapshot,
            tuple(c for c in connections if c is not None),
        )
        await transact(s, _VERB, [op])
        return Complete(_VERB)

    return Action(act)


def _relation(s: EngineSession, name: ast.Name, catalog: CatalogState) -> Sinkable:
    """What the sink is made from: a stored relation."""
    item = s.resolver(catalog).any_item(name)
    position = name.offset + 1
    if isinstance(item, View):
        raise WrongObjectType(
            f'a sink cannot be made from view "{item.name}"',
            detail="A view is not stored, and has no history of its own.",
            hint="CREATE MATERIALIZED VIEW keeps its rows, and a sink can be made from that.",
            position=position,
        )
    if isinstance(item, SourceProgress) or not isinstance(item, Sinkable):
        raise WrongObjectType(
            f'a sink cannot be made from "{item.name}"',
            hint="It is made from a table, a source, or a materialized view.",
            position=position,
        )
    check_ours([item], "a sink")
    s.resolver(catalog).desc(item, position)
    s.privileges(catalog).check(item, "SELECT")
    return item


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a statement asks for, to be found out and to be checked on a worker thread."""

    session: EngineSession
    statement: ast.CreateSink
    catalog: CatalogState
    relation: Sinkable

    @property
    def desc(self) -> RelationDesc:
        """What is written: the columns that anybody sees."""
        return RelationDesc((self.relation.desc or RelationDesc(())).columns)

    def definition(self) -> Definition:
        """Asks the brokers and the registry, so it blocks. Raises what keeps the sink from being made."""
        self._check_as_of()
        found = Definition(self._kind, self._format(), share=self._share())
        if isinstance(self.statement.target, ast.IntoFiles):
            return self._files(found, self.statement.target)
        return self._kafka(found, self.statement.target)

    @property
    def _kind(self) -> str:
        return FILES if isinstance(self.statement.target, ast.IntoFiles) else KAFKA

    def _format(self) -> str:
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
        if self._kind == KAFKA and form.registry is None:
            raise SyntaxError_(
                "FORMAT AVRO of a Kafka sink needs a schema registry",
                hint="Write FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION name.",
                position=position,
            )
        if self._kind == FILES and form.registry is not None:
            raise Unsupported(
                "a schema registry is not supported by a sink into files",
                hint="Write FORMAT AVRO alone: each file has the schema in it.",
                position=position,
            )
        return AVRO

    def _share(self) -> tuple[int, int]:
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

    def _check_as_of(self) -> None:
        at, engine = self.statement.as_of, self.session.engine
        if at is None:
            return
        since, upper = (
            engine.collections.shard(self.relation).since,
            engine.collections.complete(self.relation),
        )
        if not since <= at < upper:
            raise InvalidValue(
                f'"{self.relation.name}" cannot be read at {show_time(at)}',
                detail=f"It is readable from {show_time(since)} to before {show_time(upper)}.",
                hint="AS OF is a time in between.",
                sqlstate="22000",
            )

    # -- places

    def _beginning(self, found: Definition) -> Beginning:
        return Beginning(
            found.share,
            any(sink.target == found.target for sink in self.catalog.sinks()),
            self.statement.join,
            self.statement.as_of is not None,
            self.session.engine.collections.shard(self.relation).since,
        )

    def _files(self, found: Definition, target: ast.IntoFiles) -> Definition:
        root = self.session.engine.config.files_root
        try:
            folder = below_root(root, target.path)
            found = replace(found, path=os.path.relpath(folder, os.path.realpath(root)))
            check_files(folder, target.path, self._beginning(found), self._wished(found.format, None))
        except TidemillError as e:
            e.position = target.offset + 1
            raise
        return found

    def _kafka(self, found: Definition, target: ast.IntoKafka) -> Definition:
        topic = topic_name(target)
        connection = self._connection(target.connection, KAFKA_CONNECTION)
        found = replace(found, topic=topic, connection=connection)
        registry: ItemId | None = None
        if self.statement.format.registry is not None:
            registry = self._connection(self.statement.format.registry, SCHEMA_REGISTRY)
        wished = self._wished(found.format, registry)

        def check() -> None:
            check_topic(self._reached(connection), target, self._beginning(found), wished)

        # One that is refused for what is there must not have registered its schema.
        if self.statement.join:
            check()
        if registry is not None:
            found = replace(found, registry=registry, schema_id=self._registered(registry, topic))
        if not self.statement.join:
            check()
        return found

    def _wished(self, form: str, registry: ItemId | None) -> Wished:
        schema = arrow_schema(self.desc)
        codec = AvroCodec(schema) if form == AVRO else JsonCodec(schema)
        return Wished(form, codec, None if registry is None else Registry(self._reached(registry)))

    def _registered(self, registry: ItemId, topic: str) -> int:
        """The number of the stream's schema."""
        schema = AvroCodec(arrow_schema(self.desc)).avro_schema
        client = Registry(self._reached(registry))
        try:
            return asking(lambda: client.register(f"{topic}-value", schema), avoidable=False)
        except TidemillError as e:
            e.position = self.statement.format.offset + 1
            raise

    def _reached(self, connection: ItemId) -> dict[str, Any]:
        """With the texts of secrets: only to be used, never to be kept."""
        return options(self.catalog, connection, self.session.engine.secrets)

    def _connection(self, name: ast.Name, kind: str) -> ItemId:
        item = self.session.resolver(self.catalog).any_item(name, "connection")
        if not isinstance(item, Connection):
            raise WrongObjectType(f'"{item.name}" is not a connection', position=name.offset + 1)
        self.session.privileges(self.catalog).check(item, "USAGE")
        return expect_type(item, kind, name.offset + 1).id


def _check_names(desc: RelationDesc) -> None:
    for column in desc.columns:
        if not _AVRO_NAME.fullmatch(column.name):
            raise InvalidValue(
                f'"{column.name}" is no name of a field in Avro',
                detail="Such names have letters, digits and underscores, and begin with no digit.",
                hint="Use FORMAT JSON, or make the sink from a materialized view with other names.",
                sqlstate="42602",
            )
