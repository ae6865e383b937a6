"""The limits of the HTTP door, each with its reason. Beyond them a request gets an error that says so,
never a crash."""

from __future__ import annotations

from tidemill.server.limits import MAX_QUERY_BYTES

MB = 1 << 20

# A query of the SQL port's size, written as JSON (escapes at most double ordinary text), and parameters
# beside it.
MAX_BODY_BYTES = 4 * MAX_QUERY_BYTES

# Seconds for a request's head to arrive, and then for its body: a silent connection costs a slot.
HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0

# Connections at once; beyond it a request is answered 503. The SQL port is the one for many clients.
MAX_CONNECTIONS = 500

# An answer is held whole until it is sent, so that a statement that fails late is an error and not half a
# result. Larger results belong on the SQL port, which streams.
MAX_RESULT_BYTES = 64 * MB

# All answers that are held at one moment: four of the largest.
MAX_HELD_BYTES = 4 * MAX_RESULT_BYTES

# Statements in one request. A request's results are one list, and a loop of a client is better than a list
# of this size.
MAX_QUERIES = 1_000

# Seconds that a shutdown waits for requests to end after their statements were cancelled.
SHUTDOWN_SECONDS = 5.0
