"""TO CONFLUENT SCHEMA REGISTRY: its address, and a name and a password for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tidemill.decode.registry import Registry, RegistryError
from tidemill.engine.ddl.connection_kinds.kind import TLS, ConnectionKind, without_user, wrong_option

# A subject that no topic makes.
_NO_SUBJECT = "tidemill asks whether you are there"


def _check(options: Mapping[str, Any]) -> None:
    url = options.get("url")
    if url is None:
        raise wrong_option("a schema registry connection needs URL", "Write URL 'http://host:8081'.")
    if isinstance(url, dict):
        raise wrong_option("URL cannot be a secret", "Only USERNAME, PASSWORD and the SSL options can.")
    tls = check_url(url)
    if "password" in options and "username" not in options:
        raise wrong_option("PASSWORD needs USERNAME", "Add USERNAME to the options.")
    for word, field in TLS.items():
        if field in options and not tls:
            raise wrong_option(
                f"{word} needs a URL that begins with https://", "Plain http has no certificates."
            )


def check_url(url: str) -> bool:
    """Checks the URL of a registry; returns whether it uses TLS."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good, parts = False, urlsplit("")
    if not good or parts.query or parts.fragment:
        raise wrong_option("URL is no address of a schema registry", _url_hint(url, parts))
    if "@" in parts.netloc:
        raise wrong_option(
            "URL cannot hold a name or a password", "Use the options USERNAME and PASSWORD = SECRET."
        )
    return parts.scheme == "https"


def _url_hint(url: str, parts: SplitResult) -> str:
    """The hint for an invalid URL."""
    write = "Write http://host:port or https://host:port, with the path of its interface if it has one."
    if "://" not in url:
        url = without_user(url)
        return f"It does not say how the registry is spoken to: http://{url} or https://{url}?"
    if parts.query or parts.fragment:
        return f"It has something behind a ? or a #. {write}"
    return write


def _reach(options: Mapping[str, Any]) -> None:
    """An answer that the registry does not know the subject is sufficient: the registry is reachable."""
    try:
        Registry(options).by_subject(_NO_SUBJECT)
    except RegistryError as e:
        # Other services at this address do not answer in the registry's format.
        if e.status != 404 or e.detail is None:
            raise


REGISTRY_CONNECTION = ConnectionKind(
    {"URL": "url", "USERNAME": "username", "PASSWORD": "password", **TLS},
    ("PASSWORD", "SSL KEY"),
    _check,
    _reach,
)
