"""INTO KAFKA with CDCv2: a topic, created if it does not exist. Registers the schema. `kafka_keyed` has the
other envelopes."""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog.connections import KAFKA as KAFKA_CONNECTION
from tidemill.catalog.connections import SCHEMA_REGISTRY
from tidemill.catalog.items import ItemId
from tidemill.engine.ddl.sink_targets.kafka_keyed import check_registry, describe_keyed
from tidemill.engine.ddl.sink_targets.place import check_topic, topic_name
from tidemill.engine.ddl.sink_targets.request import SinkRequest, refuse_key
from tidemill.errors import InvalidValue
from tidemill.sinks.definition import AVRO, KAFKA, MATERIALIZE, Definition
from tidemill.sql.parser.sink_targets.kafka import IntoKafka


def describe_into_kafka(target: IntoKafka, request: SinkRequest) -> Definition:
    if request.statement.envelope != MATERIALIZE.upper():
        return describe_keyed(target, request)
    refuse_key(request)
    if target.progress_topic is not None:
        raise InvalidValue(
            "ENVELOPE MATERIALIZE has no PROGRESS TOPIC",
            detail="The progress is in the topic itself.",
            sqlstate="42601",
            position=target.offset + 1,
        )
    statement, form = request.statement, request.format()
    if form == AVRO:
        check_registry(request)
    found = Definition(KAFKA, form, share=request.share())
    topic = topic_name(target)
    connection = request.connection(target.connection, KAFKA_CONNECTION)
    found = replace(found, topic=topic, connection=connection)
    registry: ItemId | None = None
    if statement.format.registry is not None:
        registry = request.connection(statement.format.registry, SCHEMA_REGISTRY)
    wished = request.wished(form, registry)

    def check() -> None:
        check_topic(request.reached(connection), target, request.beginning(found), wished)

    # A sink that is refused because of existing data must not have registered its schema.
    if statement.join:
        check()
    if registry is not None:
        found = replace(
            found,
            registry=registry,
            schema_id=request.registered(registry, f"{topic}-value", request.stream_schema()),
        )
    if not statement.join:
        check()
    return found
