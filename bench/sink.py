"""Sinks of a real server into a real broker: from CREATE SINK until everything that the table holds is
written, acknowledged and counted, or committed. The registry is a stand-in: it is asked once.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from bench.busy import core_seconds
from bench.report import Figure
from bench.serving import serving
from bench.subscribe.memory import Family
from bench.subscribe.snapshot import STEP, TABLE, fill
from support.server import ServerProcess
from tidemill.dev.broker import Broker
from tidemill.sinks.kafka_topic import last_upper, place_of
from tidemill.sources.kafka.metadata import Admin

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


CDCV2 = "Avro, CDCv2"
AVRO = "AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r"
# What stands behind INTO KAFKA, by the name of the figure.
KINDS = {
    CDCV2: f"FORMAT {AVRO} ENVELOPE MATERIALIZE",
    "Avro, UPSERT in a transaction": f"KEY (id) FORMAT {AVRO} ENVELOPE UPSERT",
    "JSON, UPSERT in a transaction": "KEY (id) FORMAT JSON ENVELOPE UPSERT",
    "Avro, DEBEZIUM in a transaction": f"KEY (id) FORMAT {AVRO} ENVELOPE DEBEZIUM",
}


def to_kafka(rows: int, kind: str = CDCV2) -> list[Figure]:
    """A table of so many rows into a topic of four partitions, and then as many changes of them."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder,
        _registry() as registry,
        serving() as server,
        psycopg.connect(server.sql_dsn, autocommit=True) as c,
    ):
        broker = Broker(Path(folder), heap_mb=BROKER_HEAP_MB)
        broker.start()
        try:
            c.execute(TABLE.replace("id bigint", "id bigint NOT NULL").encode())
            fill(c, rows)
            c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{broker.bootstrap}')".encode())
            c.execute(
                f"CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL '{registry}') "
                "WITH (VALIDATE = false)".encode()
            )
            family = Family(server.pid)
            began, used = time.perf_counter(), core_seconds(server.pid)
            c.execute(
                "CREATE SINK s FROM big INTO KAFKA CONNECTION k (TOPIC 'big', PARTITION COUNT 4) "
                f"{KINDS[kind]}".encode()
            )
            _until(server, lambda: bool(_metric(server, "tidemill_sink_lag_seconds")))
            took, used = time.perf_counter() - began, core_seconds(server.pid) - used
            grown = family.grown_mb()
            written = _metric(server, "tidemill_sink_updates_total")
            _check(broker, kind, rows)
            if written != rows:
                raise AssertionError(f"{written} updates of {rows} rows")
            figures = [_figure(f"a table of {rows:,} rows", kind, rows, took, used, grown)]
            if kind != CDCV2:
                figures.append(_changes(server, c, min(rows, STEP), kind))
        finally:
            broker.stop()
    return figures


def _changes(server: ServerProcess, c: psycopg.Connection, rows: int, kind: str) -> Figure:
    """From the commit of the change until all of it is committed to the topic."""
    before = _metric(server, "tidemill_sink_updates_total") or 0.0
    c.execute(f"UPDATE big SET amount = amount + 1 WHERE id <= {rows}".encode())
    family = Family(server.pid)
    began, used = time.perf_counter(), core_seconds(server.pid)
    # Of each row the old one and the new one.
    _until(server, lambda: (_metric(server, "tidemill_sink_updates_total") or 0.0) >= before + 2 * rows)
    took, used = time.perf_counter() - began, core_seconds(server.pid) - used
    return _figure(f"{rows:,} changed rows at one time", kind, rows, took, used, family.grown_mb())


def _until(server: ServerProcess, done: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + SECONDS
    while not done():
        if time.perf_counter() > deadline:
            raise AssertionError(f"not written within {SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _check(broker: Broker, kind: str, rows: int) -> None:
    """The progress is there, and the rows."""
    reached = {"brokers": [broker.bootstrap]}
    if kind == CDCV2:
        place = place_of(reached, "big")
        if last_upper(reached, "big", (0, 1), place, lambda: None) is None:
            raise AssertionError("nothing is stated")
        return
    admin = Admin(reached)
    partitions = admin.identity("big", SECONDS).partitions
    records = sum(admin.ends("big", partitions, SECONDS).values())
    if not rows <= records <= rows + 4 * len(partitions):
        raise AssertionError(f"{records} records of {rows} rows")


def _figure(what: str, kind: str, rows: int, took: float, used: float, grown: float) -> Figure:
    rate = rows / took
    return Figure(
        f"writer from {what} to Kafka, {kind}, {'updates' if kind == CDCV2 else 'messages'}/s",
        f"{rate:,.0f} ({rows / used:,.0f} per second of a core; + {grown:.0f} MB of server, JVM and "
        "workers, the broker aside)",
        f">= {AIM:,}",
        rate >= AIM,
    )
