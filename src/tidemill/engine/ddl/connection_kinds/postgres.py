"""TO POSTGRES: the address of a server, a database, and who logs in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from tidemill.catalog.connections import POSTGRES_SSL_MODES
from tidemill.engine.ddl.connection_kinds.kind import TLS, ConnectionKind, check_choice, wrong_option
from tidemill.sources.postgres.describe import reach

_FIELDS = {
    "HOST": "host",
    "PORT": "port",
    "DATABASE": "database",
    "USER": "user",
    "PASSWORD": "password",
    "SSL MODE": "ssl_mode",
    **TLS,
}
# A folder would be a socket of this machine, where the server knows us by our user; a comma would be several
# hosts.
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NEEDED = ("HOST", "DATABASE", "USER")


def _check(options: Mapping[str, Any]) -> None:
    for word in _NEEDED:
        if not options.get(_FIELDS[word]):
            raise wrong_option(f"a postgres connection needs {word}", f"Write {word} '...'.")
    for word in ("HOST", "DATABASE"):
        if isinstance(options[_FIELDS[word]], dict):
            raise wrong_option(f"{word} cannot be a secret", "Only USER, PASSWORD and the SSL options can.")
    if not _is_host(options["host"]):
        raise wrong_option(
            "HOST is no name or address of a machine", "Write HOST 'db.example', and the port as PORT 5432."
        )
    if not 0 < options["port"] < 65536:
        raise wrong_option(f"PORT cannot be {options['port']}", "It is a number from 1 to 65535.")
    _check_tls(options)


def _is_host(text: str) -> bool:
    if _NAME.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_tls(options: Mapping[str, Any]) -> None:
    mode = options["ssl_mode"]
    check_choice("SSL MODE", mode, POSTGRES_SSL_MODES)
    for word, field in TLS.items():
        if field in options and mode == "disable":
            raise wrong_option(f"{word} does not go with SSL MODE disable", "Leave out one of the two.")
    if mode == "verify-ca" and "ssl_ca" not in options:
        raise wrong_option(
            "SSL MODE verify-ca needs SSL CERTIFICATE AUTHORITY",
            "With verify-full, the authorities that the machine trusts serve too.",
        )


POSTGRES_CONNECTION = ConnectionKind(_FIELDS, ("PASSWORD", "SSL KEY"), _check, reach)
