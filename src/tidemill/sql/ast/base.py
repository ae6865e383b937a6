"""The building blocks of statements: names, expressions, queries.

All are frozen values. `offset` is the position in the parsed text (0-based, characters). Comparison ignores
it, so a statement equals its rendered and re-parsed self. The sqlglot trees inside are canonical
(`parser.tree`): names are folded, and an identifier's `quoted` only states whether it needs quotes. Copy a
tree before changing it.

A node's `meta` may hold `start` and `end` (inclusive), character offsets in the parsed text. Identifiers,
literals, stars and calls have them. Calls also have `function`, the folded name as written (`now` and
`current_timestamp` give the same node).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidemill.sql.names import quote_ident, quote_name


def offset_field() -> int:
    """An offset: kept for errors, ignored in comparison."""
    return field(default=0, compare=False, repr=False)


class Statement:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Ident:
    """One identifier: a column, a cursor, an alias."""

    value: str  # folded, or as quoted
    offset: int = offset_field()

    def __str__(self) -> str:
        return quote_ident(self.value)


@dataclass(frozen=True, slots=True)
class Name:
    """A possibly qualified name: item, schema.item or database.schema.item."""

    parts: tuple[str, ...]  # one to three, each folded or as quoted
    offset: int = offset_field()

    @property
    def item(self) -> str:
        return self.parts[-1]

    def __str__(self) -> str:
        return quote_name(*self.parts)


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression (or, in RETURNING, an item of a select list: then the tree may be an Alias or a
    Star)."""

    tree: exp.Expr
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Default:
    """The keyword DEFAULT in place of a value."""

    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class AsOf:
    """AS OF [AT LEAST] time."""

    time: Expr
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Query(Statement):
    """SELECT, VALUES, TABLE or a set operation, with its WITH, and the time to read at."""

    tree: exp.Query | exp.Values
    as_of: AsOf | None = None
    offset: int = offset_field()
