"""A sink of a real server into a real broker: from CREATE SINK until everything that the table holds is
written, acknowledged and counted. The registry is a stand-in: it is asked once.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from bench.busy import core_seconds
from bench.report import Figure
from bench.serving import serving
from bench.subscribe.memory import Family
from bench.subscribe.snapshot import TABLE, fill
from support.server import ServerProcess
from tidemill.dev.broker import Broker
from tidemill.sinks.kafka_topic import last_upper, place_of

BROKER_HEAP_MB = 512
SECONDS = 1800.0
POLL_SECONDS = 0.2
AIM = 150_000


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"id": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class calls it so
        pass


@contextmanager
def _registry() -> Generator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def _metric(server: ServerProcess, name: str) -> float | None:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=60) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
    return None


def to_kafka(rows: int) -> list[Figure]:
    """A table of so many rows into a topic of four partitions, in Avro."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder,
        _registry() as registry,
        serving() as server,
        psycopg.connect(server.sql_dsn, autocommit=True) as c,
    ):
        broker = Broker(Path(folder), heap_mb=BROKER_HEAP_MB)
        broker.start()
        try:
            c.execute(TABLE)
            fill(c, rows)
            c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{broker.bootstrap}')".encode())
            c.execute(
                f"CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL '{registry}') "
                "WITH (VALIDATE = false)".encode()
            )
            family = Family(server.pid)
            began, used = time.perf_counter(), core_seconds(server.pid)
            c.execute(
                b"CREATE SINK s FROM big INTO KAFKA CONNECTION k (TOPIC 'big', PARTITION COUNT 4) "
                b"FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r ENVELOPE MATERIALIZE"
            )
            while not _metric(server, "tidemill_sink_lag_seconds"):
                if time.perf_counter() - began > SECONDS:
                    raise AssertionError(f"not written within {SECONDS:.0f} s")
                time.sleep(POLL_SECONDS)
            took, used = time.perf_counter() - began, core_seconds(server.pid) - used
            grown = family.grown_mb()
            written = _metric(server, "tidemill_sink_updates_total")
            place = place_of({"brokers": [broker.bootstrap]}, "big")
            stated = last_upper({"brokers": [broker.bootstrap]}, "big", (0, 1), place, lambda: None)
            if written != rows or stated is None:
                raise AssertionError(f"{written} updates of {rows} rows, stated up to {stated}")
        finally:
            broker.stop()
    rate = rows / took
    return [
        Figure(
            f"writer from a table of {rows:,} rows to Kafka, Avro, updates/s",
            f"{rate:,.0f} ({rows / used:,.0f} per second of a core; + {grown:.0f} MB of server, JVM and "
            "workers, the broker aside)",
            f">= {AIM:,}",
            rate >= AIM,
        )
    ]
