"""Binder errors with PostgreSQL's messages, and positions of parsed nodes."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import DatatypeMismatch, TidemillError, UndefinedObject, Unsupported


class GroupingError(TidemillError):
    sqlstate = "42803"


class WindowingError(TidemillError):
    sqlstate = "42P20"


class AmbiguousColumn(TidemillError):
    sqlstate = "42702"


class InvalidColumnReference(TidemillError):
    sqlstate = "42P10"


class IndeterminateType(TidemillError):
    sqlstate = "42P18"


class CardinalityViolation(TidemillError):
    sqlstate = "21000"


def position_of(node: exp.Expr | None) -> int | None:
    """1-based offset of the first token below the node that has a position."""
    if node is None:
        return None
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    return min(starts) + 1 if starts else None


def undefined_column(name: str, position: int | None, table: str | None = None) -> UndefinedObject:
    shown = f"column {table}.{name} does not exist" if table else f'column "{name}" does not exist'
    return UndefinedObject(shown, sqlstate="42703", position=position)


def missing_from(table: str, position: int | None) -> UndefinedObject:
    return UndefinedObject(
        f'missing FROM-clause entry for table "{table}"', sqlstate="42P01", position=position
    )


def hidden_by_alias(table: str, alias: str, position: int | None) -> UndefinedObject:
    return UndefinedObject(
        f'invalid reference to FROM-clause entry for table "{table}"',
        hint=f'Perhaps you meant to reference the table alias "{alias}".',
        sqlstate="42P01",
        position=position,
    )


def mismatch(text: str, position: int | None = None, hint: str | None = None) -> DatatypeMismatch:
    return DatatypeMismatch(text, position=position, hint=hint)


def unsupported(what: str, position: int | None = None, hint: str | None = None) -> Unsupported:
    return Unsupported(f"{what} is not supported", position=position, hint=hint)
