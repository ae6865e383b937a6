"""SHOW: objects, their definitions, and variables."""

from __future__ import annotations

from tidemill.errors import Unsupported
from tidemill.sql.ast import AsOf, Listing, ObjectKind, ShowCreate, ShowLocation, ShowObjects, Statement
from tidemill.sql.names import words
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.settings import show_variable

_NOT_YET = words(
    """
    indexes clusters types
    functions privileges
    """
)
# The object kinds of SHOW CREATE.
_CREATED = (
    ObjectKind.TABLE,
    ObjectKind.VIEW,
    ObjectKind.MATERIALIZED_VIEW,
    ObjectKind.SOURCE,
    ObjectKind.SINK,
    ObjectKind.SUBSCRIPTION,
    ObjectKind.CONNECTION,
)
_WITHIN_PARTS = {
    Listing.TABLES: 2,
    Listing.VIEWS: 2,
    Listing.MATERIALIZED_VIEWS: 2,
    Listing.OBJECTS: 2,
    Listing.SCHEMAS: 1,
    Listing.COLUMNS: 3,
    Listing.SOURCES: 2,
    Listing.SUBSOURCES: 2,
    Listing.SINKS: 2,
    Listing.SUBSCRIPTIONS: 2,
    Listing.CONNECTIONS: 2,
    Listing.SECRETS: 2,
}


def show(cursor: TokenCursor) -> Statement:
    """After SHOW."""
    if cursor.accept("create"):
        return _show_create(cursor)
    if cursor.accept("location", "of"):
        return _show_location(cursor)
    full = cursor.peek_any("full") and cursor.accept("full")
    for listing in Listing:
        if cursor.accept(*listing.value.lower().split()):
            return _show_objects(cursor, listing)
    if cursor.peek_any(*_NOT_YET):
        raise Unsupported(
            f"SHOW {cursor.token.value.upper()} is not supported yet", position=cursor.offset + 1
        )
    if full:
        raise cursor.error()
    return show_variable(cursor)


def _show_create(cursor: TokenCursor) -> Statement:
    for kind in _CREATED:
        if cursor.accept(*kind.value.lower().split()):
            return ShowCreate(kind, cursor.name())
    if cursor.peek_any("secret"):
        raise cursor.unsupported(
            "SHOW CREATE SECRET", hint="What a secret holds is never shown; SHOW SECRETS gives the names."
        )
    if cursor.at_end:
        raise cursor.error()
    raise Unsupported(
        f"SHOW CREATE {cursor.token.value.upper()} is not supported yet", position=cursor.offset + 1
    )


def _show_location(cursor: TokenCursor) -> Statement:
    name = cursor.name()
    if not cursor.accept("as", "of"):
        return ShowLocation(name)
    at_least = cursor.accept("at", "least")
    return ShowLocation(name, AsOf(cursor.expression(), at_least))


def _show_objects(cursor: TokenCursor, listing: Listing) -> Statement:
    within = None
    if listing is Listing.COLUMNS:
        if not cursor.accept("in"):
            cursor.expect("from")
        within = cursor.name()
    elif listing in _WITHIN_PARTS and (cursor.accept("from") or cursor.accept("in")):
        within = cursor.name(_WITHIN_PARTS[listing])
    on = cursor.name() if listing is Listing.SUBSOURCES and cursor.accept("on") else None
    like = where = None
    if cursor.accept("like"):
        like = cursor.string()
    elif cursor.accept("where"):
        where = cursor.expression()
    return ShowObjects(listing, within, like, where, on)
