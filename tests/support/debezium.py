"""A real schema registry, and a real Debezium on a real PostgreSQL, for tests: each started once per run by
the first test that asks for it.

The fixture `registry` is a handle on Apicurio at its address for Confluent's clients. The fixture `debezium`
is a handle on Kafka Connect and PostgreSQL; `capture` makes a connector. Tests may kill and restart them;
each test begins with all that it uses running. See `support.kafka` for the broker and the marker.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import mariadb
from support.kafka import REQUEST_SECONDS, Kafka
from tidemill.dev import connect
from tidemill.dev.connect import Connect
from tidemill.dev.jars import DEBEZIUM_MARIADB, DEBEZIUM_POSTGRES
from tidemill.dev.postgres import Postgres
from tidemill.dev.registry import RegistryProcess


class SchemaRegistry:
    """The registry of the test run."""

    def __init__(self, process: RegistryProcess) -> None:
        self.process = process
        self.url = process.url

    def register(
        self,
        subject: str,
        schema: str | Mapping[str, Any] | Sequence[Any],
        kind: str = "AVRO",
        references: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Register a schema (text, or JSON to be written as text) and give its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        return self.request("POST", f"/subjects/{subject}/versions", body)["id"]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any request of Confluent's protocol; urllib's HTTPError for a refusal."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """kill -9; the schemas are there after `start`."""
        self.process.kill()

    def start(self) -> None:
        """Start it again if it is down."""
        if not self.process.running:
            self.process.start()


class Debezium:
    """Kafka Connect and PostgreSQL of the test run."""

    def __init__(self, worker: Connect, postgres: Postgres, registry: SchemaRegistry) -> None:
        self.connect = worker
        self.postgres = postgres
        self._registry = registry

    def sql(self) -> psycopg.Connection[Any]:
        """A connection to PostgreSQL that commits each statement, unless the test opens a transaction."""
        return psycopg.connect(self.postgres.dsn, autocommit=True)

    def capture(self, *tables: str, avro: bool = True, prefix: str | None = None, **settings: str) -> str:
        """Carry tables (`public.name`) to topics: a running connector whose topics are `<prefix>.<table>`, in
        Avro or in JSON without schemas. Gives the prefix, which is also the connector's name. Its snapshot
        may still be on its way."""
        prefix = prefix or f"d{uuid.uuid4().hex[:12]}"
        registry = self._registry.process if avro else None
        config = connect.debezium(prefix, self.postgres, tables, registry=registry)
        self.connect.create(prefix, config | settings)
        return prefix

    def release(self, prefix: str) -> None:
        """End a connector and drop its slot, which would hold PostgreSQL's log back for ever."""
        self.connect.delete(prefix)
        with self.sql() as sql:
            slot = f"{prefix}_slot"
            # The connector lets go of it a moment after it was deleted.
            while True:
                try:
                    sql.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                    return
                except psycopg.errors.ObjectInUse:
                    sql.execute("SELECT pg_sleep(0.05)")
                except psycopg.errors.UndefinedObject:
                    return

    def kill(self) -> None:
        """kill -9 of Connect: what it had not noted comes again after `start`."""
        self.connect.kill()

    def start(self) -> None:
        """Start again what is down."""
        if not self.postgres.running:
            self.postgres.start()
        if not self.connect.running:
            self.connect.start()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    process = RegistryProcess(tmp_path_factory.mktemp("registry"))
    try:
        process.start()
        yield SchemaRegistry(process)
    finally:
        process.stop()


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[Path]:
    """Not a folder of pytest: run by root, PostgreSQL has a user of its own, who must be able to enter, and
    each pytest that begins closes the folder of all of them again."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-postgres-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def debezium(
    tmp_path_factory: pytest.TempPathFactory, postgres_folder: Path, kafka: Kafka, registry: SchemaRegistry
) -> Iterator[Debezium]:
    postgres = Postgres(postgres_folder / "debezium")
    connectors = [DEBEZIUM_POSTGRES, *([DEBEZIUM_MARIADB] if mariadb.installed() else [])]
    worker = Connect(tmp_path_factory.mktemp("connect"), kafka.bootstrap, connectors=connectors)
    try:
        postgres.start()
        worker.start()
        yield Debezium(worker, postgres, registry)
    finally:
        worker.stop()
        postgres.stop()
