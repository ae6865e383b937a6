"""Definitions of Kafka sources for tests, as the catalog would give them with connections resolved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.kafka_decoders import spec
from support.kafka import Kafka
from tidemill.sources.definition import open_source
from tidemill.sources.kafka.metadata import describe_topic
from tidemill.sources.kafka.source import KafkaSource

# When sources of tests look, and what their records are stamped with: brokers remove what is a week old,
# and take nothing from tomorrow.
NOW = int(time.time() * 1000)


def connection(kafka: Kafka, **options: Any) -> dict[str, Any]:
    return {"brokers": [kafka.bootstrap], "security_protocol": "PLAINTEXT", **options}


def definition(
    kafka: Kafka,
    topic: str,
    outputs: Sequence[Mapping[str, Any]] = (),
    *,
    starts: Mapping[int, int] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Of a topic as it is now; read from its beginning unless told otherwise."""
    info = describe_topic(connection(kafka), topic)
    begins = {p: low for p, (low, _) in info.partitions.items()} | dict(starts or {})
    return {
        "kind": "kafka",
        "connection": connection(kafka),
        "topic": topic,
        "topic_id": info.topic_id,
        "partitions": {str(p): start for p, start in begins.items()},
        "group_id_prefix": None,
        "refresh_ms": 1000,
        "outputs": list(outputs) or [spec()],
        "started": NOW,
        **fields,
    }


def opened(kafka: Kafka, topic: str, *outputs: Mapping[str, Any], **more: Any) -> KafkaSource:
    source = open_source(definition(kafka, topic, outputs, **more))
    assert isinstance(source, KafkaSource)
    return source
