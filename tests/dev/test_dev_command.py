"""`tidemill dev kafka` as a person meets it: as a process."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from dev.dev_command import GONE_SECONDS, READY_SECONDS, Command, until
from tidemill.dev.process import is_free


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def run(*flags: str) -> Command:
        started.append(Command(tmp_path, *flags))
        return started[-1]

    yield run
    for command in started:
        # What it started ends with it.
        command.process.kill()
        command.process.wait()


@pytest.mark.kafka
def test_a_broker_alone_which_does_not_outlive_a_killed_command(start: Callable[..., Command]) -> None:
    command = start()
    command.wait_ready()
    bootstrap = f"127.0.0.1:{command.ports[0]}"
    assert f"CREATE CONNECTION kafka TO KAFKA (BROKER '{bootstrap}'," in command.output
    assert "REGISTRY" not in command.output
    # A topic is made by the first message.
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce("things", b"hello")
    assert producer.flush(READY_SECONDS) == 0
    command.process.kill()
    until(lambda: is_free(command.ports[0]), GONE_SECONDS)


@pytest.mark.kafka
def test_debezium_carries_a_table_that_is_made_later(
    start: Callable[..., Command], postgres_folder: Path
) -> None:
    command = start("--debezium", "--data-dir", str(postgres_folder / "kept"))
    command.wait_ready()
    assert "CREATE CONNECTION registry TO CONFLUENT SCHEMA REGISTRY (URL 'http://" in command.output
    with psycopg.connect(command.postgres, autocommit=True) as sql:
        sql.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
        sql.execute("INSERT INTO people VALUES (1, 'ada')")
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{command.ports[0]}",
                "group.id": "test",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe(["^dev.public.people"])
        seen: list[bytes] = []

        def arrived() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                seen.append(message.value() or b"")
            return bool(seen)

        until(arrived, READY_SECONDS)
        consumer.close()
    assert seen[0][0] == 0 and b"ada" in seen[0]
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(GONE_SECONDS) == 0
    assert all(map(is_free, command.ports)), command.output
    assert (postgres_folder / "kept" / "kafka" / "data").is_dir()


def test_a_port_that_is_taken_is_told_before_anything_starts(start: Callable[..., Command]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = start("--registry", "--registry-port", str(port))
        assert command.process.wait(GONE_SECONDS) == 2
    assert f"port {port} of 127.0.0.1 is taken" in command.output
    assert "HINT" in command.output
