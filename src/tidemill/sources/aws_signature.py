"""Signature Version 4 of a POST to `/` of a service of Amazon, as those with a JSON protocol want it.

Signed here and not by botocore, which has 25 MB, most of it descriptions of services.
`tests/sources/test_notifications.py` compares the signatures with botocore's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AwsKeys:
    access: str
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)

    @staticmethod
    def of(options: Mapping[str, str]) -> AwsKeys | None:
        """Those of a connection; None if it has none."""
        if "access_key_id" not in options:
            return None
        return AwsKeys(options["access_key_id"], options["secret_access_key"], options.get("session_token"))


def signed_headers(
    keys: AwsKeys,
    region: str,
    service: str,
    host: str,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
) -> dict[str, str]:
    """The headers of the request, with its signature."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    found = {**headers, "Host": host, "X-Amz-Date": stamp}
    if keys.token is not None:
        found["X-Amz-Security-Token"] = keys.token
    lines = {name.lower(): " ".join(value.split()) for name, value in found.items()}
    names = ";".join(sorted(lines))
    canonical = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    request = f"POST\n/\n\n{canonical}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**found, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
