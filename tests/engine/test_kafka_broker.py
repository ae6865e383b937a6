"""CREATE CONNECTION and CREATE SOURCE against a real broker: what is asked, what is kept, and what is told
when something is wrong."""

from __future__ import annotations

import pytest
from kafka_context import STARTED, World

from support.kafka import Kafka
from tidemill.catalog.connections import KAFKA
from tidemill.dev.broker import PASSWORD, PLAIN_PASSWORD, PLAIN_USER, USER
from tidemill.engine.ddl.upstreams.connection_check import check_reachable
from tidemill.errors import TidemillError


@pytest.fixture
def world(kafka: Kafka) -> World:
    world = World()
    world.connection("k", KAFKA, brokers=[kafka.bootstrap])
    return world


def source(topic: str, options: str = "") -> str:
    return f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}'{options}) FORMAT TEXT"


def test_a_topic_is_known_by_its_id_and_read_from_where_it_begins(world: World, kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=3)
    kafka.produce(topic, [(None, f"{n}", None, None, 1) for n in range(10)])
    kafka.delete_records(topic, {1: 4})
    described = world.describe(source(topic))
    definition = described.definition
    assert definition["partitions"] == {"0": 0, "1": 4, "2": 0}
    assert definition["topic_id"] and definition["topic"] == topic and definition["started"] == STARTED
    assert (definition["refresh_ms"], definition["group_id_prefix"]) == (60_000, None)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    assert world.describe(source(topic)).definition["topic_id"] != definition["topic_id"]


def test_start_offset(world: World, kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [(None, "x", None, None, 0)] * 5)
    kafka.delete_records(topic, {0: 2})
    for given, wanted in (
        ("0", {"0": 2, "1": 0}),
        ("(3)", {"0": 3, "1": 0}),
        ("[2, 0]", {"0": 2, "1": 0}),
        ("(5, 0)", {"0": 5, "1": 0}),
    ):
        assert world.describe(source(topic, f", START OFFSET {given}")).definition["partitions"] == wanted
    for given, wrong in (
        ("(1)", "START OFFSET 1 is not in partition 0"),
        ("(6)", "START OFFSET 6 is not in partition 0"),
        ("(3, 1)", "START OFFSET 1 is not in partition 1"),
        ("(3, 0, 0)", "START OFFSET has 3 entries, the topic has 2 partitions"),
    ):
        with pytest.raises(TidemillError, match=wrong) as error:
            world.describe(source(topic, f", START OFFSET {given}"))
        assert error.value.sqlstate == "22023" and error.value.position


def test_start_timestamp(world: World, kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [(None, "x", None, STARTED - 1000 * n, 0) for n in (9, 6, 3)])
    for given, wanted in (
        (0, {"0": 0, "1": 0}),
        (STARTED - 6000, {"0": 1, "1": 0}),
        (-6000, {"0": 1, "1": 0}),
        (-5999, {"0": 2, "1": 0}),
        (-2000, {"0": 3, "1": 0}),
        (-STARTED * 2, {"0": 0, "1": 0}),
    ):
        sql = source(topic, f", START TIMESTAMP {given}")
        assert world.describe(sql).definition["partitions"] == wanted, given


def test_a_topic_that_is_not_there(world: World, kafka: Kafka) -> None:
    kafka.create_topic("measurements-of-rain")
    with pytest.raises(TidemillError) as error:
        world.describe(source("measurements-of-rein"))
    assert error.value.primary == 'topic "measurements-of-rein" does not exist'
    assert "measurements-of-rain" in (error.value.hint or "") and error.value.sqlstate == "42704"


def test_secured_brokers_let_us_in_or_say_why_not(kafka: Kafka) -> None:
    secure = kafka.broker.secure
    assert secure is not None
    certificates = secure.certificates
    ca = certificates.ca.read_text()
    scram = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER, "sasl_password": PASSWORD}
    plain = {"sasl_mechanism": "PLAIN", "sasl_username": PLAIN_USER, "sasl_password": PLAIN_PASSWORD}
    good = [
        {"brokers": [secure.sasl], "security_protocol": "SASL_PLAINTEXT", **scram},
        {"brokers": [secure.sasl], "security_protocol": "SASL_PLAINTEXT", **plain},
        {"brokers": [secure.tls], "security_protocol": "SSL", "ssl_ca": ca},
        {"brokers": [secure.sasl_tls], "security_protocol": "SASL_SSL", "ssl_ca": ca, **scram},
    ]
    for options in good:
        check_reachable(KAFKA, options)
    bad = [
        ({**good[0], "sasl_password": "hunter2"}, "does not accept the user or the password"),
        ({**good[1], "sasl_password": "hunter2"}, "does not accept the user or the password"),
        ({k: v for k, v in good[2].items() if k != "ssl_ca"}, "no TLS connection"),
    ]
    for options, wanted in bad:
        with pytest.raises(TidemillError) as error:
            check_reachable(KAFKA, options)
        assert wanted in error.value.primary, error.value
        assert "hunter2" not in str(error.value)
        assert "VALIDATE = false" in (error.value.hint or "")
        assert "tried again" not in (error.value.hint or "")


def test_passwords_come_from_secrets(kafka: Kafka) -> None:
    secure = kafka.broker.secure
    assert secure is not None
    world = World()
    world.connection(
        "k",
        KAFKA,
        brokers=[secure.sasl],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=USER,
        sasl_password=world.secret("p", PASSWORD),
    )
    topic = kafka.create_topic()
    described = world.describe(source(topic))
    assert PASSWORD not in str(described.definition)
    assert described.definition["partitions"] == {"0": 0}


def test_the_older_spelling_needs_no_connection(kafka: Kafka) -> None:
    topic = kafka.create_topic()
    described = World().describe(
        f"CREATE SOURCE s FROM KAFKA BROKER '{kafka.bootstrap}' TOPIC '{topic}' FORMAT TEXT"
    )
    assert described.connections == ()
    assert described.definition["connection"] == {
        "brokers": [kafka.bootstrap],
        "security_protocol": "PLAINTEXT",
    }
