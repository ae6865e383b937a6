"""Which columns a topic gives: from formats, INCLUDE and ENVELOPE to a relation.

Pure. Called by the engine when a source or table is created (here what cannot be is refused, in the words
that clients match) and when it is opened. The same definition gives the same layout in every version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

from tidemill.decode.debezium.avro_changes import MISSING_AFTER
from tidemill.errors import DatatypeMismatch, DuplicateObject, SyntaxError_, TidemillError, UndefinedObject
from tidemill.sources.contract import KEY_SLOT_COLUMN, Gauge, Output
from tidemill.types.model import (
    BYTEA,
    INT4,
    INT8,
    TEXT,
    TIMESTAMP,
    UINT8,
    Column,
    Kind,
    RelationDesc,
    list_,
    record,
)

# How partitions count.
OFFSETS = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))

# Of the hidden columns that ORDER BY compares, one for each of its own.
ORDER_PREFIX = "mz_order"

HEADERS = list_(record(Column("key", TEXT), Column("value", BYTEA)))
INLINE_ERROR = record(Column("description", TEXT))

_METADATA = {"partition": INT4, "offset": UINT8, "timestamp": TIMESTAMP, "headers": HEADERS}
# Formats of one value without a name; in place of a key it is called `key`.
_NAMELESS = {"json", "text", "bytes"}


class Envelope(Enum):
    NONE = "none"
    UPSERT = "upsert"
    DEBEZIUM_UPSERT = "debezium upsert"
    MATERIALIZE = "materialize"


@dataclass(frozen=True, slots=True)
class Include:
    """One item of INCLUDE. `header` is the name of the header that HEADER takes, as bytes or as text."""

    what: str
    name: str | None = None
    header: str | None = None
    raw: bool = False

    @staticmethod
    def of(item: Mapping[str, Any]) -> Include:
        return Include(item["what"], item.get("as"), item.get("header"), bool(item.get("bytes")))

    @property
    def column(self) -> Column:
        if self.what == "header":
            return Column(self.name or str(self.header), BYTEA if self.raw else TEXT)
        # A topic may be one of those that keep no timestamps.
        return Column(self.name or self.what, _METADATA[self.what], nullable=self.what == "timestamp")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of an output are put together.

    `key_at` has a position in the row for each column of the key: of the decoder's, or of the one record that
    INCLUDE KEY AS made of them (`key_record`); empty where the row has no key. `error_at` is the column of
    VALUE DECODING ERRORS = INLINE. `value_at` has a position for each column of the value (DEBEZIUM: of
    `after`); None where the key fills it. Behind them come `metadata`.
    """

    output: Output
    envelope: Envelope
    key_at: tuple[int, ...]
    key_record: bool
    error_at: int | None
    value_at: tuple[int | None, ...]
    metadata: tuple[Include, ...]
    # Of ORDER BY: `timestamp`, `offset`; one hidden column each.
    order: tuple[str, ...]


def plan(
    spec: Mapping[str, Any], key_columns: Sequence[Column] | None, value_columns: Sequence[Column]
) -> Layout:
    """The layout of an output, as the definition describes it (`name`, `key`, `value`, `include`,
    `envelope`); the columns are those of its decoders. Raises what is wrong with it."""
    include = [Include.of(item) for item in spec.get("include") or ()]
    envelope = Envelope(spec["envelope"]["kind"])
    _check(spec, include, envelope)
    if envelope is Envelope.DEBEZIUM_UPSERT and spec["value"]["format"] == "avro":
        return _debezium(spec, key_columns or (), value_columns, include)
    return _plain(spec, key_columns or (), value_columns, include, envelope)


def _plain(
    spec: Mapping[str, Any],
    key_columns: Sequence[Column],
    value_columns: Sequence[Column],
    include: Sequence[Include],
    envelope: Envelope,
) -> Layout:
    asked = [item for item in include if item.what == "key"]
    keyed = envelope is not Envelope.NONE
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
    # A value may be missing, or have become an error.
    loose = not keyed or inline is not None
    values = [replace(column, nullable=True) if loose else column for column in value_columns]
    errors = [] if inline is None else [Column(inline, INLINE_ERROR)]
    metadata = tuple(item for item in include if item.what != "key")
    columns = [*keys, *errors, *values, *(item.column for item in metadata)]
    first = len(keys) + len(errors)
    order = tuple(spec["envelope"].get("order_by") or ())
    return Layout(
        output=_output(spec["name"], columns, [column.name for column in keys] if keyed else None, order),
        envelope=envelope,
        key_at=tuple(range(len(keys))),
        key_record=packed,
        error_at=len(keys) if errors else None,
        value_at=tuple(range(first, first + len(values))),
        metadata=metadata,
        order=order,
    )


def _debezium(
    spec: Mapping[str, Any],
    key_columns: Sequence[Column],
    value_columns: Sequence[Column],
    include: Sequence[Include],
) -> Layout:
    """The fields of `after`; the key's columns are among them, in any order."""
    after = next((column for column in value_columns if column.name == "after"), None)
    if after is None or after.type.kind is not Kind.RECORD:
        raise DatatypeMismatch(
            MISSING_AFTER,
            hint="ENVELOPE DEBEZIUM UPSERT reads what Debezium writes without the transformation "
            "ExtractNewRecordState. For its result there is ENVELOPE UPSERT.",
        )
    values = list(after.type.fields)
    names = [column.name for column in values]
    for column in key_columns:
        if column.name not in names:
            raise UndefinedObject(f"Value schema missing primary key column: {column.name}", sqlstate="42703")
        found = values[names.index(column.name)].type
        if found != column.type:
            raise DatatypeMismatch(
                f'column "{column.name}" is {column.type} in the key and {found} in the value',
                hint="Both schemas must be of one table at one time.",
            )
    columns = [*values, *(item.column for item in include)]
    key_at = tuple(names.index(column.name) for column in key_columns)
    return Layout(
        output=_output(spec["name"], columns, [column.name for column in key_columns], ()),
        envelope=Envelope.DEBEZIUM_UPSERT,
        key_at=key_at,
        key_record=False,
        error_at=None,
        value_at=tuple(None if at in key_at else at for at in range(len(values))),
        metadata=tuple(include),
        order=(),
    )


def _output(name: str, columns: Sequence[Column], key: Sequence[str] | None, order: Sequence[str]) -> Output:
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
        return Output(name, RelationDesc(tuple(columns)))
    orders = [f"{ORDER_PREFIX}{n}" for n in range(1, len(order) + 1)]
    hidden = [Column(KEY_SLOT_COLUMN, BYTEA), *(Column(column, INT8) for column in orders)]
    return Output(name, RelationDesc(tuple(columns), tuple(hidden)), (*key, KEY_SLOT_COLUMN), tuple(orders))


def _named_key(form: Mapping[str, Any], columns: Sequence[Column], alias: str | None) -> list[Column]:
    if len(columns) == 1:
        if alias is not None:
            return [replace(columns[0], name=alias)]
        return [replace(columns[0], name="key")] if nameless(form) else list(columns)
    if alias is not None:
        return [Column(alias, record(*columns), nullable=False)]
    return list(columns)


def nameless(form: Mapping[str, Any]) -> bool:
    """Whether what the format gives is one value without a name of its own."""
    if form["format"] != "avro":
        return form["format"] in _NAMELESS
    schema = json.loads(form["schema"])
    if isinstance(schema, list):  # a union; of one record and null, it is that record
        branches = [branch for branch in cast("list[Any]", schema) if branch != "null"]
        schema = branches[0] if len(branches) == 1 else None
    return not (isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "record")


def _check(spec: Mapping[str, Any], include: Sequence[Include], envelope: Envelope) -> None:
    """What does not go together, whatever the columns are."""
    asked = any(item.what == "key" for item in include)
    if envelope is Envelope.DEBEZIUM_UPSERT and spec["value"]["format"] not in ("avro", "json"):
        raise SyntaxError_(
            "ENVELOPE DEBEZIUM requires that VALUE FORMAT is set to AVRO",
            hint="VALUE FORMAT JSON will do as well.",
        )
    if envelope is not Envelope.NONE and spec["key"] is None:
        name = envelope.value.upper()
        raise SyntaxError_(
            f"ENVELOPE {name} requires that KEY FORMAT be specified",
            hint="Write KEY FORMAT ... VALUE FORMAT ... in place of FORMAT ....",
        )
    if envelope is Envelope.DEBEZIUM_UPSERT and asked:
        raise SyntaxError_("Cannot use INCLUDE KEY with ENVELOPE DEBEZIUM: Debezium values include all keys.")
    if asked and spec["key"] is None:
        raise SyntaxError_("INCLUDE KEY requires specifying KEY FORMAT .. VALUE FORMAT, got bare FORMAT")


def order_of(names: Sequence[str], include: Sequence[Mapping[str, Any]]) -> list[str]:
    """What ORDER BY's columns are (`timestamp`, `offset`), by the names that INCLUDE gives them. OFFSET may
    be named without being included. Raises what is wrong with them."""
    items = [Include.of(item) for item in include if item["what"] != "key"]
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
