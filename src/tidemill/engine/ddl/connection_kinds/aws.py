"""TO AWS: where the service is, and who asks. The server's own credentials are never used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tidemill.engine.ddl.connection_kinds.kind import ConnectionKind, wrong_option
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kinesis.client import reach as reach_kinesis
from tidemill.sources.objects.bucket import reach as reach_s3

_FIELDS = {
    "ENDPOINT": "endpoint",
    "REGION": "region",
    "ACCESS KEY ID": "access_key_id",
    "SECRET ACCESS KEY": "secret_access_key",
    "SESSION TOKEN": "session_token",
}


def _check(options: Mapping[str, Any]) -> None:
    for word in ("ENDPOINT", "REGION"):
        if isinstance(options.get(_FIELDS[word]), dict):
            raise wrong_option(f"{word} cannot be a secret", "Only the keys and the token can.")
    if not options["region"]:
        raise wrong_option("REGION cannot be empty", "Write REGION 'eu-west-1'.")
    if "endpoint" in options:
        _check_url(str(options["endpoint"]))
    if ("access_key_id" in options) != ("secret_access_key" in options):
        raise wrong_option(
            "ACCESS KEY ID and SECRET ACCESS KEY need each other",
            "Without both, requests are not signed: only public buckets can be read.",
        )
    if "session_token" in options and "access_key_id" not in options:
        raise wrong_option("SESSION TOKEN needs ACCESS KEY ID", "Add ACCESS KEY ID and SECRET ACCESS KEY.")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good, parts = False, urlsplit("")
    if not good or parts.query or parts.fragment or parts.path.strip("/"):
        raise wrong_option(
            "ENDPOINT is no address of a server", "Write http://host:port or https://host:port."
        )
    if "@" in parts.netloc:
        raise wrong_option("ENDPOINT cannot hold a name or a password", "Use the options for the keys.")


def _reach(options: Mapping[str, Any]) -> None:
    """The keys are those of all services. A server at an address of its own may be one of Kinesis alone."""
    if "endpoint" in options:
        try:
            reach_kinesis(options)
            return
        except UpstreamError as e:
            if e.sqlstate == "28000":
                raise
    reach_s3(options)


AWS_CONNECTION = ConnectionKind(_FIELDS, ("SECRET ACCESS KEY", "SESSION TOKEN"), _check, _reach)
