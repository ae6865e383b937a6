"""Local Kafka Connect with Debezium: the changes of a PostgreSQL database as topics.

Called by `tidemill dev kafka --debezium` and by the tests. A single worker keeps all its state in topics of
the broker. After a kill and a restart its connectors resume from their last recorded position, so some
changes are sent twice.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.dev.broker import LOG4J
from tidemill.dev.jars import AVRO_CONVERTER, CONNECT, DEBEZIUM_POSTGRES, Bundle, Progress, fetch
from tidemill.dev.postgres import DATABASE, USER, Postgres
from tidemill.dev.process import HOST, POLL_SECONDS, LocalProgram, java_command, must_be_free, pick_ports
from tidemill.dev.registry import RegistryProcess
from tidemill.errors import Unavailable

# 3-4 s on a machine with two cores and other work.
START_SECONDS = 240.0
REQUEST_SECONDS = 60.0
# A new connector runs after about a second, and then takes its snapshot.
RUNNING_SECONDS = 60.0
# 140-400 MB in total.
HEAP_MB = 384
_AVRO_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"


class Connect(LocalProgram):
    """`folder` is kept between starts. The worker's state is in topics of the broker."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        port: int | None = None,
        connectors: Sequence[Bundle] = (DEBEZIUM_POSTGRES,),
    ) -> None:
        super().__init__("Kafka Connect", folder, "connect.log")
        self.bootstrap = bootstrap
        self._connectors = connectors
        self.port = port if port is not None else pick_ports(1)[0]

    @property
    def url(self) -> str:
        """The address of the REST interface."""
        return f"http://{HOST}:{self.port}"

    def start(self, progress: Progress | None = None) -> None:
        """Start the worker, also again after an end. Returns when it accepts connectors."""
        must_be_free(self.port)
        jars = fetch(CONNECT, progress)
        plugins = self.folder / "plugins"
        for connector in self._connectors:
            _link_jars(plugins / connector.name, fetch(connector, progress))
        _link_jars(plugins / "avro", fetch(AVRO_CONVERTER, progress))
        _announce_converter(plugins / "avro" / "announce.jar")
        (self.folder / "log4j2.properties").write_text(LOG4J)
        properties = self.folder / "connect.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties(plugins).items()))
        options = [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._launch(java_command(HEAP_MB, f"{jars}/*", main, [str(properties)], options))
        self._wait_ready(self._serves, START_SECONDS)

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector (or change it) and wait until it and its tasks run."""
        self._request("PUT", f"/connectors/{name}/config", dict(config))
        self.wait_running(name)

    def delete(self, name: str) -> None:
        self._request("DELETE", f"/connectors/{name}")

    def wait_running(self, name: str) -> None:
        """Wait until the connector and its tasks run. If one failed, the error contains the trace. In the
        first seconds after a kill, the worker still reports the state before it."""
        deadline = time.monotonic() + RUNNING_SECONDS
        while True:
            status = self._request("GET", f"/connectors/{name}/status", missing={})
            parts: list[dict[str, Any]] = [status["connector"], *status["tasks"]] if status else []
            failed = [part for part in parts if part["state"] == "FAILED"]
            if failed or time.monotonic() > deadline:
                seen = failed[0].get("trace", "") if failed else f"its status is {status}"
                raise Unavailable(f'the connector "{name}" does not run', detail=str(seen)[:4000])
            if len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts):
                return
            time.sleep(POLL_SECONDS)

    def _serves(self) -> bool:
        try:
            # The root answers before the worker has joined its group; this request needs the group.
            self._request("GET", "/connectors")
        except Unavailable:
            return False
        return True

    def _request(self, method: str, path: str, body: Any = None, missing: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            if e.code == 404 and missing is not None:
                return missing
            detail = e.read().decode(errors="replace")
            raise Unavailable(f"Kafka Connect refused: {e.code} {e.reason}", detail=detail[:4000]) from e
        return json.loads(text) if text else None

    def _properties(self, plugins: Path) -> dict[str, str]:
        kept = {
            f"{kind}.storage.{setting}": value
            for kind in ("config", "offset", "status")
            for setting, value in (("topic", f"connect-{kind}"), ("replication.factor", "1"))
        }
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": "connect",
            "listeners": self.url,
            "plugin.path": str(plugins),
            # Scanning every class of every jar instead takes about 8 s at each start.
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            **kept,
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "1000",
            # After a kill the connectors wait until the previous worker has timed out, and then for this
            # delay.
            "session.timeout.ms": "3000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
        }


def _link_jars(plugin: Path, bundle: Path) -> None:
    """A folder per plugin, created again at each start, because another version may have other jars."""
    shutil.rmtree(plugin, ignore_errors=True)
    plugin.mkdir(parents=True)
    for jar in bundle.rglob("*.jar"):
        (plugin / jar.name).symlink_to(jar)


def _announce_converter(path: Path) -> None:
    """The Avro converter lacks the list of services with which Connect finds plugins quickly."""
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/services/org.apache.kafka.connect.storage.Converter", f"{_AVRO_CONVERTER}\n")


def debezium(
    prefix: str, postgres: Postgres, tables: Sequence[str], *, registry: RegistryProcess | None = None
) -> dict[str, str]:
    """The configuration of a connector that copies `tables` (`schema.name`) to topics `prefix.schema.name`,
    in Avro with its schemas in `registry`, or in JSON without schemas."""
    out = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": "",
        "database.dbname": DATABASE,
        "topic.prefix": prefix,
        "table.include.list": ",".join(tables),
        "plugin.name": "pgoutput",
        "slot.name": f"{prefix}_slot",
        "publication.name": f"{prefix}_publication",
        "publication.autocreate.mode": "filtered",
        "provide.transaction.metadata": "true",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        # The broker does not create topics automatically.
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }
    if registry is not None:
        for part in ("key", "value"):
            out |= {
                f"{part}.converter": _AVRO_CONVERTER,
                f"{part}.converter.apicurio.registry.url": registry.native_url,
                f"{part}.converter.apicurio.registry.auto-register": "true",
                f"{part}.converter.apicurio.registry.as-confluent": "true",
                f"{part}.converter.apicurio.registry.headers.enabled": "false",
                # In the registry's API for Confluent's clients, ids count contents, not versions.
                f"{part}.converter.apicurio.registry.use-id": "contentId",
            }
        out["schema.name.adjustment.mode"] = "avro"
    return out
