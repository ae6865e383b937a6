"""Layout of an output of objects: the columns of its relation, from the format, INCLUDE and ENVELOPE.

A specification (`spec`, of the definition) has `name`, `value` (the format), `include` (a list of `what` and
`as`) and `envelope` (`kind`; of upserts `key`, a list of columns).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.decode.formats import open_decoder
from tidemill.errors import DuplicateObject, UndefinedObject, Unsupported
from tidemill.sources.contract import KEY_SLOT_COLUMN, Gauge, OutputDefinition
from tidemill.sources.objects.tables import is_table, typed_columns
from tidemill.types.model import BYTEA, INT8, TEXT, TIMESTAMP, UINT8, Column, RelationDesc

GAUGE = Gauge(
    Column("byte_offset", UINT8, nullable=False),
    Column("key", TEXT, nullable=False),
    stamp=Column("mz_stamp", TEXT),
)
# Hidden columns of upserts: the row of a key is the greatest by these.
MODIFIED_COLUMN, OBJECT_COLUMN, PLACE_COLUMN = "mz_order1", "mz_order2", "mz_order3"
ORDER = (MODIFIED_COLUMN, OBJECT_COLUMN, PLACE_COLUMN)
_HIDDEN = (
    Column(KEY_SLOT_COLUMN, BYTEA),
    Column(MODIFIED_COLUMN, INT8),
    Column(OBJECT_COLUMN, TEXT),
    Column(PLACE_COLUMN, INT8),
)
# What INCLUDE can name, with its column.
INCLUDED = {
    "key": Column("key", TEXT, nullable=False),
    "offset": Column("byte_offset", UINT8, nullable=False),
    "timestamp": Column("last_modified", TIMESTAMP, nullable=False),
}


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """`values` is how many columns the format has; those of `included` follow."""

    output: OutputDefinition
    values: int
    included: tuple[str, ...]


def value_columns(form: Mapping[str, Any]) -> tuple[Column, ...]:
    if is_table(form):
        return typed_columns(form)
    return tuple(open_decoder(form).columns)


def object_layout(spec: Mapping[str, Any]) -> ObjectLayout:
    """Raises for an invalid one."""
    include: Sequence[Mapping[str, Any]] = spec["include"]
    values = value_columns(spec["value"])
    columns = [replace(column, nullable=True) for column in values]
    for item in include:
        if item["what"] not in INCLUDED:
            raise Unsupported(
                f"INCLUDE {item['what'].upper()} is not possible for objects",
                hint="What can be included is KEY (the name of the object), OFFSET and TIMESTAMP.",
            )
        column = INCLUDED[item["what"]]
        columns.append(column if item["as"] is None else replace(column, name=item["as"]))
    names = [column.name for column in columns]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise DuplicateObject(
                f'column "{name}" specified more than once',
                detail="The columns are " + ", ".join(names) + ".",
                hint="AS behind an item of INCLUDE calls its column something else.",
                sqlstate="42701",
            )
    included = tuple(item["what"] for item in include)
    key = spec["envelope"].get("key")
    if key is None:
        return ObjectLayout(
            OutputDefinition(spec["name"], RelationDesc(tuple(columns))), len(values), included
        )
    for name in key:
        if name not in names:
            raise UndefinedObject(
                f'column "{name}" of KEY does not exist',
                detail="The columns are " + ", ".join(names) + ".",
                sqlstate="42703",
            )
    output = OutputDefinition(
        spec["name"], RelationDesc(tuple(columns), _HIDDEN), (*key, KEY_SLOT_COLUMN), ORDER
    )
    return ObjectLayout(output, len(values), included)
