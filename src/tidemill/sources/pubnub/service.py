"""PubNub's interface over HTTP: subscribe, history, channel groups, the time.

Called by `receiver` in its thread, and by statements. Every request has a deadline; a long poll can be ended
by another thread.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tidemill.cdcv2.wording import sentence
from tidemill.sources.contract import UpstreamError
from tidemill.sources.pubnub.answers import Malformed, history_answer, refusal, subscribe_answer
from tidemill.sources.pubnub.messages import Answer, Cursor, Received

ENDPOINT = "https://ps.pndsn.com"
# The service answers a long poll without messages after 280 seconds, and recommends to wait for 310.
POLL_SECONDS = 310.0
# Any other request.
REQUEST_SECONDS = 10.0
# An answer has a hundred messages of 32 kB, about.
MAX_ANSWER_BYTES = 32 << 20
# Messages of one answer of the history call.
HISTORY_PAGE = 100
# The service wants to know who asks, and counts users by it.
_USER = "tidemill"
_CERTAIN = "Reading goes on by itself when it answers."


class Refused(UpstreamError):
    """The service does not do what it was asked for; `status` is that of HTTP."""

    def __init__(self, primary: str, *, status: int, detail: str | None, hint: str, sqlstate: str) -> None:
        super().__init__(primary, detail=detail, hint=hint, sqlstate=sqlstate)
        self.status = status


class Service:
    """`connection`: subscribe_key, and endpoint, auth_key where they are given."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        url = urlsplit(str(connection.get("endpoint") or ENDPOINT))
        self._host, self._port = url.hostname or "", url.port
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._key = quote(str(connection["subscribe_key"]), safe="")
        self._auth = connection.get("auth_key")
        self._lock = threading.Lock()
        # The connection of the long poll, kept for the next one.
        self._polling: http.client.HTTPConnection | None = None
        self._closed = False

    def subscribe(
        self,
        channels: Sequence[str],
        groups: Sequence[str],
        cursor: Cursor,
        seconds: float = POLL_SECONDS,
    ) -> Answer:
        """The messages behind the cursor, or none after some minutes. Raises UpstreamError."""
        named = ",".join(quote(channel, safe="") for channel in channels) or ","
        asked: dict[str, Any] = {"tt": cursor.token, "uuid": _USER}
        if cursor.region is not None:
            asked["tr"] = cursor.region
        if groups:
            asked["channel-group"] = ",".join(groups)
        text = self._get(f"/v2/subscribe/{self._key}/{named}/0", asked, seconds, kept=True)
        try:
            return subscribe_answer(text)
        except Malformed as e:
            raise self._odd(str(e)) from None

    def history(self, channel: str, after: int, before: int) -> list[Received]:
        """The last messages of a channel with after < timetoken < before, at most `HISTORY_PAGE`, in their
        order. Raises UpstreamError."""
        asked = {"max": HISTORY_PAGE, "start": before, "end": after + 1, "include_uuid": "true"}
        asked |= {"include_message_type": "true", "encode_channels": "false", "uuid": _USER}
        path = f"/v3/history/sub-key/{self._key}/channel/{quote(channel, safe='')}"
        text = self._get(path, asked, REQUEST_SECONDS)
        try:
            found = history_answer(text, channel)
        except Malformed as e:
            raise self._odd(str(e)) from None
        return [message for message in found if after < message.token < before]

    def group(self, name: str) -> list[str]:
        """The channels of a group. Raises UpstreamError."""
        path = f"/v1/channel-registration/sub-key/{self._key}/channel-group/{quote(name, safe='')}"
        text = self._get(path, {"uuid": _USER}, REQUEST_SECONDS)
        try:
            return [str(channel) for channel in json.loads(text)["payload"]["channels"]]
        except (ValueError, KeyError, TypeError):
            raise self._odd("It has no channels of a group.") from None

    def time(self) -> int:
        """The service's timetoken now. Raises UpstreamError."""
        text = self._get("/time/0", {"uuid": _USER}, REQUEST_SECONDS)
        try:
            return int(json.loads(text)[0])
        except (ValueError, KeyError, TypeError, IndexError):
            raise self._odd("It has no time.") from None

    def close(self) -> None:
        """End the poll that is under way; nothing can be asked afterwards."""
        with self._lock:
            self._closed, polling = True, self._polling
        if polling is not None:
            _hang_up(polling.sock)

    def _get(self, path: str, asked: Mapping[str, Any], seconds: float, *, kept: bool = False) -> str:
        said = dict(asked)
        if self._auth is not None:
            said["auth"] = self._auth
        target, reused = f"{path}?{urlencode(said)}", kept and self._polling is not None
        try:
            try:
                status, raw = self._request(target, seconds, kept)
            except (ConnectionError, http.client.BadStatusLine):
                if not reused or self._closed:
                    raise
                # The server has closed the connection between two polls.
                status, raw = self._request(target, seconds, kept)
        except ssl.SSLError as e:
            raise self._failed("no TLS connection to PubNub", f"{e.reason or e}.") from None
        except (OSError, http.client.HTTPException) as e:
            raise self._failed("PubNub cannot be reached", sentence(e)) from None
        text = raw.decode("utf-8", "replace")
        if status != 200:
            raise self._refused(status, text)
        return text

    def _request(self, target: str, seconds: float, kept: bool) -> tuple[int, bytes]:
        connection = self._connection(kept)
        # Time-outs of sockets begin again with each byte.
        alarm: threading.Timer | None = None
        done = False
        try:
            if connection.sock is None:
                connection.connect()
            alarm = threading.Timer(seconds + REQUEST_SECONDS, _hang_up, [connection.sock])
            alarm.daemon = True
            alarm.start()
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            if self._closed:
                raise http.client.HTTPException("the source is closed")
            connection.request("GET", target, headers={"Accept": "application/json"})
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES + 1)
            if len(raw) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
            done = True
            return response.status, raw
        finally:
            if alarm is not None:
                alarm.cancel()
            if not (done and kept):
                connection.close()
                with self._lock:
                    if self._polling is connection:
                        self._polling = None

    def _connection(self, kept: bool) -> http.client.HTTPConnection:
        with self._lock:
            if kept and self._polling is not None:
                return self._polling
            if self._tls is None:
                made = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_SECONDS)
            else:
                made = http.client.HTTPSConnection(
                    self._host, self._port, timeout=REQUEST_SECONDS, context=self._tls
                )
            if kept:
                self._polling = made
            return made

    def _refused(self, status: int, text: str) -> UpstreamError:
        said = refusal(text)
        detail = None if said is None else sentence(Exception(said))
        if status in (401, 403):
            return Refused(
                "PubNub refuses access to the channels",
                status=status,
                detail=detail,
                hint="Check AUTH KEY of the connection, and its rights to read channels and history.",
                sqlstate="42501",
            )
        if status == 429 or status >= 500:
            return self._failed(f"PubNub answers {status}", detail)
        return Refused(
            f"PubNub refuses the request with status {status}",
            status=status,
            detail=detail,
            hint="Check SUBSCRIBE KEY of the connection, and the names of the channels.",
            sqlstate="22023" if status == 400 else "58000",
        )

    def _failed(self, primary: str, detail: str | None) -> UpstreamError:
        found = UpstreamError(primary, detail=detail, hint=_CERTAIN)
        found.transient = True
        return found

    def _odd(self, detail: str) -> UpstreamError:
        return UpstreamError(
            "PubNub gave an answer that makes no sense",
            detail=detail,
            hint="Check ENDPOINT of the connection.",
        )


def _hang_up(sock: socket.socket | None) -> None:
    try:
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already
