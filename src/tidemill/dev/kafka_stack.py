"""A broker, and the requested programs with it: a schema registry, or Debezium with a PostgreSQL.

Called by `tidemill dev kafka`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.dev import bank
from tidemill.dev.broker import Broker
from tidemill.dev.connect import Connect, debezium
from tidemill.dev.jars import AVRO_CONVERTER, BROKER, CONNECT, DEBEZIUM_POSTGRES, REGISTRY, Progress, fetch
from tidemill.dev.postgres import Postgres
from tidemill.dev.process import LocalProgram
from tidemill.dev.registry import RegistryProcess
from tidemill.dev.stack import Stack, addressed, indented

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


class KafkaStack(Stack):
    """`folder` is kept between starts."""

    def __init__(self, folder: Path, ports: Ports, *, with_registry: bool, with_debezium: bool) -> None:
        self.broker = Broker(folder / "kafka", port=ports.kafka, settings=BROKER_SETTINGS)
        used = [ports.kafka]
        self.registry: RegistryProcess | None = None
        self.postgres: Postgres | None = None
        self.connect: Connect | None = None
        if with_registry or with_debezium:
            self.registry = RegistryProcess(folder / "registry", port=ports.registry)
            used.append(ports.registry)
        if with_debezium:
            self.postgres = Postgres(folder / "postgres", port=ports.postgres)
            self.connect = Connect(folder / "connect", self.broker.bootstrap, port=ports.connect)
            used += [ports.postgres, ports.connect]
        super().__init__(used)

    @property
    def programs(self) -> list[LocalProgram]:
        every = (self.broker, self.registry, self.postgres, self.connect)
        return [program for program in every if program is not None]

    def _fetch(self, tell: Progress) -> None:
        bundles = [BROKER]
        if self.registry:
            bundles.append(REGISTRY)
        if self.connect:
            bundles += [CONNECT, DEBEZIUM_POSTGRES, AVRO_CONVERTER]
        for bundle in bundles:
            fetch(bundle, tell)

    def _prepare(self, tell: Progress) -> None:
        if not (self.connect and self.postgres):
            return
        created = bank.create_tables(self.postgres)
        tell("starting Debezium")
        # All tables of the schema, including future ones.
        config = debezium(PREFIX, self.postgres, [r"public\..*"], registry=self.registry)
        self.connect.create(PREFIX, config | {"publication.autocreate.mode": "all_tables"})
        if created:
            tell("waiting for the first rows")
            bank.transfer_once(self.postgres, self.broker, PREFIX)

    def introduction(self) -> list[str]:
        lines = addressed(self._addresses())
        if self.postgres:
            lines += [
                "",
                "Debezium writes the rows of each table in PostgreSQL's schema public to a topic",
                "dev.public.<table>, and the transactions to dev.transaction. The tables accounts and",
                "transfers are there. For your own, first: ALTER TABLE t REPLICA IDENTITY FULL;",
            ]
        lines += ["", "In Tidemill:", "", *indented([*self._statements(), *self._example()])]
        if self.postgres:
            lines += ["", "and then in PostgreSQL:", "", f"  {bank.CHANGE}"]
        return lines

    def _addresses(self) -> dict[str, str]:
        """The name and address of each service."""
        out = {"Kafka": self.broker.bootstrap}
        if self.registry:
            out["schema registry"] = self.registry.url
        if self.postgres:
            out["PostgreSQL"] = f'psql "{self.postgres.dsn}"'
        if self.connect:
            out["Kafka Connect"] = self.connect.url
        return out

    def _statements(self) -> list[str]:
        """The statements that connect Tidemill."""
        broker = f"BROKER '{self.broker.bootstrap}', SECURITY PROTOCOL PLAINTEXT"
        out = [f"CREATE CONNECTION kafka TO KAFKA ({broker});"]
        if self.registry:
            out.append(
                f"CREATE CONNECTION registry TO CONFLUENT SCHEMA REGISTRY (URL '{self.registry.url}');"
            )
        return out

    def _example(self) -> list[str]:
        """Statements that read two tables of PostgreSQL; none without Debezium."""
        if not self.connect:
            return []
        form = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION registry ENVELOPE DEBEZIUM"
        sources = [
            f"CREATE SOURCE {table} FROM KAFKA CONNECTION kafka (TOPIC '{PREFIX}.public.{table}')\n  {form};"
            for table in bank.TABLES
        ]
        return [*sources, "SUBSCRIBE accounts;"]
