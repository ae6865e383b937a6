"""ENVELOPE DEBEZIUM UPSERT: the `after` of a Debezium change is the row of its key.

In Avro the columns are the fields of `after`. JSON has no schema, and the row is one jsonb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.avro_changes import MISSING_AFTER, AvroChanges
from tidemill.decode.debezium.json_changes import JsonChanges, bare_keys
from tidemill.decode.debezium.narrow_schema import Wanted, narrowed
from tidemill.decode.record_values import ValueReader
from tidemill.errors import DatatypeMismatch, SyntaxError_, UndefinedObject
from tidemill.sources.kafka.layout import EnvelopeLayout, IncludedColumn, Layout, output_from
from tidemill.types.model import Column, Kind


class DebeziumUpsertLayout(EnvelopeLayout):
    name: ClassVar[str] = "debezium upsert"
    # The fields of a change that are read.
    wanted: ClassVar[Wanted] = {"after": None, "op": None}

    def check(self, spec: Mapping[str, Any], include: Sequence[IncludedColumn]) -> None:
        if spec["value"]["format"] not in ("avro", "json"):
            raise SyntaxError_(
                "ENVELOPE DEBEZIUM requires that VALUE FORMAT is set to AVRO",
                hint="VALUE FORMAT JSON will do as well.",
            )
        super().check(spec, include)
        if any(item.what == "key" for item in include):
            raise SyntaxError_(
                "Cannot use INCLUDE KEY with ENVELOPE DEBEZIUM: Debezium values include all keys.",
                hint="Leave INCLUDE KEY out: the columns of the key are there.",
            )

    def value_format(self, form: Mapping[str, Any]) -> Mapping[str, Any]:
        return narrowed(form, self.wanted)

    def bare_keys(self, keys: pa.Array) -> pa.Array:
        return bare_keys(keys)

    def values(self, decoder: Decoder, *, json_value: bool) -> ValueReader:
        return JsonChanges(decoder) if json_value else AvroChanges(decoder)

    def layout(
        self,
        spec: Mapping[str, Any],
        key_columns: Sequence[Column],
        value_columns: Sequence[Column],
        include: Sequence[IncludedColumn],
    ) -> Layout:
        """The fields of `after`; the key's columns are among them, in any order."""
        if spec["value"]["format"] != "avro":
            return super().layout(spec, key_columns, value_columns, include)
        after = next((column for column in value_columns if column.name == "after"), None)
        if after is None or after.type.kind is not Kind.RECORD:
            raise DatatypeMismatch(
                MISSING_AFTER,
                hint=f"ENVELOPE {self.name.upper()} reads what Debezium writes without the transformation "
                "ExtractNewRecordState. For its result there is ENVELOPE UPSERT.",
            )
        values = list(after.type.fields)
        names = [column.name for column in values]
        for column in key_columns:
            if column.name not in names:
                missing = f"Value schema missing primary key column: {column.name}"
                raise UndefinedObject(missing, sqlstate="42703")
            found = values[names.index(column.name)].type
            if found != column.type:
                raise DatatypeMismatch(
                    f'column "{column.name}" is {column.type} in the key and {found} in the value',
                    hint="Both schemas must be of one table at one time.",
                )
        columns = [*values, *(item.column for item in include)]
        key_at = tuple(names.index(column.name) for column in key_columns)
        return Layout(
            output=output_from(spec["name"], columns, [column.name for column in key_columns], ()),
            envelope=self,
            key_at=key_at,
            key_record=False,
            error_at=None,
            value_at=tuple(None if at in key_at else at for at in range(len(values))),
            metadata=tuple(include),
            order=(),
        )
