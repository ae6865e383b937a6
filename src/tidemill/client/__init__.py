"""The Python library for applications: live queries in a few lines, for ordinary programs and for asyncio.

`connect(url)` and `connect_async(url)` give a client; its `subscribe()` iterates over complete times, its
`live_table()` keeps a query's result in memory. Both come back by themselves after a lost connection, with no
gap and no repeat. docs/client.md is the manual.

Stands on `tidemill.types` and psycopg and knows nothing of the server but its SQL. What knows no I/O:
`request` (what is asked for), `copy_rows` (bytes to columns), `assemble` (rows to complete times), `state`
(complete times to a table), `course` (what to do when, cuts and all). What drives it: `sync`, `aio`.
"""

from tidemill.client.aio import AsyncClient, connect_async
from tidemill.client.aio_following import AsyncLiveTable, AsyncSubscription
from tidemill.client.errors import (
    ClientError,
    Closed,
    ColumnsChanged,
    ConnectionFailed,
    ConnectionLost,
    GaveUp,
    HistoryGone,
    MissingPackage,
    NoRows,
    ProtocolViolation,
    ServerError,
    TooLarge,
)
from tidemill.client.frames import Batch, Changes, Frame
from tidemill.client.live_table import LiveTable
from tidemill.client.retry import Retry
from tidemill.client.subscription import Subscription
from tidemill.client.sync import Client, connect

__all__ = [
    "AsyncClient",
    "AsyncLiveTable",
    "AsyncSubscription",
    "Batch",
    "Changes",
    "Client",
    "ClientError",
    "Closed",
    "ColumnsChanged",
    "ConnectionFailed",
    "ConnectionLost",
    "Frame",
    "GaveUp",
    "HistoryGone",
    "LiveTable",
    "MissingPackage",
    "NoRows",
    "ProtocolViolation",
    "Retry",
    "ServerError",
    "Subscription",
    "TooLarge",
    "connect",
    "connect_async",
]
