"""What the proofs over a real Debezium share: its upstream, a server that reads it, and kill -9 of each."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess

SECONDS = 240.0
VICTIMS = ("connect", "server", "broker")
# Of `make chaos`. A slice of them, and another one: TIDEMILL_TEST_ROUNDS=20 TIDEMILL_TEST_SEED=3.
ROUNDS = int(os.environ.get("TIDEMILL_TEST_ROUNDS", "100"))
SEED = int(os.environ.get("TIDEMILL_TEST_SEED", "0"))
# After so many rounds, and after the last, everything is compared.
COMPARED = 5


class DebeziumProof(ABC):
    def __init__(
        self, server: ServerProcess, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium
    ) -> None:
        self.server = server
        self.kafka = kafka
        self.registry = registry
        self.debezium = debezium

    @classmethod
    @contextmanager
    def of(cls, folder: Path, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium) -> Generator[Self]:
        """With a server of its own; in the end everything that was killed runs again."""
        server = ServerProcess(folder / "data")
        try:
            yield cls(server, kafka, registry, debezium)
        finally:
            kafka.start()
            debezium.start()
            server.close()

    @abstractmethod
    def work(self) -> None:
        """Change the upstream for a while."""

    def rounds(self) -> Iterator[bool]:
        """Kill one after the other. Says after each whether to compare everything."""
        victims = random.Random(SEED)
        for n in range(1, ROUNDS + 1):
            self.trouble(victims.choice(VICTIMS))
            yield n == ROUNDS or n % COMPARED == 0

    def trouble(self, which: str) -> None:
        """Kill one of them at work; the work goes on."""
        self.work()
        self.kill(which)
        self.work()
        self.start(which)
        self.work()

    def kill(self, which: str) -> None:
        match which:
            case "connect":
                self.debezium.kill()
            case "server":
                self.server.kill9()
            case _:
                # Connect then restarts its tasks as well, as after a kill of its own.
                self.kafka.kill()

    def start(self, which: str) -> None:
        match which:
            case "connect":
                self.debezium.start()
            case "server":
                self.server.start(wait_ready=True)
            case _:
                self.kafka.start()

    def ask(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.sql_dsn, autocommit=True)

    def connect(self, c: psycopg.Connection[Any]) -> None:
        """The connections `k` and `c`, to the broker and to the registry."""
        c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{self.kafka.bootstrap}')".encode())
        c.execute(f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY (URL '{self.registry.url}')".encode())

    def wait_for_records(self, *topics: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not all(self.kafka.read(topic) for topic in topics):
            assert time.monotonic() < deadline, f"Debezium writes nothing to some of {topics}"
            time.sleep(0.2)
