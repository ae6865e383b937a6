"""Column rules that apply to every kind of relation."""

from __future__ import annotations

from tidemill.catalog.names import check_identifier
from tidemill.errors import DuplicateObject, LimitExceeded
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
