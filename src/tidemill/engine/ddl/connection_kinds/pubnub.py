"""TO PUBNUB: the key set that is read, and what entitles to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tidemill.engine.ddl.connection_kinds.kind import ConnectionKind, wrong_option
from tidemill.sources.pubnub.service import Service

_FIELDS = {"SUBSCRIBE KEY": "subscribe_key", "AUTH KEY": "auth_key", "ENDPOINT": "endpoint"}


def _check(options: Mapping[str, Any]) -> None:
    if not options.get("subscribe_key"):
        raise wrong_option("a PubNub connection needs SUBSCRIBE KEY", "Write SUBSCRIBE KEY 'sub-c-...'.")
    if "endpoint" not in options:
        return
    if isinstance(options["endpoint"], dict):
        raise wrong_option("ENDPOINT cannot be a secret", "Only the keys can.")
    try:
        parts = urlsplit(str(options["endpoint"]))
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good, parts = False, urlsplit("")
    if not good or "@" in parts.netloc or parts.query or parts.fragment or parts.path.strip("/"):
        raise wrong_option("ENDPOINT is no address of a server", "Write https://host or http://host:port.")


def _reach(options: Mapping[str, Any]) -> None:
    """The service answers. It says nothing of a key without a channel."""
    Service(options).time()


PUBNUB_CONNECTION = ConnectionKind(_FIELDS, ("AUTH KEY",), _check, _reach)
