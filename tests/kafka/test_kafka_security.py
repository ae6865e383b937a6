"""Connections with users, passwords and certificates: let in by the right ones, told why by the wrong
ones."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kafka.kafka_decoders import spec
from kafka.kafka_world import NOW, definition
from support.kafka import REQUEST_SECONDS, Kafka
from tidemill.dev.broker import PASSWORD, PLAIN_PASSWORD, PLAIN_USER, USER, Secure
from tidemill.sources.contract import SourcePiece, UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.kafka import consume
from tidemill.sources.kafka.client import Unreachable, configuration
from tidemill.sources.kafka.metadata import Admin, describe_topic


@pytest.fixture
def secure(kafka: Kafka) -> Secure:
    assert kafka.broker.secure is not None
    return kafka.broker.secure


def ways_in(secure: Secure) -> dict[str, dict[str, Any]]:
    """Every way in that the broker has."""
    certificates = secure.certificates
    ca = certificates.ca.read_text()
    scram = {"sasl_username": USER, "sasl_password": PASSWORD}
    plain = {"sasl_username": PLAIN_USER, "sasl_password": PLAIN_PASSWORD, "sasl_mechanism": "PLAIN"}
    sasl = {"brokers": [secure.sasl], "security_protocol": "SASL_PLAINTEXT"}
    sasl_tls = {"brokers": [secure.sasl_tls], "security_protocol": "SASL_SSL", "ssl_ca": ca}
    return {
        "scram 256": {**sasl, **scram, "sasl_mechanism": "SCRAM-SHA-256"},
        "scram 512": {**sasl, **scram, "sasl_mechanism": "SCRAM-SHA-512"},
        "plain": {**sasl, **plain},
        "tls": {"brokers": [secure.tls], "security_protocol": "SSL", "ssl_ca": ca},
        "sasl over tls": {**sasl_tls, **scram, "sasl_mechanism": "SCRAM-SHA-512"},
        "certificates": {
            "brokers": [secure.mutual_tls],
            "security_protocol": "SSL",
            "ssl_ca": ca,
            "ssl_certificate": certificates.client.read_text(),
            "ssl_key": certificates.client_key.read_text(),
        },
    }


WAYS = ["scram 256", "scram 512", "plain", "tls", "sasl over tls", "certificates"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_reads(kafka: Kafka, secure: Secure, way: str) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")])
    reached = ways_in(secure)[way]
    assert describe_topic(reached, topic).partitions == {0: (0, 1)}
    source = open_source({**definition(kafka, topic, [spec()]), "connection": reached})
    assert source.frontier(NOW).as_dict() == {0: 1}
    rows = [row for batch in source.reader().read(SourcePiece(0, 0, 1)) for row in batch.rows.to_pylist()]
    assert rows == [{"text": "v"}]


PASSWORD_TEXT = "the Kafka broker does not accept the user or the password"
AWAY_TEXT = "the Kafka brokers cannot be reached"
TLS_TEXT = "no TLS connection to the Kafka broker"


@pytest.mark.parametrize(
    ("way", "change", "text"),
    [
        ("scram 512", {"sasl_password": "wrong-secret"}, PASSWORD_TEXT),
        ("plain", {"sasl_password": "wrong-secret"}, PASSWORD_TEXT),
        ("sasl over tls", {"sasl_username": "mallory"}, PASSWORD_TEXT),
        ("tls", {"ssl_ca": None}, TLS_TEXT),
        ("certificates", {"ssl_certificate": None, "ssl_key": None}, TLS_TEXT),
        ("tls", {"security_protocol": "PLAINTEXT", "ssl_ca": None}, AWAY_TEXT),
    ],
)
def test_who_is_not_let_in_is_told_why(
    kafka: Kafka,
    secure: Secure,
    way: str,
    change: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Who is refused is told at once; of a broker that is not understood nothing but silence is heard.
    seconds = 2.0 if text is AWAY_TEXT else REQUEST_SECONDS
    monkeypatch.setattr(consume, "STALL_SECONDS", seconds)
    reached = {**ways_in(secure)[way], **change}
    with pytest.raises(Unreachable) as e:
        Admin(reached).identity("t", seconds)
    assert e.value.primary.startswith(text), str(e.value)
    assert e.value.hint
    assert "wrong-secret" not in str(e.value)
    # The same in a task, which is not left waiting.
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")])
    source = open_source({**definition(kafka, topic, [spec()]), "connection": reached})
    with pytest.raises(Unreachable) as e:
        list(source.reader().read(SourcePiece(0, 0, 1)))
    assert e.value.primary.startswith(text), str(e.value)
    assert "wrong-secret" not in repr(source.reader())


def test_hosts_and_ports_that_are_none() -> None:
    error = unreachable("no-such-host.invalid:9092", "no-such-host.invalid")
    assert error.hint is not None and "BROKERS" in error.hint
    unreachable("127.0.0.1:1", "Connection refused")


def unreachable(broker: str, reason: str) -> Unreachable:
    """How it is told; the client may need more than one look to know why."""
    admin = Admin({"brokers": [broker]})
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        with pytest.raises(Unreachable) as e:
            admin.identity("t", 2.0)
        if reason in str(e.value.detail):
            return e.value
        assert time.monotonic() < deadline, str(e.value)


@pytest.mark.parametrize(
    "change",
    [{"ssl_ca": "no certificate"}, {"security_protocol": "CARRIER_PIGEON"}, {"sasl_mechanism": "GUESSING"}],
)
def test_options_that_librdkafka_refuses(secure: Secure, change: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError, match="the connection to Kafka cannot be made"):
        Admin({**ways_in(secure)["sasl over tls"], **change})


def test_only_known_options_become_properties() -> None:
    with pytest.raises(UpstreamError, match="definition cannot be read"):
        configuration({"brokers": ["h:1"], "ssl.ca.location": "/etc/passwd"})
    assert configuration({"brokers": ["a:1", "b:2"], "sasl_username": None})["bootstrap.servers"] == "a:1,b:2"
