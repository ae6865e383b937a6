"""Keys for the requests of an AWS connection: its own, or those of a role that it assumes.

`AwsKeys` of a role are temporary. The process that needs them (the driver, and each worker) asks the Security
Token Service for them, keeps them in memory, and asks again before they expire. The credentials of the server
process are never used.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

from tidemill.cdcv2.wording import sentence
from tidemill.sources.aws_signature import AwsKeys, signed_headers
from tidemill.sources.contract import UpstreamError

_SERVICE = "sts"
REQUEST_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 20
# How long the keys of a role are asked for: every role allows an hour.
ROLE_SECONDS = 3600
# Keys are renewed so long before they expire.
RENEW_SECONDS = 300.0
# Roles whose keys a process keeps.
_MAX_KEPT = 64
# What sessions are named in the logs of AWS, unless the connection says otherwise.
SESSION_NAME = "tidemill"

Options = tuple[tuple[str, str], ...]


class KeySource(Protocol):
    def keys(self) -> AwsKeys: ...

    def expires(self) -> datetime | None:
        """When what `keys` returned expires, at the latest; None for never."""
        ...


def key_source(options: Options) -> KeySource | None:
    """None if the connection's requests are not signed."""
    given = dict(options)
    keys = AwsKeys.of(given)
    if keys is None or "role_arn" not in given:
        return None if keys is None else OwnKeys(keys)
    wanted = ("region", "access_key_id", "secret_access_key", "session_token", "endpoint", *_ROLE)
    return _role(tuple((name, given[name]) for name in wanted if name in given))


_ROLE = ("role_arn", "role_session", "role_external_id")


class OwnKeys:
    """Keys that stay."""

    def __init__(self, keys: AwsKeys) -> None:
        self._keys = keys

    def keys(self) -> AwsKeys:
        return self._keys

    def expires(self) -> datetime | None:
        return None


class AssumedRole:
    """Thread-safe."""

    def __init__(self, options: Mapping[str, str], own: AwsKeys) -> None:
        self._own = own
        self._region = options["region"]
        self._role = options["role_arn"]
        suffix = "amazonaws.com.cn" if self._region.startswith("cn-") else "amazonaws.com"
        self._server = urlsplit(options.get("endpoint") or f"https://{_SERVICE}.{self._region}.{suffix}")
        request = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._role,
            "RoleSessionName": options.get("role_session", SESSION_NAME),
            "DurationSeconds": str(ROLE_SECONDS),
        }
        if "role_external_id" in options:
            request["ExternalId"] = options["role_external_id"]
        self._body = urlencode(request).encode()
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._kept: AwsKeys | None = None
        self._until = 0.0

    def keys(self) -> AwsKeys:
        """Raises UpstreamError."""
        with self._lock:
            if self._kept is None or time.time() > self._until - RENEW_SECONDS:
                self._kept, self._until = self._ask()
            return self._kept

    def expires(self) -> datetime | None:
        with self._lock:
            return datetime.fromtimestamp(self._until - RENEW_SECONDS, UTC)

    def _ask(self) -> tuple[AwsKeys, float]:
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        host = self._server.netloc
        signed = signed_headers(
            self._own, self._region, _SERVICE, host, headers, self._body, datetime.now(UTC)
        )
        try:
            status, answer = self._exchange(signed)
            found = _leaves(answer)
        except (OSError, http.client.HTTPException, ElementTree.ParseError) as e:
            raise self._failed("cannot be assumed now", sentence(e)) from None
        if status == http.client.OK:
            try:
                until = datetime.fromisoformat(found["Expiration"]).timestamp()
                keys = AwsKeys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
            except (KeyError, ValueError) as e:
                raise self._failed("cannot be assumed now", f"The answer has no {e}.") from None
            return keys, until
        code, message = found.get("Code", str(status)), found.get("Message", "")
        detail = f"{code}: {message[:300].removesuffix('.')}." if message else f"{code}."
        if status in (400, 401, 403) and code != "Throttling":
            raise UpstreamError(
                f'role "{self._role}" cannot be assumed with the keys of the connection',
                detail=detail,
                hint="Check ASSUME ROLE ARN, ASSUME ROLE EXTERNAL ID, the keys, and whom the role trusts.",
                sqlstate="28000",
            )
        raise self._failed("cannot be assumed now", detail)

    def _exchange(self, headers: Mapping[str, str]) -> tuple[int, bytes]:
        host, port = self._server.hostname or "", self._server.port
        if self._server.scheme == "https":
            tls = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, port, timeout=REQUEST_SECONDS, context=tls)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", "/", self._body, dict(headers))
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES + 1)
            if len(answer) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
            return response.status, answer
        finally:
            connection.close()

    def _failed(self, how: str, detail: str) -> UpstreamError:
        error = UpstreamError(
            f'role "{self._role}" {how}', detail=detail, hint="It is tried again by itself."
        )
        error.transient = True
        return error


@lru_cache(maxsize=_MAX_KEPT)
def _role(options: Options) -> AssumedRole:
    given = dict(options)
    own = AwsKeys(given["access_key_id"], given["secret_access_key"], given.get("session_token"))
    return AssumedRole(given, own)


def _leaves(answer: bytes) -> dict[str, str]:
    """The texts of the answer's elements, by their names without namespace."""
    return {e.tag.rpartition("}")[2]: (e.text or "").strip() for e in ElementTree.fromstring(answer).iter()}
