"""The metrics of the server layer, in Prometheus' default registry; `/metrics` prints them.

Used by all of `server`. Labels come from closed sets only (verbs, SQLSTATEs), never from client input.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from tidemill.server.counters import StatementCounter, Timings

CONNECTIONS = Gauge("tidemill_pgwire_connections", "Open PostgreSQL connections, logged in or not.")
CONNECTIONS_TOTAL = Counter("tidemill_pgwire_connections_accepted", "PostgreSQL connections accepted.")
CONNECTIONS_REFUSED = Counter(
    "tidemill_pgwire_connections_refused", "PostgreSQL connections refused because there were too many."
)
LOGINS = Counter(
    "tidemill_logins",
    "Logins by password, over both ports: ok, wrong, or unseen because too many had failed before.",
    ["outcome"],
)
STATEMENTS = Timings(
    ("tidemill_statements", "Statements executed over pgwire, by verb."),
    ("tidemill_statement_seconds", "Time from a statement's start to its last byte, by verb."),
    (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
)
ERRORS = Counter("tidemill_pgwire_errors", "Errors sent to PostgreSQL clients, by SQLSTATE.", ["sqlstate"])
BYTES_SENT = StatementCounter("tidemill_pgwire_sent_bytes", "Bytes sent to PostgreSQL clients.")
BYTES_RECEIVED = StatementCounter("tidemill_pgwire_received_bytes", "Bytes received from PostgreSQL clients.")
CANCEL_REQUESTS = Counter("tidemill_pgwire_cancel_requests", "Cancel requests that named a live session.")
LOOP_LAG = Histogram(
    "tidemill_event_loop_lag_seconds",
    "How much later than asked for the event loop ran a timer.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
LOOP_LAG_LAST = Gauge(
    "tidemill_event_loop_lag_last_seconds", "The event loop's lag when it was last measured."
)
