"""A service that speaks PubNub's documented protocol, for tests: subscribe by long poll, history, channel
groups, publishing, the time.

It has regions, each with an order of its own: a message reaches the publisher's region at once and the others
later, and a subscriber gets it by the order of arrival in its region. For a subscriber that comes back, the
latest messages of each channel are kept; the history has all of them, until they are too old. Its clock is
that of the test, so that hours pass at once. `break_next` and `status` make it fail, `move` changes the
region of the subscribers, with which messages come twice, as in the real one.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SUBSCRIBE_KEY = "sub-c-tests"
TICKS = 10_000_000
CACHE_MESSAGES = 100
CACHE_SECONDS = 20 * 60
HISTORY_PAGE = 100
# How many messages an answer has at most.
ANSWER_MESSAGES = 100


@dataclass(frozen=True)
class Stored:
    token: int
    region: int
    channel: str
    payload: str  # JSON
    kind: int = 0
    publisher: str = "test"
    # When it is there in each region.
    arrivals: Mapping[int, int] = field(default_factory=dict[int, int])


class PubNubServer:
    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.messages: list[Stored] = []
        self.groups: dict[str, list[str]] = {}
        self.regions = (1, 2)
        # Where subscribers are.
        self.region = 1
        self.history = True
        self.retention_seconds: float = 7 * 86_400
        # The answer to everything, and to the history alone, if not 200.
        self.status = self.history_status = 200
        self.poll_seconds = 2.0
        # How long the history takes for an answer.
        self.history_seconds = 0.0
        # How many of the next answers to a subscriber are cut off.
        self.broken = 0
        self.auth: str | None = None
        # Messages that come twice after a change of the region.
        self.repeats = 0
        self.polls = self.histories = 0
        self._connections: set[socket.socket] = set()
        self._shift = 0
        self._last = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server._connections.add(self.connection)

            def finish(self) -> None:
                server._connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._handler = Handler
        self.port = 0
        self._start()

    def _start(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connection(self) -> dict[str, str]:
        return {"subscribe_key": SUBSCRIBE_KEY, "endpoint": self.endpoint}

    def close(self) -> None:
        with self.lock:
            self.poll_seconds = 0
            self.lock.notify_all()
        self._http.shutdown()
        self._http.server_close()

    def restart(self) -> None:
        """It answers nobody for a moment, and all connections are cut."""
        self._http.shutdown()
        self._http.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._start()

    # -- what a test does

    def now(self) -> int:
        """Rises with each call."""
        with self.lock:
            self._last = max(self._last + 1, time.time_ns() // 100 + self._shift)
            return self._last

    def pass_time(self, seconds: float) -> None:
        with self.lock:
            self._shift += int(seconds * TICKS)

    def publish(
        self,
        channel: str,
        message: Any,
        region: int = 1,
        *,
        delay: float = 0.0,
        kind: int = 0,
        token: int | None = None,
        raw: str | None = None,
    ) -> int:
        """Its timetoken. It reaches other regions `delay` seconds later."""
        with self.lock:
            now = self.now()
            own = now if token is None else token
            arrivals = {r: now if r == region else now + int(delay * TICKS) for r in self.regions}
            payload = json.dumps(message) if raw is None else raw
            self.messages.append(Stored(own, region, channel, payload, kind, arrivals=arrivals))
            self.lock.notify_all()
            return own

    def move(self, region: int, repeats: int = 0) -> None:
        """Subscribers are in another region from now on, and get the last messages once more."""
        with self.lock:
            self.region, self.repeats = region, repeats
            self.lock.notify_all()

    def break_next(self, count: int = 1) -> None:
        with self.lock:
            self.broken = count
            self.lock.notify_all()

    # -- the protocol

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        parts = url.path.strip("/").split("/")
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.status != 200:
            self._send(
                request, {"status": self.status, "error": True, "message": "Tests say so"}, self.status
            )
        elif parts[0] == "time":
            self._send(request, [self.now()])
        elif self.auth is not None and asked.get("auth") != self.auth:
            said = {"message": "Forbidden", "error": True, "service": "Access Manager", "status": 403}
            self._send(request, said, 403)
        elif parts[:2] == ["v2", "subscribe"]:
            if parts[2] != SUBSCRIBE_KEY:
                said = {"message": "Invalid Subscribe Key", "error": True, "status": 400}
                self._send(request, said, 400)
                return
            self._subscribe(request, unquote(parts[3]), asked)
        elif parts[:2] == ["v3", "history"]:
            self._history(request, unquote(parts[5]), asked)
        elif parts[:2] == ["v1", "channel-registration"]:
            name = unquote(parts[5])
            channels = self.groups.get(name, [])
            self._send(request, {"status": 200, "payload": {"channels": channels, "group": name}})
        elif parts[0] == "publish":
            token = self.publish(unquote(parts[4]), None, raw=unquote(parts[6]))
            self._send(request, [1, "Sent", str(token)])
        else:
            self._send(request, {"status": 404, "error": True, "message": "Not Found"}, 404)

    def _subscribe(self, request: BaseHTTPRequestHandler, named: str, asked: dict[str, str]) -> None:
        channels = [name for name in named.split(",") if name]
        groups = [name for name in asked.get("channel-group", "").split(",") if name]
        since = int(asked["tt"])
        deadline = time.monotonic() + self.poll_seconds
        with self.lock:
            self.polls += 1
            region = self.region
            if not since:
                self._send(request, {"t": {"t": str(self.now()), "r": region}, "m": []})
                return
            while True:
                region = self.region
                found = self._kept(channels, groups, since, region)
                left = min(deadline - time.monotonic(), 0.05)
                if found or left <= 0 or self.broken or self.status != 200:
                    break
                self.lock.wait(left)
            if self.broken:
                self.broken -= 1
                request.close_connection = True
                request.connection.shutdown(socket.SHUT_RDWR)
                return
            if self.repeats:
                again = self._kept(channels, groups, 0, region)
                found = [m for m in again if m[1] <= since][-self.repeats :] + found
                self.repeats = 0
            found = found[:ANSWER_MESSAGES]
            cursor = max(found[-1][1], since) if found else max(since, self.now())
        messages = [
            {
                "a": "1",
                "f": 0,
                "i": message.publisher,
                "p": {"t": str(message.token), "r": message.region},
                "k": SUBSCRIBE_KEY,
                "c": message.channel,
                "e": message.kind,
                "d": None,
                **({} if by is None else {"b": by}),
            }
            for message, _, by in found
        ]
        body = json.dumps({"t": {"t": str(cursor), "r": region}, "m": messages})
        for message, _, _ in found:
            body = body.replace('"d": null', f'"d":{message.payload}', 1)
        self._send(request, body)

    def _kept(
        self, channels: list[str], groups: list[str], since: int, region: int
    ) -> list[tuple[Stored, int, str | None]]:
        """What the cache of the region has behind a cursor, by arrival."""
        now = time.time_ns() // 100 + self._shift
        by_channel: dict[str, list[tuple[Stored, int, str | None]]] = {}
        for message in sorted(self.messages, key=lambda m: m.arrivals[region]):
            arrival = message.arrivals[region]
            if arrival <= max(now, self._last) and arrival > now - CACHE_SECONDS * TICKS:
                wanted, by = self._subscribed(message.channel, channels, groups)
                if wanted:
                    by_channel.setdefault(message.channel, []).append((message, arrival, by))
        found = [m for kept in by_channel.values() for m in kept[-CACHE_MESSAGES:] if m[1] > since]
        return sorted(found, key=lambda m: m[1])

    def _subscribed(self, name: str, channels: list[str], groups: list[str]) -> tuple[bool, str | None]:
        if name in channels:
            return True, None
        for pattern in channels:
            if "*" in pattern and fnmatchcase(name, pattern):
                return True, pattern
        for group in groups:
            if name in self.groups.get(group, []):
                return True, group
        return False, None

    def _history(self, request: BaseHTTPRequestHandler, channel: str, asked: dict[str, str]) -> None:
        self.histories += 1
        time.sleep(self.history_seconds)
        if not self.history or self.history_status != 200:
            status = 402 if not self.history else self.history_status
            said = {"status": status, "error": True, "error_message": "Message Persistence is not enabled"}
            self._send(request, said, status)
            return
        with self.lock:
            floor = self.now() - int(self.retention_seconds * TICKS)
            found = [
                m
                for m in sorted(self.messages, key=lambda m: m.token)
                if m.channel == channel
                and int(asked["end"]) <= m.token < int(asked["start"])
                and m.token >= floor
            ]
        page = [
            f'{{"message":{m.payload},"timetoken":"{m.token}","uuid":"{m.publisher}",'
            f'"message_type":{m.kind or "null"}}}'
            for m in found[-min(int(asked["max"]), HISTORY_PAGE) :]
        ]
        listed = f"{json.dumps(channel)}:[{','.join(page)}]" if page else ""
        self._send(request, f'{{"status":200,"error":false,"error_message":"","channels":{{{listed}}}}}')

    def _send(self, request: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
        except OSError:
            request.close_connection = True


@contextmanager
def pubnub_server() -> Generator[PubNubServer]:
    server = PubNubServer()
    try:
        yield server
    finally:
        server.close()
