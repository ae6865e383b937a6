"""A server between a source and kinesis-local, which answers some requests as the real service would and the
local one never does: refusals for too many reads, expired iterators, refused keys, records that have expired.

What it answers are the service's documented errors. Everything else goes on to the real server.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class KinesisProxy:
    """`refusals` are taken in turn by requests of an operation: (operation, error, status). `trimmed` has the
    last expired number of a shard: requests for a place before begin behind it, as those of the service
    do."""

    def __init__(self, endpoint: str) -> None:
        self._host = urlsplit(endpoint).netloc
        self.refusals: list[tuple[str, str, int]] = []
        self.trimmed: dict[str, str] = {}
        self.asked: list[str] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                status, answer = proxy.answer(operation, body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base calls it
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, operation: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        with self._lock:
            self.asked.append(operation)
            found = next((refusal for refusal in self.refusals if refusal[0] == operation), None)
            if found is not None:
                self.refusals.remove(found)
        if found is not None:
            return found[2], json.dumps({"__type": found[1], "message": "of the test"}).encode()
        if operation == "GetShardIterator":
            body = self._placed(json.loads(body))
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            headers = {name: value for name, value in headers.items() if name != "Content-Length"}
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _placed(self, request: dict[str, Any]) -> bytes:
        last = self.trimmed.get(request["ShardId"])
        number = request.get("StartingSequenceNumber")
        if last is not None and (number is None or int(number) <= int(last)):
            request |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": last}
        return json.dumps(request).encode()

    @contextmanager
    def serving(self) -> Generator[KinesisProxy]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
