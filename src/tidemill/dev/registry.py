"""Local schema registry: Apicurio, at its address that supports Confluent's protocol.

Called by `tidemill dev kafka` and by the tests. Schemas are kept in a file of `folder`, so ids keep their
meaning after a kill and a restart, as the messages in a topic require.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from tidemill.dev.jars import REGISTRY, Progress, fetch
from tidemill.dev.process import HOST, LocalProgram, java_command, must_be_free, pick_ports

# 3-5 s on a machine with two cores and other work.
START_SECONDS = 240.0
REQUEST_SECONDS = 5.0
# 170-250 MB in total.
HEAP_MB = 512


class RegistryProcess(LocalProgram):
    """`folder` is kept between starts."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__("the schema registry", folder, "registry.log")
        self.port = port if port is not None else pick_ports(1)[0]

    @property
    def url(self) -> str:
        """The address for clients of Confluent's schema registry."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    @property
    def native_url(self) -> str:
        """The address for Apicurio's own converter in Kafka Connect."""
        return f"http://{HOST}:{self.port}/apis/registry/v2"

    def start(self, progress: Progress | None = None) -> None:
        """Start it, also again after an end. Returns when it serves requests."""
        must_be_free(self.port)
        (jar,) = fetch(REGISTRY, progress).glob("apicurio-registry-app-*-runner.jar")
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(self.port),
            "quarkus.http.access-log.enabled": "false",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # By default the database writes half a second after the response, and a kill in between loses the
            # schema.
            "apicurio.datasource.url": f"jdbc:h2:file:{self.folder / 'schemas'};WRITE_DELAY=0",
            # It opens all of them at its start.
            "apicurio.datasource.jdbc.initial-size": "2",
            "apicurio.datasource.jdbc.min-size": "2",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        self._launch(java_command(HEAP_MB, str(jar), "io.quarkus.runner.GeneratedMain", options=options))
        self._wait_ready(self._serves, START_SECONDS)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=REQUEST_SECONDS) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False
