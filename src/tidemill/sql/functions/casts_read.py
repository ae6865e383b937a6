"""Casts from text in Python, for types whose PostgreSQL input accepts more forms than Spark's.

They use the same code that reads literals and parameters (`types.wire`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.signature import Builder
from tidemill.sql.functions.tree import Tree
from tidemill.types.model import (
    BYTEA,
    DATE,
    INTERVAL,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Kind,
    SqlType,
)
from tidemill.types.wire.value import parse_literal


def _stored(value: pa.Scalar, t: SqlType) -> Any:
    """A scalar in the form of `rowwise` values."""
    if t.kind is Kind.DATE:
        return value.cast(pa.int32()).as_py()
    if t.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return value.cast(pa.int64()).as_py()
    if t.kind is Kind.INTERVAL:
        parts = value.as_py()
        return parts["months"], parts["days"], parts["micros"]
    return value.as_py()


def _reader(t: SqlType) -> Callable[..., Any]:
    def read(text: str, zone: str = "UTC") -> Any:
        return _stored(parse_literal(text, t, timezone=zone), t)

    return read


_READERS: dict[Kind, Builder] = {
    t.kind: row_function(f"{t.kind.value}_in", (TEXT,), t, _reader(t), zoned=t is TIMESTAMPTZ)
    for t in (DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, UUID, BYTEA)
}


def read_text(value: Tree, target: SqlType) -> Tree | None:
    """The cast's tree; None if Spark reads the same forms as PostgreSQL."""
    build = _READERS.get(target.kind)
    return None if build is None else build([value])
