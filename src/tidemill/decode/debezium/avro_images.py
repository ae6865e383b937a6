"""Debezium changes in Avro, with `before`, `after`, `op` and `source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.avro_changes import placeholders
from tidemill.decode.debezium.images import DELETE, INSERT, UPDATE, Images, letters
from tidemill.decode.debezium.positions import CONNECTORS
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Column
from tidemill.types.nested import struct_parts

_WITH_PLACEHOLDERS = [name for name, connector in CONNECTORS.items() if connector.placeholders]


@dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of the record `source`."""

    columns: Mapping[str, pa.Array]
    count: int

    def text(self, name: str) -> pa.Array:
        found = self.columns.get(name)
        return (
            found
            if found is not None and pa.types.is_string(found.type)
            else pa.nulls(self.count, pa.string())
        )

    def number(self, name: str) -> pa.Array:
        found = self.columns.get(name)
        if found is None or not pa.types.is_integer(found.type):
            return pa.nulls(self.count, pa.int64())
        return found.cast(pa.int64())


class AvroImages:
    """Values as records; the layout has seen to their fields. `key` are the columns of the key."""

    def __init__(self, decoder: Decoder, key: Sequence[Column]) -> None:
        self._decoder = decoder
        names = [column.name for column in decoder.columns]
        self._before, self._after, self._op, self._source = map(
            names.index, ("before", "after", "op", "source")
        )
        row = decoder.columns[self._after].type.fields
        self._types = [field.type for field in row]
        self._key_at = [[field.name for field in row].index(column.name) for column in key]
        self._fields = [field.name for field in decoder.columns[self._source].type.fields]

    def read(self, values: pa.Array, raw_keys: pa.Array, keys: Sequence[pa.Array]) -> Images:
        decoded = self._decoder.decode(values)
        before, after = decoded.columns[self._before], decoded.columns[self._after]
        had, has = valid_mask(before), valid_mask(after)
        old, new = struct_parts(before), struct_parts(after)
        parts = struct_parts(decoded.columns[self._source])
        source = RecordFields(dict(zip(self._fields, parts, strict=True)), len(values))
        op = letters(decoded.columns[self._op])
        new, unfilled = self._filled(old, new, had, op, source)
        foreign = np.zeros(len(values), np.bool_)
        for at, key in zip(self._key_at, keys, strict=True):
            foreign |= (had & _differ(old[at], key)) | (has & _differ(new[at], key))
        return Images(op, old, new, had, has, source, unfilled, foreign, decoded.errors)

    def _filled(
        self, old: list[pa.Array], new: list[pa.Array], had: np.ndarray, op: np.ndarray, source: RecordFields
    ) -> tuple[list[pa.Array], np.ndarray]:
        """The new rows with the values of the old ones in place of placeholders, and which rows lack some."""
        unfilled = np.zeros(len(op), np.bool_)
        left_out, unknown = placeholders(new, self._types), placeholders(old, self._types)
        if left_out is None and unknown is None:
            return new, unfilled
        said = pc.is_in(source.text("connector"), pa.array(_WITH_PLACEHOLDERS))
        # A snapshot reads the values: what looks like a placeholder is one of them.
        logged = said.to_numpy(zero_copy_only=False) & np.isin(op, [INSERT, UPDATE, DELETE])
        for mark in (unknown or {}).values():
            unfilled |= mark & logged
        columns = list(new)
        for at, mark in (left_out or {}).items():
            missing = mark & logged
            unfilled |= missing & ~had
            columns[at] = pc.if_else(pa.array(missing), old[at], columns[at])
        return columns, unfilled


def _differ(column: pa.Array, other: pa.Array) -> np.ndarray:
    """Where two columns of a key differ. Where `other` has no value there is nothing to compare."""
    same = pc.fill_null(pc.equal(column, other), False).to_numpy(zero_copy_only=False)
    return ~same & valid_mask(other)
