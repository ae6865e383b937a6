"""OpenTelemetry traces of ticks, sent to the collector of `--otlp-endpoint`; nothing without it.

`start` is called once, by `serve`. Until then nothing of OpenTelemetry is imported, and a trace costs a look
at a variable. Spans are made when a tick has ended, with the times that it noted: none is held open. They
wait in a queue of fixed length for a thread of the exporter; what does not fit is dropped. No tick waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

# Of the exporter: spans that wait, and spans of one request. A tick is four spans of about half a kilobyte.
MAX_WAITING = 4096
MAX_SENT = 512
# Phases of a tick that has not ended: a source that catches up reads in many jobs, each of which ends a tick.
MAX_PHASES = 64

Attributes = Mapping[str, str | int | bool]

_tracer: Tracer | None = None


def start(endpoint: str, version: str) -> Callable[[], None]:
    """Send traces to the collector at `endpoint` (OTLP over HTTP). Returns what sends the rest and ends."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as e:
        raise TidemillError(
            "traces need the packages of OpenTelemetry, which are not installed",
            hint="pip install 'tidemill[otel]', or leave --otlp-endpoint out.",
            sqlstate="58P01",
        ) from e
    return start_with(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces"), version)


def start_with(exporter: SpanExporter, version: str) -> Callable[[], None]:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    global _tracer
    resource = Resource.create({"service.name": "tidemill", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING, max_export_batch_size=MAX_SENT)
    )
    _tracer = provider.get_tracer("tidemill", version)

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end


class TickTrace:
    """What one source's tick did and when. Used by the holder of the source's slot alone."""

    __slots__ = ("_about", "_phases")

    def __init__(self, about: Attributes) -> None:
        self._about = about
        # (name, start, end), in nanoseconds since 1970.
        self._phases: list[tuple[str, int, int]] = []

    def phase(self, name: str, began: float) -> None:
        """The phase that began at this time of `time.monotonic` has just ended."""
        if _tracer is None or len(self._phases) >= MAX_PHASES:
            return
        now = time.time_ns()
        self._phases.append((name, now - int((time.monotonic() - began) * 1e9), now))

    def end(self, found: Attributes, error: TidemillError | None = None) -> None:
        """The tick has ended: a span of the whole with one for each phase in it."""
        tracer, phases = _tracer, self._phases
        if tracer is None or not phases:
            return
        self._phases = []
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        whole = tracer.start_span("tick", start_time=phases[0][1], attributes={**self._about, **found})
        for name, began, ended in phases:
            tracer.start_span(name, set_span_in_context(whole), start_time=began).end(ended)
        if error is not None:
            whole.set_status(Status(StatusCode.ERROR, error.primary))
            whole.set_attribute("error.type", error.sqlstate)
        whole.end(phases[-1][2])
