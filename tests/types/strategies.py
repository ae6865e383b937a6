"""Values of every SQL type for hypothesis, in storage form (what pyarrow takes for `arrow_type(t)`)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tidemill.types import model
from tidemill.types.arrow import decimal_shape, element_type
from tidemill.types.json import canonical_json
from tidemill.types.model import Column, Kind, SqlType
from tidemill.types.names import physical_names_of
from tidemill.types.wire.calendar import FIRST_DAY, FIRST_TIMESTAMP, LAST_DAY, LAST_TIMESTAMP

SCALARS: list[SqlType] = [
    model.BOOL,
    model.INT2,
    model.INT4,
    model.INT8,
    model.UINT2,
    model.UINT4,
    model.UINT8,
    model.FLOAT4,
    model.FLOAT8,
    model.NUMERIC,
    model.numeric(10, 2),
    model.numeric(38, 38),
    model.numeric(38, 0),
    model.numeric(18, 7),
    model.TEXT,
    model.VARCHAR,
    model.varchar(7),
    model.char(5),
    model.BYTEA,
    model.DATE,
    model.TIME,
    model.TIMESTAMP,
    model.TIMESTAMPTZ,
    model.INTERVAL,
    model.UUID,
    model.JSONB,
    model.MZ_TIMESTAMP,
    model.OID,
    model.NAME,
]
NESTED: list[SqlType] = [
    model.array(model.INT4),
    model.array(model.TEXT),
    model.array(model.numeric(10, 2)),
    model.array(model.TIMESTAMPTZ),
    model.list_(model.FLOAT8),
    model.list_(model.list_(model.TEXT)),
    model.list_(model.map_(model.list_(model.INT8))),
    model.map_(model.TEXT),
    model.map_(model.map_(model.BOOL)),
    model.record(Column("a", model.INT4), Column("b c", model.TEXT), Column("B c", model.INTERVAL)),
    model.list_(model.record(Column("x", model.JSONB), Column("y", model.array(model.TEXT)))),
    model.map_(model.record(Column("x", model.list_(model.UUID)))),
]
TYPES = SCALARS + NESTED

# PostgreSQL has no zero character in texts, and UTF-8 no lone surrogates.
_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_special = st.sampled_from(
    ["", " ", "NULL", "null", '"', "\\", "{", "}", ",", "=>", "a b", "(", "\t\n\v", "é漢🙂"]
)
texts = st.one_of(_texts, _special)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def values(t: SqlType) -> st.SearchStrategy[Any]:
    """Values of the type that are not null at the top; within, nulls come and go."""
    plain: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.BOOL: st.booleans(),
        Kind.INT2: _integers(16),
        Kind.INT4: _integers(32),
        Kind.INT8: _integers(64),
        Kind.UINT2: _integers(16, signed=False),
        Kind.UINT4: _integers(32, signed=False),
        Kind.UINT8: _integers(64, signed=False).map(Decimal),
        Kind.FLOAT4: st.floats(width=32),
        Kind.FLOAT8: st.floats(),
        Kind.NAME: texts,
        Kind.TEXT: texts,
        Kind.BYTEA: st.binary(max_size=80),
        Kind.DATE: st.integers(FIRST_DAY, LAST_DAY) | st.sampled_from([2**31 - 1, -(2**31)]),
        Kind.TIME: st.integers(0, 86_400_000_000),
        Kind.TIMESTAMP: st.integers(FIRST_TIMESTAMP, LAST_TIMESTAMP) | st.sampled_from([2**63 - 1, -(2**63)]),
        Kind.TIMESTAMPTZ: st.integers(FIRST_TIMESTAMP, LAST_TIMESTAMP),
        Kind.INTERVAL: st.fixed_dictionaries(
            {"months": _integers(32), "days": _integers(32), "micros": _integers(64)}
        ),
        Kind.UUID: st.binary(min_size=16, max_size=16),
        Kind.JSONB: _json.map(lambda v: canonical_json(_dumps(v))),
        Kind.MZ_TIMESTAMP: st.integers(0, 2**63 - 1),
        Kind.OID: _integers(32, signed=False),
    }
    if t.kind in plain:
        return plain[t.kind]
    if t.kind is Kind.VARCHAR:
        return texts.map(lambda s: s[: t.length])
    if t.kind is Kind.CHAR:
        return texts.map(lambda s: s[: t.length].ljust(t.length or 0))
    if t.kind is Kind.NUMERIC:
        precision, scale = decimal_shape(t)
        return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: _decimal(n, scale))
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        return st.fixed_dictionaries({n: nullable(c.type) for n, c in zip(names, t.fields, strict=True)})
    inner = nullable(element_type(t))
    if t.kind is Kind.MAP:
        return st.dictionaries(texts, inner, max_size=4).map(lambda d: sorted(d.items(), key=_key))
    return st.lists(inner, max_size=4)


def _decimal(unscaled: int, scale: int) -> Decimal:
    """Exact, whatever the context's precision."""
    sign, digits = (1 if unscaled < 0 else 0), tuple(int(d) for d in str(abs(unscaled)))
    return Decimal((sign if unscaled else 0, digits, -scale))


def _key(entry: tuple[str, Any]) -> bytes:
    return entry[0].encode()


def _dumps(value: Any) -> str:
    import json

    return json.dumps(value)


def nullable(t: SqlType) -> st.SearchStrategy[Any]:
    return st.none() | values(t)


def columns(t: SqlType, *, max_size: int = 8) -> st.SearchStrategy[list[Any]]:
    return st.lists(nullable(t), max_size=max_size)
