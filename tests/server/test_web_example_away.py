"""The web example while Tidemill is away: a browser comes back by itself only where it was answered with
events, and with the place where it stopped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Generator
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.server import pick_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "web" / "serve.py"


class Upstream(BaseHTTPRequestHandler):
    """Stands for Tidemill: `status` for the next request, and what `asked` for so far."""

    status = 200
    asked: list[str | None]

    def do_GET(self) -> None:
        assert self.path.startswith("/api/subscribe?query=t&")
        self.asked.append(self.headers.get("Last-Event-ID"))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"id: 7\ndata: {}\n\n" if self.status == 200 else b'{"error": {}}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def tidemill(port: int, status: int = 200) -> Generator[list[str | None]]:
    """What it was asked for."""
    asked = list[str | None]()
    handler = type("Handler", (Upstream,), {"status": status, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def example(tidemill: int) -> Generator[int]:
    """The example's port."""
    command = [sys.executable, str(EXAMPLE), "--tidemill", f"127.0.0.1:{tidemill}", "--port", "0"]
    with subprocess.Popen(
        [*command, "--query", "t", "--key", "id"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split()[1].rpartition(":")[2])
        finally:
            process.terminate()


def live(port: int, last: str | None = None) -> tuple[HTTPResponse, bytes]:
    """The answer to a browser that comes back."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/live", headers={"Last-Event-ID": last} if last else {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_a_browser_comes_back_until_tidemill_does() -> None:
    (port,) = pick_ports(1)
    with example(port) as page:
        with tidemill(port) as asked:
            assert live(page)[1] == b"id: 7\ndata: {}\n\n" and asked == [None]
        answer, events = live(page, "7")
        assert (answer.status, answer.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
        assert events == b"retry: 1000\n\n"
        with tidemill(port, 503):
            assert live(page, "7")[0].status == 200
        with tidemill(port) as asked:
            assert live(page, "7")[1] == b"id: 7\ndata: {}\n\n" and asked == ["7"]
        with tidemill(port, 400):
            assert live(page, "7")[0].status == 400, "what will never work is no reason to come back"
