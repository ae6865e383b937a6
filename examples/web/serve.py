"""A page that shows a live query: `python examples/web/serve.py`, then open http://localhost:8000.

This is the web server of an application, as small as it can be: it gives browsers the page, and passes one
subscription on to them. Which query that is it decides itself; browsers never reach Tidemill, and cannot ask
for anything else. Without `--query` it makes a table of parcels that travel, and shows that.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import signal
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).with_name("index.html")
# What a browser may call us; a page elsewhere may point a name of its own at this machine.
NAMES = ("localhost", "127.0.0.1", "[::1]")


class Handler(BaseHTTPRequestHandler):
    """`/` is the page, `/live` the subscription."""

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
            self.send_error(403)
        elif self.path == "/":
            self._answer(200, "text/html; charset=utf-8", PAGE.read_bytes())
        elif self.path == "/live":
            self._live()
        else:
            self.send_error(404)

    @property
    def ours(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def _live(self) -> None:
        """Tidemill's events as they come. A browser that lost the connection says where it stopped; all that
        is needed is to pass that on."""
        upstream = http.client.HTTPConnection(self.ours.tidemill, timeout=60)
        last = self.headers.get("Last-Event-ID")
        begun = False
        try:
            upstream.request("GET", self.ours.subscription, headers={"Last-Event-ID": last} if last else {})
            answer = upstream.getresponse()
            if answer.status not in (200, 503):
                self._answer(answer.status, "application/json", answer.read())
                return
            begun = True
            self._events(b"")
            while answer.status == 200 and (data := answer.read1(65_536)):
                self.wfile.write(data)
        except (OSError, http.client.HTTPException):
            # One of the two is gone. A browser comes back by itself, but only where it was answered with
            # events: while Tidemill is away, these are none.
            if not begun:
                with suppress(OSError):
                    self._events(b"retry: 1000\n\n")
        finally:
            upstream.close()
            self.close_connection = True

    def _events(self, first: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(first)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, tidemill: str, query: str, keys: list[str], database: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.tidemill = tidemill
        parameters = [("query", query), ("database", database), *(("key", key) for key in keys)]
        self.subscription = f"/api/subscribe?{urllib.parse.urlencode(parameters)}"


# -- what there is to see without a query of one's own


def sql(tidemill: str, query: str, *params: object) -> None:
    body = json.dumps({"queries": [{"query": query, "params": params}]}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{tidemill}/api/sql", body, headers)
    ) as answer:
        error = json.load(answer)["results"][-1].get("error")
    if error:
        raise RuntimeError(error["message"])


@contextmanager
def parcels(tidemill: str) -> Generator[str]:
    """A table in which something happens every second, for as long as the block lasts."""
    sql(tidemill, "DROP TABLE IF EXISTS example_parcels")  # of one that could not end well
    sql(tidemill, "CREATE TABLE example_parcels (id int, place text, state text)")
    ending = threading.Event()

    def travel() -> None:
        for number in itertools.count(1):
            # While Tidemill is away nothing travels. A statement that was cut off is not sent again, for it
            # may have been carried out: each is about parcels of its own, or says the same twice.
            with suppress(OSError, http.client.HTTPException, RuntimeError):
                move(tidemill, number)
            if ending.wait(1):
                return

    thread = threading.Thread(target=travel)
    thread.start()
    try:
        yield "example_parcels"
    finally:
        ending.set()
        thread.join()
        with suppress(OSError):  # it is away: the next one drops it
            sql(tidemill, "DROP TABLE example_parcels")


def move(tidemill: str, number: int) -> None:
    """A new parcel, one that goes on, and an old one that has arrived."""
    place, other = random.sample(["Accra", "Bergen", "Cusco", "Dhaka", "Enugu", "Fukuoka"], 2)
    sql(tidemill, "INSERT INTO example_parcels VALUES ($1, $2, 'sent')", number, place)
    moving = "UPDATE example_parcels SET place = $1, state = 'on its way' WHERE id = $2"
    sql(tidemill, moving, other, max(1, number - random.randrange(1, 5)))
    sql(tidemill, "DELETE FROM example_parcels WHERE id <= $1", number - 10)


def main() -> None:
    options = argparse.ArgumentParser(description="A page that shows a live query.")
    options.add_argument("--tidemill", default="localhost:6876", help="Tidemill's HTTP port")
    options.add_argument("--port", type=int, default=8000, help="where the page is; 0 picks a port")
    options.add_argument(
        "--query", help="a relation's name or a SELECT; its own table of parcels if left out"
    )
    options.add_argument(
        "--key", action="append", default=[], help="a column of the query's key; may be repeated"
    )
    options.add_argument("--database", default="materialize")
    given = options.parse_args()
    if given.query and not given.key:
        options.error("--query needs --key: the columns that tell its rows apart")

    def serve(query: str, keys: list[str]) -> None:
        with Server(given.port, given.tidemill, query, keys, given.database) as server:
            print(f"open http://localhost:{server.server_port} (Ctrl-C ends)", flush=True)
            server.serve_forever()

    # Whoever stops it otherwise than with Ctrl-C finds the table dropped too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.query:
            serve(given.query, given.key)
        else:
            with parcels(given.tidemill) as table:
                serve(table, ["id"])
    except KeyboardInterrupt:
        pass
    except urllib.error.URLError as e:
        raise SystemExit(f"no answer from Tidemill at {given.tidemill}: {e.reason}") from None


if __name__ == "__main__":
    main()
