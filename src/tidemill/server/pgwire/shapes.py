"""A cache of the last result shapes of a connection, because clients repeat their queries.

Owned by `client_line`, used by `message_loop`, `extended` and `results`. A plan that runs again returns
the same columns object, so a comparison by identity is enough. Promise: a connection keeps at most
`MAX_KEPT` shapes.
"""

from __future__ import annotations

from tidemill import caches
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.rows import RowEncoder
from tidemill.types.model import Column

# Each takes a kilobyte, and there may be thousands of connections.
MAX_KEPT = 4


class ResultShape:
    """Columns with their formats: their description, and the encoder of their rows."""

    __slots__ = ("columns", "description", "encoder", "formats", "zone")

    def __init__(self, columns: tuple[Column, ...], formats: tuple[int, ...], zone: str) -> None:
        self.columns = columns
        self.formats = formats
        self.zone = zone
        self.description = replies.row_description(columns, formats)
        self.encoder = RowEncoder(columns, formats, zone)


class Shapes:
    """The shapes of one connection."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        # The newest is last.
        self._kept: list[ResultShape] = []

    def of(self, columns: tuple[Column, ...], formats: tuple[int, ...], zone: str) -> ResultShape:
        """`formats` has one entry per column; `zone` is the time zone for times."""
        for shape in self._kept if caches.ENABLED else ():
            if shape.columns is columns and shape.formats == formats and shape.zone == zone:
                return shape
        shape = ResultShape(columns, formats, zone)
        if len(self._kept) == MAX_KEPT:
            del self._kept[0]
        self._kept.append(shape)
        return shape
