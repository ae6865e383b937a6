"""FROM POSTGRES: the tables of a publication, through a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sources import NO_CHOICE, ColumnChoice, Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.column_choice import COLUMN_OPTIONS, column_choice
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields


@dataclass(frozen=True, slots=True)
class Postgres(Upstream):
    """FROM POSTGRES CONNECTION c (PUBLICATION 'p', TEXT COLUMNS (t.a, ...), EXCLUDE COLUMNS (t.b, ...))."""

    connection: Name
    publication: str | None  # the planner requires it
    choice: ColumnChoice = NO_CHOICE
    offset: int = offset_field()

    def to_sql(self) -> str:
        publication = None if self.publication is None else f"PUBLICATION {quote_literal(self.publication)}"
        options = ", ".join(o for o in (publication, self.choice.to_sql()) if o)
        return f"POSTGRES CONNECTION {self.connection} ({options})"

    def through(self, connection: Name) -> Postgres:
        return replace(self, connection=connection)

    def choosing(self, choice: ColumnChoice) -> Postgres:
        return replace(self, choice=choice)


_WRITE = "Write FROM POSTGRES CONNECTION name (PUBLICATION '...')."
_READERS: dict[tuple[str, ...], Callable[[TokenCursor], Any]] = {
    ("publication",): lambda cursor: cursor.string("Write PUBLICATION '...'."),
    **COLUMN_OPTIONS,
}


def parse_postgres(cursor: TokenCursor) -> Postgres:
    """After POSTGRES: CONNECTION c (options)."""
    offset = cursor.offset
    cursor.expect("connection", hint=_WRITE)
    connection = cursor.name()
    if not cursor.peek_symbol("("):
        raise cursor.error(_WRITE)
    found = accept_fields(cursor, _READERS, "a PostgreSQL source")
    return Postgres(connection, found.get("publication"), column_choice(found), offset)
