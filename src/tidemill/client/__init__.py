"""The Python client library: live queries for synchronous and asyncio programs.

`connect(url)` and `connect_async(url)` return a client. Its `subscribe()` iterates over complete times,
its `live_table()` keeps the result of a query in memory, its `consume()` reads a durable subscription. All
reconnect automatically after a lost connection, without gaps or repeats. The manual is docs/client.md.

Depends on `tidemill.types` and psycopg; it uses only the SQL of the server. Modules without I/O:
`request` (the request), `copy_rows` (bytes to columns), `assemble` (rows to complete times), `state`
(complete times to a table), `course` (the steps of a subscription, including reconnects). `sync` and
`aio` drive them.
"""

from tidemill.client.aio import AsyncClient, connect_async
from tidemill.client.aio_following import AsyncConsumer, AsyncLiveTable, AsyncSubscription
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
from tidemill.client.subscription import Consumer, Subscription
from tidemill.client.sync import Client, connect

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
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
    "Consumer",
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
