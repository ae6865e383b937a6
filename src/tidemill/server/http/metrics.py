"""The metrics of the HTTP server in `/metrics`. Other layers register theirs in the same registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

REQUESTS = Counter("tidemill_http_requests", "HTTP requests answered.", ["path", "status"])
STATEMENTS = Counter("tidemill_http_statements", "Statements run over HTTP.", ["outcome"])
STREAMS = Gauge("tidemill_http_streams", "WebSockets and streams of events that are open.", ["kind"])
HELD_BYTES = Gauge("tidemill_http_held_bytes", "Bytes of answers that are held before they are sent.")
