"""The limits of the server layer, each with its reason. Exceeding one is an error with an SQLSTATE, never a
crash.

Read by `pgwire` and `copy`; documented for users by these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.engine.api import Session

KB = 1024
MB = 1024 * KB
GB = 1024 * MB

# Connections in all, logged in or not yet, unless max_connections says otherwise. At 50 kB each that is
# 250 MB; beyond it 53300.
MAX_CONNECTIONS = 5_000

# So many more for the system's own role, who can see and end the others.
RESERVED_CONNECTIONS = 3

# Connections above the limit are kept until their first packet, because a CancelRequest must be accepted when
# the server is full. More than this many at once are closed without an answer.
CONNECTION_SLACK = 200

# One message after the login. COPY data and bytea parameters come in one message; a client's libpq can buffer
# as much.
MAX_MESSAGE_BYTES = 64 * MB

# The first packet, before the client has logged in; PostgreSQL's limit.
MAX_STARTUP_BYTES = 10_000

# A password or SASL message, before the client has logged in; PostgreSQL's limit.
MAX_AUTHENTICATION_BYTES = 65_535

# The text of one query. The parser's memory is a multiple of it (tokens, trees: about 100 times).
MAX_QUERY_BYTES = 2 * MB

# Names of prepared statements and portals, as any identifier.
MAX_IDENTIFIER_BYTES = 255

# What one SELECT may send, unless max_result_size says otherwise. A bigger answer is a COPY or a cursor; this
# one is most likely a forgotten WHERE.
MAX_RESULT_BYTES = 1 * GB

# The parameters of the portals that one session keeps.
MAX_KEPT_BYTES = 128 * MB

# One row of COPY FROM STDIN: it is held whole until its end is seen. As a message, for the same reason.
MAX_COPY_ROW_BYTES = 64 * MB

# Seconds from the TCP connection to a finished login. A silent connection costs a slot.
LOGIN_SECONDS = 10.0

# Seconds that a shutdown waits for running statements to end after they were cancelled.
SHUTDOWN_SECONDS = 5.0

# Messages read ahead of the one that runs. Above, the socket is not read: TCP holds the client back.
INBOX_BYTES = 1 * MB

# Output that the transport holds for a slow client before production stops. This is a separate copy per
# client; the data behind it is shared by all subscribers.
OUTBOX_BYTES = 64 * KB

# What the kernel takes of it at once: the rows of a subscription's second go there without a copy here. The
# kernel's own beginning of 16 kB would grow to megabytes for a client that only reads slowly.
SEND_BYTES = 128 * KB

# Small messages are gathered up to this size before they go to the transport.
GATHER_BYTES = 64 * KB

# Rows are encoded in pieces of about this size: large enough that Arrow's cost per call vanishes, small
# enough that a slow reader holds little.
CHUNK_BYTES = 512 * KB
CHUNK_ROWS = 16_384

# Results up to this size are encoded where they are: a change of threads, and back, costs some 100 us on an
# idle machine and a millisecond on a busy one, a row of a few columns 30 us.
LIGHT_ROWS = 16
LIGHT_BYTES = 16 * KB

# Encoded blocks of batches that several clients are sent, kept for those who have not got them yet. Some
# seconds of a hundred thousand rows each; what falls out is encoded again.
SHARED_BYTES = 64 * MB

# COPY FROM STDIN is decoded in blocks of about this size.
COPY_BLOCK_BYTES = 1 * MB


# The lowest that `max_result_size` can be.
LEAST_RESULT_BYTES = 1 << 10


def result_limit(session: Session) -> int:
    """The number of bytes that a SELECT of the session may send."""
    return int(session.setting("max_result_size") or MAX_RESULT_BYTES)
