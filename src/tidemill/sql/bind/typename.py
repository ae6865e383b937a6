"""Type names in casts: sqlglot's type nodes as SQL types."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import TidemillError, Unsupported
from tidemill.sql.bind.errors import position_of
from tidemill.types import model
from tidemill.types.arrow import NUMERIC_PRECISION
from tidemill.types.model import Kind, SqlType
from tidemill.types.parse_name import no_such_type

D = exp.DType

_PLAIN: dict[exp.DType, SqlType] = {
    D.BOOLEAN: model.BOOL,
    D.SMALLINT: model.INT2,
    D.INT: model.INT4,
    D.BIGINT: model.INT8,
    D.FLOAT: model.FLOAT4,
    D.DOUBLE: model.FLOAT8,
    D.TEXT: model.TEXT,
    D.VARCHAR: model.VARCHAR,
    D.BPCHAR: SqlType(Kind.CHAR),
    D.CHAR: model.CHAR,
    D.NAME: model.NAME,
    D.VARBINARY: model.BYTEA,
    D.DATE: model.DATE,
    D.TIME: model.TIME,
    D.TIMESTAMP: model.TIMESTAMP,
    D.TIMESTAMPTZ: model.TIMESTAMPTZ,
    D.INTERVAL: model.INTERVAL,
    D.UUID: model.UUID,
    D.JSONB: model.JSONB,
    D.DECIMAL: model.NUMERIC,
}
# Names that only PostgreSQL or Tidemill has, and pg_catalog's own names.
_BY_NAME: dict[str, SqlType] = {
    t.kind.value: t
    for t in (
        *(model.BOOL, model.INT2, model.INT4, model.INT8, model.UINT2, model.UINT4, model.UINT8),
        *(model.FLOAT4, model.FLOAT8, model.NUMERIC, model.TEXT, model.VARCHAR, model.BYTEA, model.DATE),
        *(model.TIME, model.TIMESTAMP, model.TIMESTAMPTZ, model.INTERVAL, model.UUID, model.JSONB),
        *(model.MZ_TIMESTAMP, model.OID, model.NAME, SqlType(Kind.CHAR)),
    )
}
# PostgreSQL also refuses a longer char(n) or varchar(n).
_MAX_LENGTH = 10_485_760


def sql_type(node: exp.Expr) -> SqlType:
    """The type of the node. Raises 42704 if it does not exist."""
    if not isinstance(node, exp.DataType):
        return _named(node.name.lower(), node)
    if isinstance(node.this, str):
        # sqlglot's names for oid and the types of OIDs.
        return _named(node.this.lower(), node)
    kind: exp.DType = node.this
    if kind is D.ARRAY:
        inner = sql_type(node.expressions[0])
        # PostgreSQL does not distinguish dimensions: int[][] is int[].
        return inner if inner.kind is Kind.ARRAY else model.array(inner)
    if kind is D.LIST:
        return model.list_(sql_type(node.expressions[0]))
    if kind is D.MAP:
        if sql_type(node.expressions[0]) != model.TEXT:
            raise Unsupported("a map whose keys are not text is not supported", position=position_of(node))
        return model.map_(sql_type(node.expressions[1]))
    if kind is D.USERDEFINED:
        named = node.args.get("kind")
        return _named(named.name if isinstance(named, exp.Expr) else str(named), node)
    found = _PLAIN.get(kind)
    if found is None:
        raise Unsupported(f"type {node.sql('postgres').lower()} is not supported", position=position_of(node))
    modifiers = [int(p.this.name) for p in node.expressions]
    return _modified(found, modifiers, node) if modifiers else found


def written_name(node: exp.Expr) -> str:
    """The written name of a type for which sqlglot has no class, without its schema."""
    if isinstance(node.this, str):
        return node.this.lower()
    if isinstance(node, exp.DataType):
        named = node.args.get("kind")
        if node.this is not exp.DType.USERDEFINED or named is None:
            return ""
        if isinstance(named, exp.Dot):
            return named.expression.name
        return named.name if isinstance(named, exp.Expr) else str(named).lower()
    return node.name.lower()


def named_type(name: str) -> SqlType | None:
    """The type of this name in pg_catalog, if it exists."""
    return _BY_NAME.get(name)


def _named(name: str, node: exp.Expr) -> SqlType:
    found = _BY_NAME.get(name)
    if found is None:
        error = no_such_type(name)
        error.position = position_of(node)
        raise error
    return found


def _modified(t: SqlType, modifiers: list[int], node: exp.Expr) -> SqlType:
    where = position_of(node)
    if t.kind is Kind.NUMERIC:
        precision, scale = modifiers[0], modifiers[1] if len(modifiers) > 1 else 0
        if not 1 <= precision <= NUMERIC_PRECISION:
            raise TidemillError(
                f"NUMERIC precision {precision} must be between 1 and {NUMERIC_PRECISION}",
                sqlstate="22023",
                position=where,
            )
        if not 0 <= scale <= precision:
            raise TidemillError(
                f"NUMERIC scale {scale} must be between 0 and precision {precision}",
                sqlstate="22023",
                position=where,
            )
        return model.numeric(precision, scale)
    if t.kind in (Kind.VARCHAR, Kind.CHAR):
        if not 1 <= modifiers[0] <= _MAX_LENGTH:
            raise TidemillError(
                f"length for type {'varchar' if t.kind is Kind.VARCHAR else 'char'} must be at least 1",
                sqlstate="22023",
                position=where,
            )
        return SqlType(t.kind, length=modifiers[0])
    if t.kind is Kind.FLOAT8 and 1 <= modifiers[0] <= 53:
        return model.FLOAT4 if modifiers[0] <= 24 else t
    raise Unsupported(f"precision of type {t} is not supported", position=where)
