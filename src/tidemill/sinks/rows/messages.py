"""Keys and values of messages: of upserts, and of changes as Debezium writes them.

A `Changes` has, for each message, the row before and the row after. The value of an upsert is the row after,
and nothing where there is none (a tombstone). A Debezium envelope has both, the kind of the change, and where
it is from; the tombstone behind a deletion is a message of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sinks.rows.avro import NAMESPACE, longs, optional, record_bytes, record_schema, texts
from tidemill.sinks.rows.json import object_bytes
from tidemill.sinks.rows.pieces import constant, joined
from tidemill.types.columns import contiguous
from tidemill.types.kernels import pc
from tidemill.types.model import Column

AVRO, JSON = "avro", "json"
UPSERT, DEBEZIUM = "upsert", "debezium"

_KEY, _VALUE, _ENVELOPE, _SOURCE = "Key", "Value", "Envelope", "Source"
_CONNECTOR = "tidemill"


@dataclass(frozen=True, slots=True)
class Origin:
    """Names of the relation for the `source` of a Debezium envelope."""

    name: str
    database: str
    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Changes:
    """One message each. `before` and `after` are rows of the table (-1: none), `times` the times of the
    changes; `initial`: all are of the snapshot."""

    table: pa.Table
    before: np.ndarray
    after: np.ndarray
    times: np.ndarray
    initial: bool


class RowMessages:
    """The messages of one sink. `key` are the positions of the key's columns. With Avro, `ids` are the
    numbers of the two schemas in the registry."""

    def __init__(
        self,
        columns: Sequence[Column],
        key: Sequence[int],
        form: str,
        envelope: str,
        origin: Origin,
        ids: tuple[int, int] | None = None,
    ) -> None:
        self._columns = list(columns)
        self._key = list(key)
        self._avro = form == AVRO
        self._debezium = envelope == DEBEZIUM
        self._origin = origin
        self._frames = (b"", b"") if ids is None else tuple(b"\x00" + i.to_bytes(4, "big") for i in ids)

    def keys(self, table: pa.Table) -> pa.Array:
        """The key of each row. Rows have one key if and only if these bytes are equal."""
        columns = [_one_zero(contiguous(table.column(i))) for i in self._key]
        of = [self._columns[i] for i in self._key]
        if self._avro:
            return joined(self._frames[0], record_bytes(columns, of))
        return object_bytes(columns, of)

    def values(self, changes: Changes) -> pa.Array:
        """The value of each change; null for a tombstone."""
        encode = record_bytes if self._avro else object_bytes
        rows = encode([changes.table.column(i) for i in range(len(self._columns))], self._columns)
        after = _taken(rows, changes.after)
        if not self._debezium:
            return joined(self._frames[1], after)
        before = _taken(rows, changes.before)
        if self._avro:
            return joined(self._frames[1], optional(before), optional(after), *self._tail_in_avro(changes))
        null = pa.scalar(b"null", pa.binary())
        return joined(
            b'{"before":', pc.fill_null(before, null), b',"after":', pc.fill_null(after, null),
            *self._tail_in_json(changes),
        )  # fmt: skip

    def _tail_in_avro(self, changes: Changes) -> list[pa.Array | bytes]:
        times = longs(changes.times)
        return [self._source(lambda t: texts(pa.array([t])).to_pylist()[0], changes.initial), times,
                _kinds(changes, lambda kind: b"\x02" + kind), b"\x02", times]  # fmt: skip

    def _tail_in_json(self, changes: Changes) -> list[pa.Array | bytes]:
        times = pa.array(changes.times).cast(pa.string()).cast(pa.binary())
        named = zip(_SOURCE_TEXTS, _source_texts(self._origin, changes.initial), strict=True)
        source = json.dumps(dict(named), ensure_ascii=False, separators=(",", ":"))[:-1].encode()
        return [b',"source":' + source + b',"ts_ms":', times, b'},"op":',
                _kinds(changes, lambda kind: b'"' + kind + b'"'), b',"ts_ms":', times, b"}"]  # fmt: skip

    def _source(self, encode: Callable[[str], bytes], initial: bool) -> bytes:
        return b"".join(map(encode, _source_texts(self._origin, initial)))


_SOURCE_TEXTS = ("connector", "name", "snapshot", "db", "schema", "table")


def _source_texts(origin: Origin, initial: bool) -> list[str]:
    snapshot = "true" if initial else "false"
    return [_CONNECTOR, origin.name, snapshot, origin.database, origin.schema, origin.table]


def _kinds(changes: Changes, encode: Callable[[bytes], bytes]) -> pa.Array:
    if changes.initial:
        return constant(encode(b"r"), len(changes.times))
    kinds = np.where(changes.before < 0, 0, np.where(changes.after < 0, 2, 1))
    return pa.array([encode(kind) for kind in (b"c", b"u", b"d")], pa.binary()).take(pa.array(kinds))


def _taken(rows: pa.Array, at: np.ndarray) -> pa.Array:
    return rows.take(pa.array(at, mask=at < 0))


def _one_zero(column: pa.Array) -> pa.Array:
    """Floating point's two zeros are equal, and so are all NaN."""
    if not pa.types.is_floating(column.type):
        return column
    added = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(added), pa.scalar(float("nan"), column.type), added)


def schemas(columns: Sequence[Column], key: Sequence[int], envelope: str) -> tuple[str, str]:
    """The schemas of keys and values, as JSON texts. Raises if a column has no form in Avro."""
    row = record_schema(_VALUE, columns)
    value = row if envelope == UPSERT else _envelope_schema(row)
    return _text(record_schema(_KEY, [columns[i] for i in key])), _text(value)


def _envelope_schema(row: dict[str, Any]) -> dict[str, Any]:
    source = {
        "type": "record",
        "name": _SOURCE,
        "fields": [
            *({"name": name, "type": "string"} for name in _SOURCE_TEXTS),
            {"name": "ts_ms", "type": "long"},
        ],
    }
    fields: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", f"{NAMESPACE}.{_VALUE}"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": _ENVELOPE, "namespace": NAMESPACE, "fields": fields}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
