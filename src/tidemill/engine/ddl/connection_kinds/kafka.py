"""TO KAFKA: the brokers of a cluster, and how they are spoken to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.engine.ddl.connection_kinds.kind import (
    TLS,
    ConnectionKind,
    check_choice,
    without_user,
    wrong_option,
)
from tidemill.sources.kafka import metadata

_FIELDS = {
    "BROKERS": "brokers",
    "SECURITY PROTOCOL": "security_protocol",
    "SASL MECHANISMS": "sasl_mechanism",
    "SASL USERNAME": "sasl_username",
    "SASL PASSWORD": "sasl_password",
    **TLS,
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# The first broker that answers names the other brokers of the cluster.
_MAX_BROKERS = 100


def _check(options: Mapping[str, Any]) -> None:
    brokers = options.get("brokers")
    if not brokers:
        raise wrong_option("a kafka connection needs BROKER", "Write BROKER 'host:port'.")
    if len(brokers) > _MAX_BROKERS:
        raise wrong_option(
            f"a kafka connection can have at most {_MAX_BROKERS} brokers",
            "A few are enough to find the others.",
        )
    check_addresses(brokers)
    protocol = options["security_protocol"]
    check_choice("SECURITY PROTOCOL", protocol, _PROTOCOLS)
    said = {word: field in options for word, field in _FIELDS.items()}
    for family in ("SASL", "SSL"):
        used = [word for word, given in said.items() if given and word.startswith(family)]
        if used and family not in protocol.split("_"):
            fitting = [p for p in _PROTOCOLS if family in p.split("_")]
            raise wrong_option(
                f"{used[0]} does not go with SECURITY PROTOCOL {protocol}",
                f"It goes with {' and '.join(fitting)}.",
            )
    if protocol.startswith("SASL"):
        for word in ("SASL MECHANISMS", "SASL USERNAME", "SASL PASSWORD"):
            if not said[word]:
                raise wrong_option(
                    f"SECURITY PROTOCOL {protocol} needs {word}", f"Add {word} to the options."
                )
        check_choice("SASL MECHANISMS", options["sasl_mechanism"], _MECHANISMS)


def check_addresses(brokers: list[str]) -> None:
    for address in brokers:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) < 65536:
            raise wrong_option(
                f'"{without_user(address)}" is no address of a broker',
                "Write host:port, such as 'localhost:9092'.",
            )


def _reach(options: Mapping[str, Any]) -> None:
    metadata.Admin(options).topics(metadata.CREATE_SECONDS)


KAFKA_CONNECTION = ConnectionKind(_FIELDS, ("SASL PASSWORD", "SSL KEY"), _check, _reach)
