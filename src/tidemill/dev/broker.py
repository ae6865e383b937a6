"""Local Kafka broker: one node that is its own controller (KRaft), on loopback.

Called by `tidemill dev kafka` and by the tests. `start` returns when the broker serves clients. The broker
keeps its ports and its folder. `kill` and `start` thus act like a power cut on a real broker, and
acknowledged messages survive. With `secure` it has further listeners beside the plain one: with SASL, with
TLS, with both, and with TLS and client certificates.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemill.dev.certificates import Certificates, make_certificates
from tidemill.dev.jars import BROKER, Progress, fetch
from tidemill.dev.process import HOST, LocalProgram, answers, java_command, must_be_free, pick_ports
from tidemill.errors import Unavailable

# 4-5 s on a quiet machine with two cores.
START_SECONDS = 240.0
FORMAT_SECONDS = 120.0
METADATA_SECONDS = 2.0
# 150-270 MB in total with this heap; a benchmark may need more.
HEAP_MB = 256

# The users of the listeners with SASL: alice by SCRAM, bob by PLAIN.
USER, PASSWORD = "alice", "alice-secret"
PLAIN_USER, PLAIN_PASSWORD = "bob", "bob-secret"

# Only warnings and errors: little output, so the log needs no rotation.
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%throwable
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True, slots=True)
class Secure:
    """The listeners with authentication or TLS: addresses as `host:port`, and the credentials that a client
    needs."""

    sasl: str
    tls: str
    sasl_tls: str
    mutual_tls: str
    certificates: Certificates


class Broker(LocalProgram):
    """`folder` is kept between starts. `settings` are added to server.properties and override ours."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        secure: bool = False,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB,
    ) -> None:
        super().__init__("the Kafka broker", folder, "broker.log")
        self.heap_mb = heap_mb
        picked = pick_ports(6 if secure else 2)
        if port is not None:
            picked[0] = port
        self.port, self._controller = picked[:2]
        self._ports = picked
        self.secure: Secure | None = None
        if secure:
            sasl, tls, sasl_tls, mutual = (f"{HOST}:{port}" for port in picked[2:])
            self.secure = Secure(sasl, tls, sasl_tls, mutual, make_certificates(self.folder / "tls"))
        self._settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        """The address for clients, without authentication."""
        return f"{HOST}:{self.port}"

    def start(self, progress: Progress | None = None) -> None:
        """Start the broker, also again after an end. Returns when it serves clients."""
        must_be_free(*self._ports)
        jars = fetch(BROKER, progress)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(LOG4J)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        # The tool writes this file last.
        if not (self._data / "meta.properties").exists():
            self._format(jars, properties)
        self._launch(self._java(jars, self.heap_mb, "kafka.Kafka", str(properties)))
        self._wait_ready(self._serves, START_SECONDS)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _java(self, jars: Path, heap_mb: int, main: str, *arguments: str) -> list[str]:
        options = [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        return java_command(heap_mb, f"{jars}/*", main, arguments, options)

    def _format(self, jars: Path, properties: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The tool would take an id that begins with a dash for an option.
        cluster = cluster.replace("-", "_")
        arguments = ["format", "-t", cluster, "-c", str(properties)]
        if self.secure:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                arguments += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        run = subprocess.run(
            self._java(jars, HEAP_MB, "kafka.tools.StorageTool", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FORMAT_SECONDS,
            check=False,
        )
        if run.returncode != 0:
            raise Unavailable(
                "the Kafka broker's folder could not be formatted", detail=(run.stdout + run.stderr)[-4000:]
            )

    def _serves(self) -> bool:
        if not answers(self.port):
            return False
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=METADATA_SECONDS).brokers)
        except KafkaException:
            return False

    def _properties(self) -> dict[str, str]:
        listeners = {"PLAINTEXT": (self.bootstrap, "PLAINTEXT")}
        extra: dict[str, str] = {}
        if self.secure:
            listeners |= {
                "SASL": (self.secure.sasl, "SASL_PLAINTEXT"),
                "TLS": (self.secure.tls, "SSL"),
                "SASLTLS": (self.secure.sasl_tls, "SASL_SSL"),
                "MUTUAL": (self.secure.mutual_tls, "SSL"),
            }
            extra = _secure_properties(self.secure)
        here = ",".join(f"{name}://{address}" for name, (address, _) in listeners.items())
        protocols = ",".join(f"{name}:{protocol}" for name, (_, protocol) in listeners.items())
        controller = f"{HOST}:{self._controller}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{here},CONTROLLER://{controller}",
            "advertised.listeners": here,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._data),
            "auto.create.topics.enable": "false",
            # A single node cannot replicate, and its internal topics need one partition each.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A worker of Connect that is gone is detected after 3 s.
            "group.min.session.timeout.ms": "1000",
            # After a kill, the broker is accepted again only when its previous session has timed out (by
            # default after 9 s).
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            # Compaction and expiry take effect in seconds, not minutes. The buffer keeps the heap small.
            "log.cleaner.backoff.ms": "500",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.retention.check.interval.ms": "1000",
            # By default nothing expires: a record may have a timestamp years ago, and with the usual seven
            # days it would be deleted within a second.
            "log.retention.ms": "-1",
            **extra,
            **self._settings,
        }


def _secure_properties(secure: Secure) -> dict[str, str]:
    package = "org.apache.kafka.common.security"
    scram = f"{package}.scram.ScramLoginModule required;"
    plain = f'{package}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
    out = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(secure.certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secure.certificates.ca),
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for listener in ("sasl", "sasltls"):
        prefix = f"listener.name.{listener}"
        out[f"{prefix}.scram-sha-256.sasl.jaas.config"] = scram
        out[f"{prefix}.scram-sha-512.sasl.jaas.config"] = scram
        out[f"{prefix}.plain.sasl.jaas.config"] = plain
    return out
