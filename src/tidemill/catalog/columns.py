"""Column rules that apply to every kind of relation."""

from __future__ import annotations

from tidemill.catalog.names import check_identifier
from tidemill.errors import DuplicateObject, InvalidValue, LimitExceeded
from tidemill.types.model import RelationDesc

# As PostgreSQL's; a row of this many columns still fits a message.
MAX_COLUMNS = 1600


def check_columns(desc: RelationDesc) -> None:
    if len(desc.columns) > MAX_COLUMNS:
        raise LimitExceeded(f"relations can have at most {MAX_COLUMNS} columns", sqlstate="54011")
    seen: set[str] = set()
    for column in desc.columns:
        check_identifier(column.name)
        if column.name in seen:
            raise DuplicateObject(f'column "{column.name}" specified more than once', sqlstate="42701")
        seen.add(column.name)


def check_replaced(old: RelationDesc, new: RelationDesc) -> None:
    """The columns of a view that is replaced stay; more may follow. Raises PostgreSQL's errors."""
    if len(new.columns) < len(old.columns):
        raise InvalidValue("cannot drop columns from view", sqlstate=_INVALID)
    for before, after in zip(old.columns, new.columns, strict=False):
        if before.name != after.name:
            raise InvalidValue(
                f'cannot change name of view column "{before.name}" to "{after.name}"',
                hint=f'Name it with AS "{before.name}" in the query.',
                sqlstate=_INVALID,
            )
        if before.type != after.type:
            raise InvalidValue(
                f'cannot change data type of view column "{before.name}" from {before.type} to {after.type}',
                hint="Cast it in the query.",
                sqlstate=_INVALID,
            )


# invalid_table_definition
_INVALID = "42P16"
