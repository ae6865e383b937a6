"""The exceptions of the client library: one class per condition that an application can handle.

All are `TidemillError`s: a primary text, an optional detail and hint, an SQLSTATE. Errors of the server
are `ServerError`s with the text of the server. Its subclasses are the conditions that the client
distinguishes.
"""

from __future__ import annotations

from psycopg import pq
from psycopg.pq import abc

from tidemill.errors import LimitExceeded, TidemillError

__all__ = [
    "ClientError",
    "Closed",
    "ColumnsChanged",
    "ConnectionFailed",
    "ConnectionLost",
    "GaveUp",
    "HistoryGone",
    "MissingPackage",
    "NoRows",
    "ProtocolViolation",
    "ServerError",
    "TooLarge",
    "server_error",
]

# The server stops, starts, or is out of resources: the same statement may succeed later.
_TRANSIENT_STATES = frozenset({"57P01", "57P02", "57P03", "53300"})
_TRANSIENT_CLASS = "08"
# A subscription that was too slow continues where it stopped; other causes of 53000 would recur.
_FELL_BEHIND_STATE, _FELL_BEHIND = "53000", "SUBSCRIBE fell behind"
_HISTORY_STATE, _HISTORY = "22000", "could not find a valid timestamp"


class ClientError(TidemillError):
    """Base of the errors below."""


class ServerError(ClientError):
    """The server refused or interrupted a statement; text, detail, hint and SQLSTATE are the server's. If
    `transient` is true, a subscription continues automatically and does not raise this error."""


class HistoryGone(ServerError):
    """The requested time is no longer available, because the server keeps history for a limited time. A live
    table takes a new snapshot instead."""

    sqlstate = "22000"


class ConnectionFailed(ClientError):
    """The connection could not be established."""

    sqlstate = "08001"
    transient = True


class ConnectionLost(ClientError):
    """The connection was lost during a statement. A write may have happened."""

    sqlstate = "08006"
    transient = True


class GaveUp(ClientError):
    """The server could not be reached for as long as `Retry.give_up_after` allows; the last failure is the
    cause."""

    sqlstate = "08006"


class ColumnsChanged(ClientError):
    """After a reconnect the columns of the relation or query are different."""

    sqlstate = "0A000"


class TooLarge(ClientError, LimitExceeded):
    """The rows of one time are larger than `max_bytes`."""

    sqlstate = "54000"


class Closed(ClientError):
    """The client, subscription or table is already closed."""

    sqlstate = "08003"


class MissingPackage(ClientError):
    """A conversion needs a package that is not installed."""

    sqlstate = "58P01"


class NoRows(ClientError):
    """The statement of query() returns no rows. It was executed nevertheless."""

    sqlstate = "42601"


class ProtocolViolation(ClientError):
    """The server violated the protocol: it sent rows of a time that was already complete, or removed a row
    that did not exist."""

    sqlstate = "08P01"


def server_error(result: abc.PGresult) -> ClientError:
    """The exception for a failed result."""

    def field(name: pq.DiagnosticField) -> str | None:
        value = result.error_field(name)
        return None if value is None else value.decode(errors="replace")

    state = field(pq.DiagnosticField.SQLSTATE)
    if state is None:  # from libpq, not from the server: the connection is lost
        return ConnectionLost(result.get_error_message().strip() or "the connection ended")
    text = field(pq.DiagnosticField.MESSAGE_PRIMARY) or "unknown error"
    gone = state == _HISTORY_STATE and text.startswith(_HISTORY)
    position = field(pq.DiagnosticField.STATEMENT_POSITION)
    error = (HistoryGone if gone else ServerError)(
        text,
        detail=field(pq.DiagnosticField.MESSAGE_DETAIL),
        hint=field(pq.DiagnosticField.MESSAGE_HINT),
        sqlstate=state,
        position=int(position) if position and position.isdigit() else None,
    )
    behind = state == _FELL_BEHIND_STATE and text.startswith(_FELL_BEHIND)
    error.transient = behind or state in _TRANSIENT_STATES or state.startswith(_TRANSIENT_CLASS)
    return error
