"""Statements that write rows, and COPY in both directions."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.sql.ast.base import Default, Expr, Ident, Name, Query, Statement, offset_field
from tidemill.sql.ast.subscribe import Subscribe


@dataclass(frozen=True, slots=True)
class Values:
    """The rows of INSERT ... VALUES, where a cell may be DEFAULT. All rows have the same length."""

    rows: tuple[tuple[Expr | Default, ...], ...]
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    """INSERT INTO table [AS alias] [(columns)] source [RETURNING items]."""

    table: Name
    source: Values | Query | None  # None = DEFAULT VALUES
    columns: tuple[Ident, ...] = ()  # empty = the table's, in order
    alias: Ident | None = None
    returning: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One item of SET. It has several columns only with a subquery: (a, b) = (SELECT ...). The parser splits
    lists of values into single assignments.
    """

    columns: tuple[Ident, ...]
    value: Expr | Default


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """UPDATE table [AS alias] SET assignments [FROM items] [WHERE e] [RETURNING items]."""

    table: Name
    assignments: tuple[Assignment, ...]
    alias: Ident | None = None
    from_: Query | None = None  # SELECT * FROM items
    where: Expr | None = None
    returning: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """DELETE FROM table [AS alias] [USING items] [WHERE e] [RETURNING items]."""

    table: Name
    alias: Ident | None = None
    using: Query | None = None  # SELECT * FROM items
    where: Expr | None = None
    returning: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    tables: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class CopyClause:
    """COPY's options, with PostgreSQL's defaults for the format filled in."""

    format: str = "text"  # text | csv | binary
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    header_match: bool = False  # HEADER MATCH: the header must name the columns
    quote: str = '"'
    escape: str = '"'
    default: str | None = None  # the text that represents the column's default
    encoding: str = "UTF8"  # of the data
    force_quote: tuple[str, ...] = ()  # column names; ("*",) means all
    force_not_null: tuple[str, ...] = ()
    force_null: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyFrom(Statement):
    """COPY table [(columns)] FROM STDIN [options] [WHERE condition]."""

    table: Name
    columns: tuple[Ident, ...] = ()
    options: CopyClause = CopyClause()
    where: Expr | None = None


@dataclass(frozen=True, slots=True)
class CopyTo(Statement):
    """COPY table [(columns)] | (query) | (SUBSCRIBE ...) TO STDOUT [options]."""

    source: Name | Query | Subscribe
    columns: tuple[Ident, ...] = ()  # of a table only
    options: CopyClause = CopyClause()
