"""The conversion of exceptions into errors for the client.

A TidemillError is sent unchanged. Any other exception is a bug: the log gets the traceback with a short
reference. The client gets XX000 and the reference, without internal details.
"""

from __future__ import annotations

import logging
import secrets

from tidemill.errors import Internal, InvalidTransactionState, LimitExceeded, TidemillError
from tidemill.server.metrics import ERRORS

log = logging.getLogger("tidemill.pgwire")


def client_error(error: BaseException, doing: str) -> TidemillError:
    """The error for the client about `error`, which occurred while `doing`."""
    if isinstance(error, TidemillError):
        told = error
    elif isinstance(error, MemoryError):
        log.error("out of memory while %s", doing)
        told = LimitExceeded("out of memory", sqlstate="53200")
    else:
        reference = secrets.token_hex(4)
        log.error("unexpected error %s while %s", reference, doing, exc_info=error)
        told = Internal(
            "internal error", hint=f"The server's log tells more under the reference {reference}."
        )
    ERRORS.labels(told.sqlstate).inc()
    return told


def transaction_aborted() -> InvalidTransactionState:
    return InvalidTransactionState(
        "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
    )
