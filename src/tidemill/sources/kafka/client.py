"""librdkafka configuration and error texts.

A resolved connection (host names, users, secrets as text) becomes a configuration. Its options are a fixed
list, because client properties can read files and load code. A failed call often returns only "timed out";
librdkafka reports the cause (a wrong password, an unknown host) to `error_cb`. `Complaints` keeps those
reports, and `explain` combines both into one error. Used by `metadata`, `consume`, `native` and the Kafka
sink. Never logs. The texts of librdkafka name brokers and mechanisms, but no secrets, and are used in errors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from tidemill.sources.contract import UpstreamError

# The options of a connection, and the properties that they set. Certificates are PEM texts, not files.
_PROPERTIES = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "ssl_ca": "ssl.ca.pem",
    "ssl_certificate": "ssl.certificate.pem",
    "ssl_key": "ssl.key.pem",
}
_BROKERS = "brokers"

_COMMON: dict[str, str | int] = {
    "client.id": "tidemill",
    # Relevant problems are reported as errors; the log would go to stderr.
    "log_level": 0,
    "allow.auto.create.topics": "false",
    # Small requests must not wait for each other.
    "socket.nagle.disable": "true",
    # A broker that is available again is found within a second.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    # Brokers may ask clients for measurements; ours are our own.
    "enable.metrics.push": "false",
}

# Number of complaints kept: the latest show the cause, and repetitions are kept once.
MAX_COMPLAINTS = 16


class Unreachable(UpstreamError):
    """The brokers are unreachable or refuse access. A retry may succeed without a change of the source."""

    transient = True


def configuration(connection: Mapping[str, Any]) -> dict[str, str | int]:
    """The settings of every client of the connection. Raises UpstreamError for unknown options."""
    unknown = connection.keys() - _PROPERTIES.keys() - {_BROKERS}
    if unknown:
        raise UpstreamError(
            "the connection's definition cannot be read",
            detail=f"It has the option {min(unknown)!r}.",
            hint="It was made by another version of Tidemill, or the catalog is damaged.",
        )
    settings = dict(_COMMON)
    settings["bootstrap.servers"] = ",".join(connection[_BROKERS])
    for option, name in _PROPERTIES.items():
        value = connection.get(option)
        if value is not None:
            settings[name] = value
    return settings


@dataclass(frozen=True, slots=True)
class Complaint:
    """A report of librdkafka: its code, and a text that names the broker."""

    code: int
    text: str


class Complaints:
    """The latest complaints of one client; called from its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Complaint] = []

    def __call__(self, error: KafkaError) -> None:
        self.add(Complaint(error.code(), error.str()))

    def add(self, complaint: Complaint) -> None:
        with self._lock:
            if complaint not in self._kept:
                self._kept.append(complaint)
                del self._kept[:-MAX_COMPLAINTS]

    def clear(self) -> None:
        """Earlier reports do not apply to later calls."""
        with self._lock:
            self._kept.clear()

    def latest(self) -> list[Complaint]:
        with self._lock:
            return list(self._kept)


_REFUSED = frozenset(
    (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM)
)
_FORBIDDEN = frozenset((KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED))
_NO_HOST = KafkaError._RESOLVE
_TLS = KafkaError._SSL
# Codes that add nothing to the other reports.
_VAGUE = frozenset((KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._NOENT))


def refused(complaints: Sequence[Complaint]) -> bool:
    """Whether there is no use in waiting: authentication, authorization or TLS failed."""
    return any(c.code in _REFUSED or c.code in _FORBIDDEN or _of_tls(c) for c in complaints)


def _of_tls(complaint: Complaint) -> bool:
    # A missing certificate is reported after the handshake, as a broken connection.
    return complaint.code == _TLS or "SSL routines" in complaint.text


def explain(complaints: Sequence[Complaint], brokers: str, instead: str) -> UpstreamError:
    """The error of a failed call, explained by the reports during it; `instead` is the call's own message."""
    for complaint in reversed(complaints):
        if complaint.code in _REFUSED:
            return Unreachable(
                "the Kafka broker does not accept the user or the password",
                detail=complaint.text,
                hint="See SECURITY PROTOCOL, SASL MECHANISMS, SASL USERNAME and SASL PASSWORD of the "
                "connection. It is tried again by itself.",
                sqlstate="28P01",
            )
    for complaint in reversed(complaints):
        if _of_tls(complaint):
            return Unreachable(
                "no TLS connection to the Kafka broker",
                detail=complaint.text,
                hint="SSL CERTIFICATE AUTHORITY of the connection must have signed the broker's certificate, "
                "which must name the host; a broker may ask for SSL CERTIFICATE and SSL KEY.",
            )
        if complaint.code in _FORBIDDEN:
            return Unreachable(
                "the Kafka broker does not allow it",
                detail=complaint.text,
                hint="The user needs DESCRIBE and READ on the topic.",
                sqlstate="42501",
            )
    telling = [c for c in complaints if c.code not in _VAGUE]
    if any(c.code == _NO_HOST for c in telling):
        hint = "See the host names in BROKERS of the connection."
    else:
        hint = (
            "See BROKERS and SECURITY PROTOCOL of the connection, and whether the brokers run. "
            "It is tried again by itself."
        )
    return Unreachable(
        f"the Kafka brokers cannot be reached: {brokers}",
        detail=telling[-1].text if telling else instead,
        hint=hint,
        sqlstate="08001",
    )
