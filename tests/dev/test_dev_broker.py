"""The broker that tests and `tidemill dev kafka` stand on: what it promises, told by confluent-kafka."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from support.kafka import REQUEST_SECONDS, Kafka, Record, send
from tidemill.dev import broker as module
from tidemill.dev.broker import Broker
from tidemill.dev.process import is_free
from tidemill.errors import Unavailable


def test_what_is_produced_is_read_back_with_all_its_parts(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    placed = kafka.produce(
        topic,
        [
            ("k1", b"v1", None, None, 0),
            (None, None, [("h", b"x"), ("n", None)], 1_700_000_000_123, 1),
            Record("k2", "v2", partition=0),
        ],
    )
    assert placed == [(0, 0), (1, 0), (0, 1)]
    assert [(m.key(), m.value()) for m in kafka.read(topic, 0)] == [(b"k1", b"v1"), (b"k2", b"v2")]
    (other,) = kafka.read(topic, 1)
    assert (other.key(), other.value(), other.timestamp()[1]) == (None, None, 1_700_000_000_123)
    assert other.headers() == [("h", b"x"), ("n", None)]


def test_topics_are_deleted_truncated_and_widened(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(None, str(i)) for i in range(10)])
    kafka.delete_records(topic, {0: 4})
    assert [m.offset() for m in kafka.read(topic, 0)] == [*range(4, 10)]
    kafka.add_partitions(topic, 3)
    assert kafka.produce(topic, [(None, "x", None, None, 2)]) == [(2, 0)]
    kafka.delete_topic(topic)
    assert topic not in kafka.admin.list_topics(timeout=REQUEST_SECONDS).topics
    assert kafka.create_topic(topic) == topic
    assert kafka.read(topic) == []


def test_transactions_hide_what_is_aborted_and_what_is_open(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    assert kafka.transaction(topic, [("k", "kept")]) == [(0, 0)]
    # Offset 1 is the commit marker.
    assert kafka.transaction(topic, [("k", "dropped")], commit=False) == [(0, 2)]
    producer = kafka.open_transaction()
    assert send(producer, topic, [("k", "open")]) == [(0, 4)]
    committed: dict[str, Any] = {"isolation.level": "read_committed"}
    assert [m.value() for m in kafka.read(topic, **committed)] == [b"kept"]
    producer.commit_transaction(REQUEST_SECONDS)
    kafka.until_marked(topic, [(0, 4)])
    assert [m.value() for m in kafka.read(topic, **committed)] == [b"kept", b"open"]


def test_what_was_acknowledged_survives_kill_9(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    sent = [str(i).encode() for i in range(1000)]
    kafka.produce(topic, [(None, value) for value in sent])
    before = kafka.broker.pid
    kafka.kill()
    assert not kafka.broker.running
    assert is_free(kafka.broker.port)
    kafka.start()
    assert kafka.broker.pid != before
    assert [m.value() for m in kafka.read(topic)] == sent
    assert kafka.produce(topic, [(None, "more")]) == [(0, 1000)]


def sasl(mechanism: str, name: str, password: str) -> dict[str, Any]:
    return {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}


def listeners(kafka: Kafka) -> dict[str, dict[str, Any]]:
    secure = kafka.broker.secure
    assert secure is not None
    certificates = secure.certificates
    scram = sasl("SCRAM-SHA-512", module.USER, module.PASSWORD)
    plain = sasl("PLAIN", module.PLAIN_USER, module.PLAIN_PASSWORD)
    ca = {"ssl.ca.location": str(certificates.ca)}
    own = {
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client_key),
    }
    return {
        "scram": {"bootstrap.servers": secure.sasl, "security.protocol": "SASL_PLAINTEXT", **scram},
        "plain": {"bootstrap.servers": secure.sasl, "security.protocol": "SASL_PLAINTEXT", **plain},
        "tls": {"bootstrap.servers": secure.tls, "security.protocol": "SSL", **ca},
        "both": {"bootstrap.servers": secure.sasl_tls, "security.protocol": "SASL_SSL", **ca, **scram},
        "mutual": {"bootstrap.servers": secure.mutual_tls, "security.protocol": "SSL", **ca, **own},
    }


@pytest.mark.parametrize("name", ["scram", "plain", "tls", "both", "mutual"])
def test_who_has_the_right_secret_is_let_in(kafka: Kafka, name: str) -> None:
    topic = kafka.create_topic()
    client = AdminClient(kafka.client(**listeners(kafka)[name]))
    assert topic in client.list_topics(timeout=REQUEST_SECONDS).topics


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("scram", {"sasl.password": "wrong"}, "Authentication failed"),
        ("plain", {"sasl.password": "wrong"}, "Authentication failed"),
        ("tls", {"ssl.ca.location": None}, "certificate"),
        ("mutual", {"ssl.certificate.location": None, "ssl.key.location": None}, "certificate"),
    ],
)
def test_who_has_not_is_told_why(kafka: Kafka, name: str, change: dict[str, Any], reason: str) -> None:
    told: list[str] = []
    options = kafka.client(**{**listeners(kafka)[name], **change})
    options = {k: v for k, v in options.items() if v is not None}
    options["error_cb"] = lambda error: told.append(error.str())  # pyright: ignore[reportUnknownLambdaType]
    client = AdminClient(options)
    # Errors of a connection come to this callback alone, and only while the client is polled.
    deadline = time.monotonic() + REQUEST_SECONDS
    while not any(reason in text for text in told):
        client.poll(0.1)
        assert time.monotonic() < deadline, told


def test_a_port_that_is_taken_is_told(tmp_path: Path, kafka: Kafka) -> None:
    with pytest.raises(Unavailable, match=f"port {kafka.broker.port} .* is taken"):
        Broker(tmp_path, port=kafka.broker.port).start()
    assert kafka.broker.running


@pytest.mark.kafka
def test_a_broker_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        Broker(tmp_path, settings={"authorizer.class.name": "no.such.Authorizer"}).start()
    assert "Kafka broker ended with status" in caught.value.primary
    assert "no.such.Authorizer" in (caught.value.detail or "")
