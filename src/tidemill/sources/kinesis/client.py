"""Client of Kinesis: signed requests of the service's JSON protocol, over connections that are kept.

Called by the receiver and by statements on the driver, and by readers in the tasks. It needs four requests,
which it signs itself (`aws_signature`): botocore makes Python objects of each record. The credentials of the
server process are never used.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from tidemill.sources.aws_role import Options, key_source
from tidemill.sources.aws_signature import signed_headers
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kinesis.failures import Expired, NoStream, Throttled, failure, unreachable

SERVICE = "kinesis"
_TARGET = "Kinesis_20131202."
_JSON = "application/x-amz-json-1.1"
CONNECT_SECONDS, REQUEST_SECONDS = 5.0, 30.0
# The largest answer of GetRecords is 10 MB of data, as base64, with its keys.
MAX_ANSWER_BYTES = 64 << 20
# Answers that say "later": how often they are asked again, and after how long at first and at last.
RETRIES = 8
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 2.0
# Clients that a worker keeps open.
_MAX_OPENED = 16


def frozen(options: Mapping[str, Any]) -> Options:
    return tuple(sorted((name, str(value)) for name, value in options.items()))


def endpoint_of(options: Mapping[str, str]) -> str:
    region = options["region"]
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return options.get("endpoint") or f"https://{SERVICE}.{region}.{suffix}"


class KinesisClient:
    """Thread-safe: each thread has a connection of its own."""

    def __init__(self, options: Options) -> None:
        given = dict(options)
        self.endpoint = endpoint_of(given)
        self._url = urlsplit(self.endpoint)
        self._region = given["region"]
        self._keys = key_source(options)
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._own = threading.local()
        # The time of the service at its last answer, in milliseconds; None before.
        self.server_ms: int | None = None

    def call(self, operation: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises UpstreamError; `stream` is for its text."""
        return json.loads(self.raw(operation, stream, request) or b"{}")

    def patient(self, operation: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(self.patient_raw(operation, stream, request) or b"{}")

    def patient_raw(self, operation: str, stream: str, request: Mapping[str, Any]) -> bytes:
        """As `raw`, asked again for some seconds while the service says that it is asked too often."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(RETRIES):
            try:
                return self.raw(operation, stream, request)
            except Throttled:
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_SECONDS)
        return self.raw(operation, stream, request)

    def raw(self, operation: str, stream: str, request: Mapping[str, Any]) -> bytes:
        """The answer as it came."""
        body = json.dumps(request).encode()
        headers = {"Content-Type": _JSON, "X-Amz-Target": _TARGET + operation}
        host = self._url.netloc
        if self._keys is None:
            headers["Host"] = host
        else:
            keys, now = self._keys.keys(), datetime.now(UTC)
            headers = signed_headers(keys, self._region, SERVICE, host, headers, body, now)
        try:
            status, answer = self._exchange(body, headers)
        except (OSError, http.client.HTTPException) as e:
            raise unreachable(self.endpoint, e) from None
        if status != http.client.OK:
            raise failure(status, answer, stream)
        return answer

    def _exchange(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if kept is not None:
            try:
                return self._once(kept, body, headers)
            except (ConnectionError, http.client.BadStatusLine):
                # The server has closed it meanwhile; it is asked again over a new one. (All requests but puts
                # of test loads only read.)
                kept.close()
        return self._once(self._connect(), body, headers)

    def _once(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        self._own.connection = connection
        try:
            connection.request("POST", "/", body, dict(headers))
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES + 1)
            if len(answer) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer has more than {MAX_ANSWER_BYTES >> 20} MB")
        except BaseException:
            self._own.connection = None
            connection.close()
            raise
        date = response.getheader("Date")
        if date is not None:
            self.server_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
        return response.status, answer

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=self._tls)
        connection.connect()
        connection.sock.settimeout(REQUEST_SECONDS)
        return connection


@lru_cache(maxsize=_MAX_OPENED)
def open_client(options: Options) -> KinesisClient:
    """A client that is kept in the process."""
    return KinesisClient(options)


def reach(options: Mapping[str, Any]) -> None:
    """Whether the service answers, and knows the keys: any answer about a stream will do that is no refusal
    of the keys."""
    try:
        open_client(frozen(options)).call("ListShards", "tidemill", {"StreamName": "tidemill"})
    except (NoStream, Expired, Throttled):
        return
    except UpstreamError as e:
        if e.sqlstate != "42501":
            raise
