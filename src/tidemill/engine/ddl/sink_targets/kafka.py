"""INTO KAFKA: a topic, created if it does not exist. Registers the schema."""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog.connections import KAFKA as KAFKA_CONNECTION
from tidemill.catalog.connections import SCHEMA_REGISTRY
from tidemill.catalog.items import ItemId
from tidemill.engine.ddl.sink_targets.place import check_topic, topic_name
from tidemill.engine.ddl.sink_targets.request import SinkRequest
from tidemill.errors import SyntaxError_
from tidemill.sinks.definition import AVRO, KAFKA, Definition
from tidemill.sql.parser.sink_targets.kafka import IntoKafka


def describe_into_kafka(target: IntoKafka, request: SinkRequest) -> Definition:
    statement, form = request.statement, request.format()
    if form == AVRO and statement.format.registry is None:
        raise SyntaxError_(
            "FORMAT AVRO of a Kafka sink needs a schema registry",
            hint="Write FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION name.",
            position=statement.format.offset + 1,
        )
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
        found = replace(found, registry=registry, schema_id=request.registered(registry, topic))
    if not statement.join:
        check()
    return found
