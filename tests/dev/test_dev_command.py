"""`tidemill dev kafka` as a person meets it: as a process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from tidemill.dev.process import is_free, pick_ports

READY_SECONDS = 300.0
GONE_SECONDS = 180.0


class Command:
    """The command, its output in a file, and the ports that it was told."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.ports = pick_ports(4)
        names = ("--port", "--registry-port", "--connect-port", "--postgres-port")
        arguments = [part for name, port in zip(names, self.ports, strict=True) for part in (name, str(port))]
        self._out = folder / "out"
        # But for where the downloads are.
        kept = "TIDEMILL_DEV_CACHE"
        environ = {k: v for k, v in os.environ.items() if k == kept or not k.startswith("TIDEMILL_")}
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", "dev", "kafka", *arguments, *flags],
                stdout=out,
                stderr=out,
                env={**environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._out.read_text()

    def wait_ready(self) -> None:
        until(lambda: "Ctrl-C ends it" in self.output or self.process.poll() is not None, READY_SECONDS)
        assert self.process.poll() is None, self.output


def until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
    found = re.search(r'psql "(.*)"', command.output)
    assert found is not None, command.output
    assert "CREATE CONNECTION registry TO CONFLUENT SCHEMA REGISTRY (URL 'http://" in command.output
    assert "ENVELOPE DEBEZIUM UPSERT" in command.output
    with psycopg.connect(found.group(1), autocommit=True) as sql:
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
        consumer.subscribe(["^dev.public.*"])
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
