"""Stack of local upstreams in one folder: a broker, and the requested programs with it.

Called by `tidemill dev kafka`. They start in the order of their dependencies and stop in reverse order. If
one fails to start, those already started are stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.dev import bank
from tidemill.dev.broker import Broker
from tidemill.dev.connect import Connect, debezium
from tidemill.dev.jars import AVRO_CONVERTER, BROKER, CONNECT, DEBEZIUM_POSTGRES, REGISTRY, Progress, fetch
from tidemill.dev.postgres import Postgres
from tidemill.dev.process import LocalProgram, must_be_free
from tidemill.dev.registry import RegistryProcess

# The connector's name, and the prefix of its topics.
PREFIX = "dev"
# For experiments: the first message creates its topic.
BROKER_SETTINGS = {"auto.create.topics.enable": "true"}


@dataclass(frozen=True, slots=True)
class Ports:
    """Fixed ports, so that stored connections find the same upstreams after a restart."""

    kafka: int = 9092
    registry: int = 8081
    connect: int = 8083
    # Another PostgreSQL may already use 5432.
    postgres: int = 5433


class Stack:
    """`folder` is kept between starts. With the same folder and ports, everything is as before."""

    def __init__(self, folder: Path, ports: Ports, *, with_registry: bool, with_debezium: bool) -> None:
        self.broker = Broker(folder / "kafka", port=ports.kafka, settings=BROKER_SETTINGS)
        self._ports = [ports.kafka]
        self.registry: RegistryProcess | None = None
        self.postgres: Postgres | None = None
        self.connect: Connect | None = None
        if with_registry or with_debezium:
            self.registry = RegistryProcess(folder / "registry", port=ports.registry)
            self._ports.append(ports.registry)
        if with_debezium:
            self.postgres = Postgres(folder / "postgres", port=ports.postgres)
            self.connect = Connect(folder / "connect", self.broker.bootstrap, port=ports.connect)
            self._ports += [ports.postgres, ports.connect]

    @property
    def programs(self) -> list[LocalProgram]:
        """The programs in the order in which they start."""
        every = (self.broker, self.registry, self.postgres, self.connect)
        return [program for program in every if program is not None]

    def start(self, tell: Progress) -> None:
        """Start everything; `tell` receives progress messages."""
        must_be_free(*self._ports)
        bundles = [BROKER]
        if self.registry:
            bundles.append(REGISTRY)
        if self.connect:
            bundles += [CONNECT, DEBEZIUM_POSTGRES, AVRO_CONVERTER]
        for bundle in bundles:
            fetch(bundle, tell)
        try:
            for program in self.programs:
                tell(f"starting {program.name}")
                program.start()
            if self.connect and self.postgres:
                created = bank.create_tables(self.postgres)
                tell("starting Debezium")
                # All tables of the schema, including future ones.
                config = debezium(PREFIX, self.postgres, [r"public\..*"], registry=self.registry)
                self.connect.create(PREFIX, config | {"publication.autocreate.mode": "all_tables"})
                if created:
                    tell("waiting for the first rows")
                    bank.transfer_once(self.postgres, self.broker, PREFIX)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.stop()

    def check(self) -> None:
        """Raise an error with the end of its log if one of the programs has ended."""
        for program in self.programs:
            program.check()

    def addresses(self) -> dict[str, str]:
        """The name and address of each service."""
        out = {"Kafka": self.broker.bootstrap}
        if self.registry:
            out["schema registry"] = self.registry.url
        if self.postgres:
            out["PostgreSQL"] = f'psql "{self.postgres.dsn}"'
        if self.connect:
            out["Kafka Connect"] = self.connect.url
        return out

    def statements(self) -> list[str]:
        """The statements that connect Tidemill."""
        broker = f"BROKER '{self.broker.bootstrap}', SECURITY PROTOCOL PLAINTEXT"
        out = [f"CREATE CONNECTION kafka TO KAFKA ({broker});"]
        if self.registry:
            out.append(
                f"CREATE CONNECTION registry TO CONFLUENT SCHEMA REGISTRY (URL '{self.registry.url}');"
            )
        return out

    def example(self) -> list[str]:
        """Statements that read two tables of PostgreSQL; none without Debezium."""
        if not self.connect:
            return []
        form = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION registry ENVELOPE DEBEZIUM"
        sources = [
            f"CREATE SOURCE {table} FROM KAFKA CONNECTION kafka (TOPIC '{PREFIX}.public.{table}')\n  {form};"
            for table in bank.TABLES
        ]
        return [*sources, "SUBSCRIBE accounts;"]

    def change(self) -> str:
        """A statement for PostgreSQL, whose effect is then seen in Tidemill."""
        return "UPDATE accounts SET balance = balance + 5 WHERE id = 3;"
