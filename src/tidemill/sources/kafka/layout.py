"""Layout of a topic: derives the columns of a relation from formats, INCLUDE and ENVELOPE.

Pure. `envelopes.plan` uses this module to compute the layout of an output, when it is created and when it is
opened. Invalid layouts are refused at creation, with the texts that clients match. The same definition gives
the same layout in every version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.decode.record_values import PlainValues, ValueReader
from tidemill.errors import DuplicateObject, SyntaxError_, TidemillError, UndefinedObject
from tidemill.sources.contract import KEY_SLOT_COLUMN, Gauge, OutputDefinition
from tidemill.types.model import (
    BYTEA,
    INT4,
    INT8,
    TEXT,
    TIMESTAMP,
    UINT8,
    Column,
    RelationDesc,
    list_,
    record,
)

# Position of a partition.
OFFSETS = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))

# Prefix of the hidden columns that ORDER BY compares, one for each of its columns.
ORDER_PREFIX = "mz_order"

HEADERS = list_(record(Column("key", TEXT), Column("value", BYTEA)))
INLINE_ERROR = record(Column("description", TEXT))

_METADATA = {
    "partition": INT4,
    "offset": UINT8,
    "timestamp": TIMESTAMP,
    "headers": HEADERS,
    # Of Kinesis, in the place of partition and offset.
    "shard_id": TEXT,
    "sequence_number": TEXT,
}
# Formats of a single value without a name. As a key its column is named `key`.
_NAMELESS = {"json", "text", "bytes"}


@dataclass(frozen=True, slots=True)
class IncludedColumn:
    """One item of INCLUDE. `header` is the header's name for HEADER, which returns it as bytes or text."""

    what: str
    name: str | None = None
    header: str | None = None
    raw: bool = False

    @staticmethod
    def of(item: Mapping[str, Any]) -> IncludedColumn:
        return IncludedColumn(item["what"], item.get("as"), item.get("header"), bool(item.get("bytes")))

    @property
    def column(self) -> Column:
        if self.what == "header":
            return Column(self.name or str(self.header), BYTEA if self.raw else TEXT)
        # Some topics keep no timestamps.
        return Column(self.name or self.what, _METADATA[self.what], nullable=self.what == "timestamp")


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of columns in the rows of an output.

    `key_at` has the position of each column of the decoded key, or of the one record that INCLUDE KEY AS
    makes of them (`key_record`). It is empty if the row has no key. `error_at` is the position of the column
    of VALUE DECODING ERRORS = INLINE. `value_at` has the position of each column of the value (DEBEZIUM: of
    `after`), or None if the key fills it. The columns of `metadata` follow.
    """

    output: OutputDefinition
    envelope: EnvelopeLayout
    key_at: tuple[int, ...]
    key_record: bool
    error_at: int | None
    value_at: tuple[int | None, ...]
    metadata: tuple[IncludedColumn, ...]
    # The columns of ORDER BY: `timestamp`, `offset`. Each has one hidden column.
    order: tuple[str, ...]


class EnvelopeLayout:
    """The meaning of the records of an output. Each kind is one module of `envelopes`; defaults are those of
    UPSERT."""

    # The name in definitions and in the catalog; in SQL it is upper case.
    name: ClassVar[str]
    # True: a record replaces the row of its key. False: each record is a row.
    keyed: ClassVar[bool] = True

    def check(self, spec: Mapping[str, Any], include: Sequence[IncludedColumn]) -> None:
        """Raises an error for invalid combinations that do not depend on the columns."""
        if self.keyed and spec["key"] is None:
            raise SyntaxError_(
                f"ENVELOPE {self.name.upper()} requires that KEY FORMAT be specified",
                hint="Write KEY FORMAT ... VALUE FORMAT ... in place of FORMAT ....",
            )

    def layout(
        self,
        spec: Mapping[str, Any],
        key_columns: Sequence[Column],
        value_columns: Sequence[Column],
        include: Sequence[IncludedColumn],
    ) -> Layout:
        """The columns of the key, the error, the value and the metadata. Raises an error for invalid
        combinations."""
        return plain_layout(self, spec, key_columns, value_columns, include)

    def value_format(self, form: Mapping[str, Any]) -> Mapping[str, Any]:
        """The format that decodes the values."""
        return form

    def bare_keys(self, keys: pa.Array) -> pa.Array:
        """The keys in the form that the key format decodes."""
        return keys

    def values(self, decoder: Decoder, *, json_value: bool) -> ValueReader:
        """The reader of values, for the tasks."""
        return PlainValues(decoder)


def plain_layout(
    envelope: EnvelopeLayout,
    spec: Mapping[str, Any],
    key_columns: Sequence[Column],
    value_columns: Sequence[Column],
    include: Sequence[IncludedColumn],
) -> Layout:
    asked = [item for item in include if item.what == "key"]
    keyed = envelope.keyed
    keys: list[Column] = []
    packed = False
    if keyed or asked:
        alias = asked[0].name if asked else None
        packed = alias is not None and len(key_columns) > 1
        keys = _named_key(spec["key"], key_columns, alias)
    inline = spec["envelope"].get("inline_errors")
    if not keyed:
        # Either may be missing in a record.
        keys = [replace(column, nullable=True) for column in keys]
    # A value may be missing or an error.
    loose = not keyed or inline is not None
    values = [replace(column, nullable=True) if loose else column for column in value_columns]
    errors = [] if inline is None else [Column(inline, INLINE_ERROR)]
    metadata = tuple(item for item in include if item.what != "key")
    columns = [*keys, *errors, *values, *(item.column for item in metadata)]
    first = len(keys) + len(errors)
    order = tuple(spec["envelope"].get("order_by") or ())
    return Layout(
        output=output_from(spec["name"], columns, [column.name for column in keys] if keyed else None, order),
        envelope=envelope,
        key_at=tuple(range(len(keys))),
        key_record=packed,
        error_at=len(keys) if errors else None,
        value_at=tuple(range(first, first + len(values))),
        metadata=metadata,
        order=order,
    )


def output_from(
    name: str, columns: Sequence[Column], key: Sequence[str] | None, order: Sequence[str]
) -> OutputDefinition:
    names = [column.name for column in columns]
    for at, column in enumerate(names):
        if column in names[:at]:
            raise DuplicateObject(
                f'column "{column}" specified more than once',
                detail="The columns are " + ", ".join(names) + ".",
                hint="INCLUDE KEY AS name calls the key's columns something else; "
                "so does AS behind any other item of INCLUDE, and VALUE DECODING ERRORS = (INLINE AS name).",
                sqlstate="42701",
            )
    if key is None:
        return OutputDefinition(name, RelationDesc(tuple(columns)))
    orders = [f"{ORDER_PREFIX}{n}" for n in range(1, len(order) + 1)]
    hidden = [Column(KEY_SLOT_COLUMN, BYTEA), *(Column(column, INT8) for column in orders)]
    return OutputDefinition(
        name, RelationDesc(tuple(columns), tuple(hidden)), (*key, KEY_SLOT_COLUMN), tuple(orders)
    )


def _named_key(form: Mapping[str, Any], columns: Sequence[Column], alias: str | None) -> list[Column]:
    if len(columns) == 1:
        if alias is not None:
            return [replace(columns[0], name=alias)]
        return [replace(columns[0], name="key")] if nameless(form) else list(columns)
    if alias is not None:
        return [Column(alias, record(*columns), nullable=False)]
    return list(columns)


def nameless(form: Mapping[str, Any]) -> bool:
    """Whether the format returns a single value without a name."""
    if form["format"] != "avro":
        return form["format"] in _NAMELESS
    schema = json.loads(form["schema"])
    if isinstance(schema, list):  # a union; of one record and null, it is that record
        branches = [branch for branch in cast("list[Any]", schema) if branch != "null"]
        schema = branches[0] if len(branches) == 1 else None
    return not (isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "record")


def order_of(names: Sequence[str], include: Sequence[Mapping[str, Any]]) -> list[str]:
    """The meanings of the ORDER BY columns (`timestamp`, `offset`), by the names that INCLUDE gives them.
    OFFSET may be named without being included. Raises for invalid columns."""
    items = [IncludedColumn.of(item) for item in include if item["what"] != "key"]
    by_name = {item.column.name: item.what for item in items}
    included = {item.what: item.column.name for item in items}
    missing: TidemillError | None = None
    order: list[str] = []
    for name in names:
        what = by_name.get(name)
        if what is None and name == "offset" and "offset" not in included:
            what = "offset"
        if what is None and name in ("timestamp", "offset"):
            detail = (
                f"{name.upper()} is included as {included[name]}."
                if name in included
                else f"{name.upper()} is not included."
            )
            missing = missing or _not_ordered(name, detail)
        elif what not in ("timestamp", "offset"):
            raise _not_ordered(name, f'"{name}" is {"no included column" if what is None else what.upper()}.')
        if what is not None and what not in order:
            order.append(what)
    if "offset" not in order and "offset" not in names:
        raise SyntaxError_(
            "OFFSET (from `INCLUDE OFFSET`) must be explicitly specified as an order by column",
            detail="ORDER BY has " + ", ".join(names) + ".",
            hint="Offsets decide between records of one timestamp.",
        )
    if missing is not None:
        raise missing
    return order


def _not_ordered(name: str, detail: str) -> UndefinedObject:
    return UndefinedObject(
        "Only `TIMESTAMP` and `OFFSET` (from `INCLUDE TIMESTAMP` and `INCLUDE OFFSET`) "
        "are supported as `ORDER BY` columns",
        detail=detail,
        hint=f'Include it, or take "{name}" out of ORDER BY.',
        sqlstate="42703",
    )
