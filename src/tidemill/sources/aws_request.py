"""Requests to a service of Amazon, or to a server that speaks its protocol: signed, over connections that are
kept.

Called by the client of each service, which reads the answers in its own way. The credentials of the server
process are never used.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import urlsplit

from tidemill.sources.aws_signature import AwsKeys, signed_headers

CONNECT_SECONDS = 5.0
# What a request can fail with before there is an answer.
NO_ANSWER = (OSError, http.client.HTTPException)


class KeySource(Protocol):
    def keys(self) -> AwsKeys: ...

    def expires(self) -> datetime | None:
        """When what `keys` returned expires, at the latest; None for never."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    # When the service says that it answered.
    date: str | None


def address_of(service: str, options: Mapping[str, str]) -> str:
    """The endpoint of the connection, or Amazon's of its region."""
    region = options["region"]
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return options.get("endpoint") or f"https://{service}.{region}.{suffix}"


class AwsService:
    """Thread-safe: each thread has a connection of its own. `keys` is None where requests are not signed."""

    def __init__(
        self, name: str, options: Mapping[str, str], keys: KeySource | None, seconds: float, most: int
    ) -> None:
        """`options` are the connection's. An answer has at most `most` bytes."""
        self.url = url = address_of(name, options)
        self._name, self._region, self._keys = name, options["region"], keys
        self._server = urlsplit(url)
        self._seconds, self._most = seconds, most
        self._tls = ssl.create_default_context() if self._server.scheme == "https" else None
        self._own = threading.local()

    def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises one of `NO_ANSWER`, and what `keys` raises."""
        host = self._server.netloc
        if self._keys is None:
            made = {**headers, "Host": host}
        else:
            keys, now = self._keys.keys(), datetime.now(UTC)
            made = signed_headers(keys, self._region, self._name, host, headers, body, now)
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if kept is not None:
            try:
                return self._once(kept, made, body)
            except (ConnectionError, http.client.BadStatusLine):
                # The server has closed it meanwhile; it is asked again over a new one. (All requests but puts
                # of test loads can be repeated.)
                pass
        return self._once(self._connect(), made, body)

    def _once(
        self, connection: http.client.HTTPConnection, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        self._own.connection = connection
        try:
            connection.request("POST", "/", body, dict(headers))
            response = connection.getresponse()
            answer = response.read(self._most + 1)
            if len(answer) > self._most:
                raise http.client.HTTPException(f"an answer is longer than {self._most >> 20} MB")
        except BaseException:
            self._own.connection = None
            connection.close()
            raise
        return Answer(response.status, answer, response.getheader("Date"))

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._server.hostname or "", self._server.port
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=self._tls)
        connection.connect()
        connection.sock.settimeout(self._seconds)
        return connection
