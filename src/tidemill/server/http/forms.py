"""Errors, notices and columns as JSON objects, for all ways to run SQL over HTTP."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from tidemill.engine.api import Session
from tidemill.errors import Notice, TidemillError
from tidemill.types import wire
from tidemill.types.model import Column

_log = logging.getLogger("tidemill.server.http")


def error_json(error: Exception) -> dict[str, Any]:
    """The JSON object of an error. An unexpected exception is logged, and reported without details."""
    if isinstance(error, TidemillError):
        found = {
            "message": error.primary,
            "code": error.sqlstate,
            "detail": error.detail,
            "hint": error.hint,
            "position": error.position,
            "context": error.context,
        }
        if error.about is not None:
            found |= asdict(error.about)
        return {key: value for key, value in found.items() if value is not None}
    _log.error("a statement over HTTP failed in a way that is a bug", exc_info=error)
    return {"message": "internal error", "code": "XX000", "hint": "The server's log tells more."}


def stopping() -> TidemillError:
    """The error that clients receive when the server shuts down."""
    return TidemillError("terminating connection due to administrator command", sqlstate="57P01")


def notices(session: Session) -> list[dict[str, Any]]:
    """The notices of the session since the last call."""
    return [notice_json(event) for event in session.events() if isinstance(event, Notice)]


def notice_json(notice: Notice) -> dict[str, Any]:
    found = {
        "message": notice.text,
        "severity": notice.severity.lower(),
        "code": notice.sqlstate,
        "detail": notice.detail,
        "hint": notice.hint,
    }
    return {key: value for key, value in found.items() if value is not None}


def described(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": str(column.type),
        "type_oid": wire.oid(column.type),
        "type_len": wire.typlen(column.type),
        "type_mod": wire.typmod(column.type),
    }
