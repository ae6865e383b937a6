"""The idle timeouts of a session.

PostgreSQL's `idle_session_timeout` and `idle_in_transaction_session_timeout`. The session's method
`setting(name)` returns the value as SHOW prints it, or None. Called by `message_loop` and by WebSocket
conversations when they are idle. Promise: no timeout unless the setting of the session is positive.
"""

from __future__ import annotations

import re

from tidemill.engine.api import Session
from tidemill.errors import TidemillError


class IdleTimeout(TidemillError):
    """The session was idle for longer than allowed; its connection ends."""

    sqlstate = "57P05"


_UNITS = {"": 0.001, "us": 0.000001, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")


def seconds(text: str) -> float:
    """Parse a duration in PostgreSQL's syntax (a bare number is milliseconds); 0 if it is invalid."""
    found = _DURATION.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        return 0.0
    return int(found[1]) * _UNITS[found[2]]


def allowance(session: Session) -> tuple[float, IdleTimeout] | None:
    """How long the session may stay idle in its present state, and the error when it exceeds that."""
    idle = session.transaction_status == "I"
    text = session.setting("idle_session_timeout" if idle else "idle_in_transaction_session_timeout")
    if text is None or text == "0":
        return None
    limit = seconds(text)
    if limit <= 0:
        return None
    if idle:
        return limit, IdleTimeout("terminating connection due to idle-session timeout")
    return limit, IdleTimeout("terminating connection due to idle-in-transaction timeout", sqlstate="25P03")
