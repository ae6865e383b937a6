"""Traces of ticks: what a collector gets over OTLP/HTTP, also of a failure; nothing without a collector."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from test_ticker import WAIT_SECONDS, World

from tidemill import tracing
from tidemill.errors import TidemillError
from tidemill.tracing import MAX_PHASES, TickTrace


class Collector:
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        kept = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    @property
    def spans(self) -> list[Span]:
        return [
            s for r in self.requests for res in r.resource_spans for sc in res.scope_spans for s in sc.spans
        ]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    end = tracing.start_with(exporter, "1")
    yield exporter
    end()


def test_a_collector_gets_each_tick_with_its_phases(tmp_path: Path, collector: Collector) -> None:
    end = tracing.start(collector.url, "1.2")
    world = World(tmp_path)
    try:
        slot = world.add("a", world.counter())
        before = time.time_ns()
        world.ticks(slot, more=3)
    finally:
        world.close()
        end()
    wholes = [s for s in collector.spans if s.name == "tick"]
    assert len(wholes) >= 3
    (resource,) = {r.resource.SerializeToString() for m in collector.requests for r in m.resource_spans}
    assert b"tidemill" in resource and b"1.2" in resource
    for whole in wholes:
        within = [s for s in collector.spans if s.parent_span_id == whole.span_id]
        assert [s.name for s in within] == ["bind", "job", "commit"]
        assert {s.trace_id for s in within} == {whole.trace_id}
        edges = [t for s in within for t in (s.start_time_unix_nano, s.end_time_unix_nano)]
        # Times of one clock less durations of another: a millisecond of play.
        assert all(b - a > -1_000_000 for a, b in itertools.pairwise(edges))
        assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (edges[0], edges[-1])
        assert before - 10**12 < edges[0] <= edges[-1] <= time.time_ns()
        found = {a.key: a.value for a in whole.attributes}
        assert found["tidemill.source.name"].string_value == "a"
        assert found["tidemill.records"].int_value >= 1
        assert found["tidemill.time"].int_value in {b.time for b in slot.machine.remap.bindings(0)}


def test_a_failed_tick_has_its_error(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    world = World(tmp_path)
    try:
        world.add("bad", world.counter(FAIL_AT=5))
        slot = world.add("good", world.counter())
        deadline = time.monotonic() + WAIT_SECONDS
        world.ticks(slot, more=2)
        while not (failed := [s for s in finished(spans) if s[0] == "bad" and s[1] is StatusCode.ERROR]):
            assert time.monotonic() < deadline
            world.ticks(slot, more=1)
    finally:
        world.close()
    assert failed[0][2]
    assert all(status is StatusCode.UNSET for name, status, _ in finished(spans) if name == "good")


def finished(exporter: InMemorySpanExporter) -> list[tuple[object, StatusCode, object]]:
    """(source, status, error) of the ticks."""
    return [
        (
            (s.attributes or {}).get("tidemill.source.name"),
            s.status.status_code,
            (s.attributes or {}).get("error.type"),
        )
        for s in exporter.get_finished_spans()
        if s.name == "tick"
    ]


def test_what_waits_is_bounded(spans: InMemorySpanExporter) -> None:
    trace = TickTrace({})
    for _ in range(2 * MAX_PHASES):
        trace.phase("job", time.monotonic())
    assert len(trace._phases) == MAX_PHASES  # pyright: ignore[reportPrivateUsage]


def test_a_collector_that_is_away_delays_nothing(tmp_path: Path) -> None:
    gone = Collector()
    gone.close()
    end = tracing.start(gone.url, "1")
    world = World(tmp_path)
    try:
        world.ticks(world.add("a", world.counter()), more=3)
    finally:
        world.close()
        end()


def test_nothing_is_imported_without_a_collector(tmp_path: Path) -> None:
    code = """if True:
        import sys, time
        import tidemill.serve, tidemill.ingest.ticker
        from tidemill.tracing import TickTrace
        trace = TickTrace({})
        trace.phase("bind", time.monotonic())
        trace.end({})
        print([m for m in sys.modules if m.startswith("opentelemetry")], trace._phases)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[] []\n"


def test_without_the_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TidemillError) as e:
        tracing.start("http://127.0.0.1:1", "1")
    assert "tidemill[otel]" in (e.value.hint or "")
