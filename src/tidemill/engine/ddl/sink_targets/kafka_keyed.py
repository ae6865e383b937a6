"""INTO KAFKA with ENVELOPE UPSERT or DEBEZIUM: checks the key, creates the topic and the one of its progress,
and registers the schemas of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemill.catalog.connections import KAFKA as KAFKA_CONNECTION
from tidemill.catalog.connections import SCHEMA_REGISTRY
from tidemill.catalog.items import Database, Schema
from tidemill.engine.ddl.sink_targets.place import check_topic_name, topic_name
from tidemill.engine.ddl.sink_targets.request import SinkRequest
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, UndefinedObject
from tidemill.sinks.definition import AVRO, JSON, KAFKA, UPSERT, WHOLE, Definition
from tidemill.sinks.kafka_progress import TOPIC_CONFIG as PROGRESS_CONFIG
from tidemill.sinks.kafka_progress import progress_topic
from tidemill.sinks.kafka_topic import TOPIC_CONFIG, make_topic
from tidemill.sinks.rows.messages import schemas
from tidemill.sources.kafka.metadata import CREATE_SECONDS, Admin
from tidemill.sql.parser.sink_targets.kafka import IntoKafka

_COMPACTED = {"cleanup.policy": "compact"}


def describe_keyed(target: IntoKafka, request: SinkRequest) -> Definition:
    statement, envelope = request.statement, request.statement.envelope.lower()
    key = _key(request)
    _refuse_options(request)
    form = AVRO if statement.format.kind == "AVRO" else JSON
    texts = _schemas(request, key, envelope) if form == AVRO else None
    topic = topic_name(target)
    progress = target.progress_topic or progress_topic(topic)
    check_topic_name(progress, target.offset)
    if progress == topic:
        raise InvalidValue(
            "the PROGRESS TOPIC is the topic itself", sqlstate="22023", position=target.offset + 1
        )
    connection = request.connection(target.connection, KAFKA_CONNECTION)
    registry = None
    if statement.format.registry is not None:
        registry = request.connection(statement.format.registry, SCHEMA_REGISTRY)
    found = Definition(
        KAFKA,
        form,
        envelope,
        topic,
        connection=connection,
        registry=registry,
        key=key,
        progress_topic=progress,
        origin=_origin(request),
    )
    _check_alone(request, found)
    reached = request.reached(connection)
    asking(lambda: _check_topics(reached, target, topic, progress, envelope), avoidable=False)
    if registry is not None and texts is not None:
        found = replace(
            found,
            key_schema_id=request.registered(registry, f"{topic}-key", texts[0]),
            schema_id=request.registered(registry, f"{topic}-value", texts[1]),
        )
    return found


def check_registry(request: SinkRequest) -> None:
    said = request.statement.format
    if said.registry is None:
        raise SyntaxError_(
            "FORMAT AVRO of a Kafka sink needs a schema registry",
            hint="Write FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION name.",
            position=said.offset + 1,
        )


def _key(request: SinkRequest) -> tuple[str, ...]:
    said = request.statement.key
    if said is None:
        raise SyntaxError_(
            f"ENVELOPE {request.statement.envelope} of a sink needs a KEY",
            hint="Write KEY (column, ...) before FORMAT: at each time a key has one row.",
            position=request.statement.format.offset + 1,
        )
    names = request.desc.names
    found: list[str] = []
    for column in said.columns:
        if column.value not in names:
            raise UndefinedObject(
                f'column "{column.value}" of the key does not exist',
                hint=f"The columns are {', '.join(names)}.",
                sqlstate="42703",
                position=column.offset + 1,
            )
        if column.value in found:
            raise SyntaxError_(
                f'column "{column.value}" appears twice in the key',
                sqlstate="42701",
                position=column.offset + 1,
            )
        found.append(column.value)
    return tuple(found)


def _refuse_options(request: SinkRequest) -> None:
    statement = request.statement
    for option, given in (("SHARE", request.share() != WHOLE), ("JOIN", statement.join)):
        if given:
            raise SyntaxError_(
                f"ENVELOPE {statement.envelope} has no option {option}",
                detail="A topic has one writer, which commits transactions.",
                hint="ENVELOPE MATERIALIZE has it.",
            )


def _schemas(request: SinkRequest, key: tuple[str, ...], envelope: str) -> tuple[str, str]:
    check_registry(request)
    try:
        columns = request.desc.columns
        return schemas(columns, [request.desc.names.index(name) for name in key], envelope)
    except TidemillError as e:
        e.position = request.statement.format.offset + 1
        raise


def _origin(request: SinkRequest) -> tuple[str, str, str]:
    """The relation's database, schema and name, as they are now."""
    state = request.view.state
    schema = state.get(request.relation.schema, Schema)
    database = "" if schema.database is None else state.get(schema.database, Database).name
    return database, schema.name, request.relation.name


def _check_alone(request: SinkRequest, found: Definition) -> None:
    beside = next((s for s in request.view.state.sinks() if s.target == found.target), None)
    if beside is not None:
        raise InvalidValue(
            f'sink "{beside.name}" writes to the same topic',
            detail="A topic with ENVELOPE UPSERT or DEBEZIUM has one writer.",
            hint="Choose another topic.",
            sqlstate="42710",
        )


def _check_topics(
    connection: Mapping[str, Any], target: IntoKafka, topic: str, progress: str, envelope: str
) -> None:
    config = _COMPACTED if envelope == UPSERT else TOPIC_CONFIG
    place = make_topic(connection, topic, target.partition_count, target.replication_factor, config)
    if not place.empty:
        raise InvalidValue(
            f'topic "{topic}" is not empty',
            detail="Readers would take what is there for rows of the relation.",
            hint="Choose another one, or delete it and create it anew.",
            sqlstate="55000",
        )
    if envelope == UPSERT:
        _check_kept(connection, topic)
    make_topic(connection, progress, 1, target.replication_factor, PROGRESS_CONFIG)


def _check_kept(connection: Mapping[str, Any], topic: str) -> None:
    """A topic that forgets rows by age or size would lose those that do not change."""
    settings = Admin(connection).settings(topic, CREATE_SECONDS)
    if settings is None or "delete" not in settings["cleanup.policy"].split(","):
        return
    for name in ("retention.ms", "retention.bytes"):
        if settings[name] != "-1":
            raise InvalidValue(
                f'topic "{topic}" forgets messages',
                detail=f"It has cleanup.policy={settings['cleanup.policy']} and {name}={settings[name]}. "
                "Rows that do not change would be removed from it.",
                hint="Set cleanup.policy=compact.",
                sqlstate="55000",
            )
