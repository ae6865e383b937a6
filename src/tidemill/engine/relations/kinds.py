"""The names of object kinds: in statements, and in the system relations."""

from __future__ import annotations

from tidemill.catalog.items import (
    Connection,
    MaterializedView,
    SchemaItem,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    Table,
    View,
)
from tidemill.sql.ast import ObjectKind

_KINDS: dict[type[SchemaItem], ObjectKind] = {
    Connection: ObjectKind.CONNECTION,
    Secret: ObjectKind.SECRET,
    Sink: ObjectKind.SINK,
    Subscription: ObjectKind.SUBSCRIPTION,
    View: ObjectKind.VIEW,
    MaterializedView: ObjectKind.MATERIALIZED_VIEW,
    Table: ObjectKind.TABLE,
}


def statement_kind(item: SchemaItem) -> ObjectKind:
    """The object's kind in DROP, ALTER and SHOW CREATE."""
    if isinstance(item, SourceTable) and not item.subsource:
        return ObjectKind.TABLE
    return _KINDS.get(type(item), ObjectKind.SOURCE)


def object_type(item: SchemaItem) -> str:
    """The object's kind in mz_objects and SHOW OBJECTS."""
    if isinstance(item, SourceProgress):
        return "source_progress"
    return statement_kind(item).value.lower().replace(" ", "-")


def source_type(item: Source | SourceTable | SourceProgress) -> str:
    """The source's type in mz_sources and SHOW SOURCES."""
    if isinstance(item, Source):
        return item.type
    if isinstance(item, SourceProgress):
        return "progress"
    if item.dead_letters_of is not None:
        return "dead-letters"
    return "subsource" if item.subsource else "table"
