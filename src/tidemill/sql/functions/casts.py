"""Casts at run time: a Spark tree that converts between the storage forms of two SQL types.

Rounding, ranges and errors are PostgreSQL's. Called by the binder's lowering. `lattice` decides which casts
are allowed where. A cast that PostgreSQL has and Spark cannot do with the same result raises `Unsupported` at
bind time.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import Unsupported
from tidemill.sql.functions import casts_text, casts_time, json
from tidemill.sql.functions.lattice import FLOATS, INTEGERS, SIGNED, STRINGS, UNSIGNED
from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.signature import Builder
from tidemill.sql.functions.tree import (
    Tree,
    add,
    and_,
    bigint,
    call,
    cast,
    cast_to,
    decimal,
    if_,
    integer,
    is_infinite,
    is_null,
    lambda_,
    lambda_pair,
    let,
    lt,
    not_,
    null,
    raise_error,
    string,
    sub,
    variable,
)
from tidemill.sql.scalar import octets
from tidemill.types.arrow import element_type
from tidemill.types.model import BYTEA, INT2, INT4, INT8, Kind, SqlType

# Significant digits that PostgreSQL keeps when a float becomes numeric (DBL_DIG, FLT_DIG), without the one
# before the point.
_FLOAT_DIGITS = {Kind.FLOAT4: 5, Kind.FLOAT8: 14}


def cast_tree(value: Tree, source: SqlType, target: SqlType, *, explicit: bool) -> Tree:
    """`value` of type `source` as `target`. `explicit` matters only for varchar(n) and char(n): an explicit
    cast truncates, an assignment refuses longer text."""
    if source == target:
        return value
    if source.kind is Kind.UNKNOWN:
        return cast_to(value, target)
    if target.kind in STRINGS:
        text = value if source.kind in STRINGS else casts_text.to_text(value, source)
        return casts_text.fit(text, source, target, explicit=explicit)
    if source.kind is Kind.JSONB or target.kind is Kind.JSONB:
        found = json.cast_tree(value, source, target)
        if found is not None:
            return found
    if source.kind in STRINGS:
        return casts_text.from_text(value, target)
    if source.kind is target.kind and source.kind in (Kind.ARRAY, Kind.LIST):
        return _array(value, source, target, explicit)
    if source.kind is target.kind is Kind.MAP:
        inner = cast_tree(variable("e"), element_type(source), element_type(target), explicit=explicit)
        return call("transform_values", value, lambda_pair("k", "e", inner))
    if source.kind is target.kind and source.kind is not Kind.NUMERIC:
        return value
    if Kind.BYTEA in (source.kind, target.kind):
        return _BYTES[source.kind, target.kind]([value])
    build = _number_cast(source, target) or casts_time.cast_between(source.kind, target.kind)
    if build is None:
        raise Unsupported(f"cast from {source} to {target} is not supported")
    return build(value)


def _bytes_casts() -> dict[tuple[Kind, Kind], Builder]:
    """Integers and their bytes, most significant byte first."""
    found: dict[tuple[Kind, Kind], Builder] = {}
    for t, width in ((INT2, 2), (INT4, 4), (INT8, 8)):
        name = t.kind.value

        def read(data: bytes, width: int = width, shown: str = str(t)) -> int:
            return octets.to_int(data, width, shown)

        def write(value: int, width: int = width) -> bytes:
            return value.to_bytes(width, signed=True)

        found[Kind.BYTEA, t.kind] = row_function(f"{name}_of_bytes", (BYTEA,), t, read)
        found[t.kind, Kind.BYTEA] = row_function(f"bytes_of_{name}", (t,), BYTEA, write)
    return found


_BYTES = _bytes_casts()


def _array(value: Tree, source: SqlType, target: SqlType, explicit: bool) -> Tree:
    inner = cast_tree(variable("e"), element_type(source), element_type(target), explicit=explicit)
    return call("transform", value, lambda_("e", inner))


def _number_cast(source: SqlType, target: SqlType) -> Callable[[Tree], Tree] | None:
    s, t = source.kind, target.kind
    if s is Kind.BOOL and t is Kind.INT4:
        return lambda v: cast_to(v, INT4)
    if t is Kind.BOOL and s is Kind.INT4:
        return lambda v: cast(v, "BOOLEAN")
    if t is Kind.MZ_TIMESTAMP and s in INTEGERS | {Kind.NUMERIC}:
        return lambda v: unsigned_check(cast_to(_whole(v, s), INT8), "mz_timestamp")
    if s is Kind.MZ_TIMESTAMP and t in (Kind.INT8, Kind.NUMERIC):
        return lambda v: cast_to(v, target)
    if s in (Kind.INT2, Kind.INT4) and t is Kind.OID:
        return lambda v: call("pmod", cast(v, "BIGINT"), bigint(1 << 32))
    if (s, t) == (Kind.OID, Kind.INT4):
        # The same 32 bits, signed.
        return lambda v: cast(
            sub(call("pmod", add(v, bigint(1 << 31)), bigint(1 << 32)), bigint(1 << 31)), "INT"
        )
    if s is Kind.OID or t is Kind.OID:
        return lambda v: cast_to(v, target) if s in SIGNED | {Kind.OID} else v
    if s in FLOATS and t is Kind.NUMERIC:
        shape = f"%.{_FLOAT_DIGITS[s]}e"

        def written(v: Tree) -> Tree:
            # For NULL, Spark writes the word.
            return if_(is_null(v), null(), cast_to(call("format_string", string(shape), v.copy()), target))

        return lambda v: let(v, written)
    if s in FLOATS and t in SIGNED:
        return lambda v: cast_to(call("rint", v), target)
    if s is Kind.FLOAT8 and t is Kind.FLOAT4:
        return _narrow_float
    if s in INTEGERS | {Kind.NUMERIC} and t in UNSIGNED:
        return lambda v: unsigned(_whole(v, s), t)
    if s is Kind.NUMERIC and t in SIGNED:
        return lambda v: cast_to(_whole(v, s), target)
    if s in INTEGERS and t is Kind.FLOAT4:
        # Spark simplifies CAST(CAST(i AS FLOAT) AS DOUBLE) to CAST(i AS DOUBLE), with digits that a real has
        # lost; it does not simplify a sum.
        return lambda v: add(cast(v, "FLOAT"), cast(integer(0), "FLOAT"))
    if s in INTEGERS | FLOATS | {Kind.NUMERIC} and t in SIGNED | FLOATS | {Kind.NUMERIC}:
        return lambda v: cast_to(v, target)
    return None


def _whole(value: Tree, kind: Kind) -> Tree:
    """A numeric rounded half away from zero (Spark's decimal cast would truncate)."""
    return call("round", value) if kind is Kind.NUMERIC else value


def _narrow_float(value: Tree) -> Tree:
    def guarded(v: Tree) -> Tree:
        narrow = cast(v, "FLOAT")
        overflow = and_(is_infinite(narrow), not_(is_infinite(v.copy())))
        return if_(overflow, raise_error("22003", "value out of range: overflow"), narrow.copy())

    return let(value, guarded)


def unsigned(value: Tree, kind: Kind) -> Tree:
    """An integer as an unsigned integer; raises outside its range. It is shifted into a signed type of the
    same width, whose cast checks the range, and back, so that the value appears only once."""
    if kind is Kind.UINT2:
        shift, narrow, wide = bigint(1 << 15), "SMALLINT", "INT"
        return cast(add(cast(sub(cast(value, "BIGINT"), shift), narrow), shift.copy()), wide)
    if kind is Kind.UINT4:
        shift = bigint(1 << 31)
        return add(cast(sub(cast(value, "BIGINT"), shift), "INT"), shift.copy())
    shift = decimal(str(1 << 63), 20, 0)
    return cast(add(cast(sub(cast(value, "DECIMAL(38,0)"), shift), "BIGINT"), shift.copy()), "DECIMAL(20,0)")


def unsigned_check(value: Tree, name: str) -> Tree:
    """A BIGINT that must not be negative."""
    return let(value, lambda v: if_(lt(v, bigint(0)), raise_error("22003", f"{name} out of range"), v.copy()))
