"""Keys for the requests of an AWS connection: its own, or those of a role that it assumes.

`AwsKeys` of a role are temporary. The process that needs them (the driver, and each worker) asks the Security
Token Service for them, keeps them in memory, and asks again before they expire. The credentials of the server
process are never used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlencode
from xml.etree import ElementTree

from tidemill.cdcv2.wording import sentence
from tidemill.sources.aws_request import NO_ANSWER, AwsService, KeySource
from tidemill.sources.aws_signature import AwsKeys
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


def frozen(options: Mapping[str, object]) -> Options:
    return tuple(sorted((name, str(value)) for name, value in options.items()))


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
        self._role = options["role_arn"]
        self._service = AwsService(_SERVICE, options, OwnKeys(own), REQUEST_SECONDS, MAX_ANSWER_BYTES)
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
        try:
            answer = self._service.post(headers, self._body)
            found = _leaves(answer.body)
        except (*NO_ANSWER, ElementTree.ParseError) as e:
            raise self._failed("cannot be assumed now", sentence(e)) from None
        status = answer.status
        if status == HTTPStatus.OK:
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
