"""A short notation for the columns of system relations: `name type, ...`."""

from __future__ import annotations

from tidemill.sql.local.kinds import INT2VECTOR, OIDVECTOR
from tidemill.types import model
from tidemill.types.model import SqlType

_PLAIN: dict[str, SqlType] = {
    "oid": model.OID,
    "name": model.NAME,
    "text": model.TEXT,
    "char": model.QCHAR,
    "bool": model.BOOL,
    "int2": model.INT2,
    "int4": model.INT4,
    "int8": model.INT8,
    "float4": model.FLOAT4,
    "float8": model.FLOAT8,
    "uint8": model.UINT8,
    "jsonb": model.JSONB,
    "mz_timestamp": model.MZ_TIMESTAMP,
    "timestamptz": model.TIMESTAMPTZ,
    "interval": model.INTERVAL,
    "int2vector": INT2VECTOR,
    "oidvector": OIDVECTOR,
    "regproc": model.REGPROC,
    "regtype": model.REGTYPE,
}


def columns_of(text: str) -> list[tuple[str, SqlType]]:
    found: list[tuple[str, SqlType]] = []
    for part in text.split(","):
        name, kind = part.split()
        element = _PLAIN[kind.removesuffix("[]")]
        found.append((name, model.array(element) if kind.endswith("[]") else element))
    return found
