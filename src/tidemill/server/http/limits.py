"""The limits of the HTTP server, each with its reason. Exceeding one is an error that names it."""

from __future__ import annotations

from tidemill.server.limits import MAX_QUERY_BYTES

MB = 1 << 20

# A query of the SQL port's size, written as JSON (escapes at most double ordinary text), and parameters
# beside it.
MAX_BODY_BYTES = 4 * MAX_QUERY_BYTES

# Seconds for a request's head to arrive, and then for its body: a silent connection costs a slot.
HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0

# Connections at once; beyond it a request is answered 503. At some 100 kB each that is 200 MB.
MAX_CONNECTIONS = 2_000

# Of these, WebSockets and streams of events together, which stay: the rest is kept for requests that come and
# go, health checks among them.
MAX_STREAMS = MAX_CONNECTIONS - 200

# An answer is held whole until it is sent, so that a statement that fails late is an error and not half a
# result. Larger results belong on the SQL port, which streams.
MAX_RESULT_BYTES = 64 * MB

# All answers that are held at one moment: four of the largest.
MAX_HELD_BYTES = 4 * MAX_RESULT_BYTES

# Statements in one request. A request's results are one list, and a loop of a client is better than a list
# of this size.
MAX_QUERIES = 1_000

# What the system holds for a client that does not read (Linux takes it twice). Left to itself it takes up to
# 4 MB, of which 2,000 clients could make 8 GB; with it a client 100 ms away still gets 5 MB in a second.
SEND_BUFFER_BYTES = 256 * 1024

# One message to a WebSocket: as a request's body, which holds the same.
MAX_MESSAGE_BYTES = MAX_BODY_BYTES

# Frames of one message: empty ones cost memory and count for nothing in its size.
MAX_FRAGMENTS = 1_000

# Messages to a WebSocket that wait while a statement runs, and their bytes together. The socket is read all
# the time, so that a cancel, a close and an answer to a ping are noticed; so there must be an end.
MAX_WAITING_MESSAGES = 1_000
MAX_WAITING_BYTES = 2 * MAX_MESSAGE_BYTES

# Seconds from the opening of a WebSocket to its first message: a silent connection costs a slot.
LOGIN_SECONDS = 10.0

# A WebSocket is pinged so often, and closed when no pong came for so long. The pong of a slow reader waits
# behind all that it has not read yet, hence the long time.
PING_SECONDS = 15.0
PONG_SECONDS = 60.0

# A client that reads no byte of pending output for this long is gone, even if TCP does not report it. Its
# connection is aborted. (A slow client that reads some bytes lags by its buffer instead.)
STALLED_SECONDS = 60.0

# Bytes in a WebSocket's transport that were written without flow control: the pongs for a client that pings
# and does not read.
MAX_PONG_BYTES = 1 * MB

# A stream of events in which nothing happens says so this often: proxies and browsers give up silent ones
# after 30 to 60 seconds.
HEARTBEAT_SECONDS = 15.0

# Milliseconds after which a browser reconnects to a lost stream of events.
RETRY_MS = 2_000

# Columns in a key, and parameters in a request for events: as many as a person would write.
MAX_PARAMETERS = 100

# Seconds that a shutdown waits for requests to end after their statements were cancelled.
SHUTDOWN_SECONDS = 5.0
