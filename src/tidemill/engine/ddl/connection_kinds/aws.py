"""TO AWS: where the service is, and who asks. The server's own credentials are never used."""

from __future__ import annotations

import re
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
    "ASSUME ROLE ARN": "role_arn",
    "ASSUME ROLE SESSION NAME": "role_session",
    "ASSUME ROLE EXTERNAL ID": "role_external_id",
}


def _check(options: Mapping[str, Any]) -> None:
    for word in ("ENDPOINT", "REGION", "ASSUME ROLE ARN", "ASSUME ROLE SESSION NAME"):
        if isinstance(options.get(_FIELDS[word]), dict):
            raise wrong_option(
                f"{word} cannot be a secret", "Only the keys, the token and the external id can."
            )
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

    _check_role(options)


def _check_role(options: Mapping[str, Any]) -> None:
    for word in ("ASSUME ROLE SESSION NAME", "ASSUME ROLE EXTERNAL ID"):
        if _FIELDS[word] in options and "role_arn" not in options:
            raise wrong_option(
                f"{word} needs ASSUME ROLE ARN", "Add ASSUME ROLE ARN 'arn:aws:iam::...:role/...'."
            )
    if "role_arn" not in options:
        return
    if "access_key_id" not in options:
        raise wrong_option(
            "ASSUME ROLE ARN needs ACCESS KEY ID",
            "The role is assumed with the keys of the connection. Add ACCESS KEY ID and SECRET ACCESS KEY.",
        )
    if not _ROLE.fullmatch(str(options["role_arn"])):
        raise wrong_option("ASSUME ROLE ARN is no name of a role", "Write 'arn:aws:iam::account:role/name'.")
    if not _SESSION.fullmatch(str(options.get("role_session", "tidemill"))):
        raise wrong_option(
            "ASSUME ROLE SESSION NAME is no name of a session",
            "It has 2 to 64 letters, digits and signs of _+=,.@-",
        )


# As the service has them.
_ROLE = re.compile(r"arn:[a-z0-9-]+:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_SESSION = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)


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
