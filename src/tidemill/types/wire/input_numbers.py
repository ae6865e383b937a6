"""Text input of numbers and booleans: PostgreSQL's input rules and error texts."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue, Unsupported
from tidemill.types.arrow import arrow_type, decimal_shape
from tidemill.types.columns import numbers, spans, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType, type_name
from tidemill.types.wire.columns import BLANKS, InvalidField, decode_rows
from tidemill.types.wire.columns import decode as decode_column

# The range of the integer types. An oid may be written as a negative int4, as in PostgreSQL.
INTEGER_BOUNDS: dict[Kind, tuple[int, int]] = {
    Kind.INT2: (-(2**15), 2**15 - 1),
    Kind.INT4: (-(2**31), 2**31 - 1),
    Kind.INT8: (-(2**63), 2**63 - 1),
    Kind.UINT2: (0, 2**16 - 1),
    Kind.UINT4: (0, 2**32 - 1),
    Kind.UINT8: (0, 2**64 - 1),
    Kind.MZ_TIMESTAMP: (0, 2**63 - 1),
    Kind.OID: (0, 2**32 - 1),
}
KINDS = {*INTEGER_BOUNDS, Kind.FLOAT4, Kind.FLOAT8, Kind.NUMERIC, Kind.BOOL}

_INTEGER = re.compile(
    r"([+-]?)(?:(0[xX](?:_?[0-9a-fA-F])+)|(0[oO](?:_?[0-7])+)|(0[bB](?:_?[01])+)|([0-9](?:_?[0-9])*))",
    re.ASCII,
)
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9](?:_?[0-9])*(?:\.(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9](?:_?[0-9])*)?",
    re.ASCII,
)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_HEX_FLOAT = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?", re.ASCII
)
_FLOAT_WORDS = {"nan": "nan", "inf": "inf", "infinity": "inf"}

# Wide enough that a value is rounded only once, to the stored scale.
_EXACT = Context(prec=1000, rounding=ROUND_HALF_UP, Emax=999_999, Emin=-999_999)
# A numeric with a larger exponent cannot fit into 38 digits. PostgreSQL's limit is 131072 digits.
_MAX_EXPONENT = 131_072
# Numbers with up to this many digits are below 10^20 and fit into decimal(38,18).
_SAFE_NUMERIC_LENGTH = 20


def decode(texts: pa.Array, t: SqlType) -> pa.Array:
    """A column of texts as numbers in storage form."""
    if t.kind is Kind.BOOL:
        return _decode_bool(texts)
    if t.kind is Kind.NUMERIC:
        return _decode_numeric(texts, t)
    if t.kind in (Kind.FLOAT4, Kind.FLOAT8):
        return _decode_float(texts, t)
    return decode_column(
        texts,
        arrow_type(t),
        fast=lambda a: _integers(a, t.kind).cast(arrow_type(t)),
        regular="^[+-]?[0-9]{1,18}$",
        parse=partial(parse_integer, t=t),
    )


def _integers(texts: pa.Array, kind: Kind) -> pa.Array:
    """int64 by Arrow. Refuses texts that Arrow and PostgreSQL read differently (0x, two signs), and values
    out of range."""
    offsets, data = spans(texts)
    used = data[offsets[0] : offsets[-1]]
    if used.size and int(used.max()) > ord("9"):
        raise pa.ArrowInvalid("not plain digits")
    if used.size and bool((used == ord("+")).any()):
        if pc.any(pc.match_substring_regex(texts, r"^\+[^0-9]")).as_py():
            raise pa.ArrowInvalid("two signs")
        texts = pc.ascii_ltrim(texts, "+")
    values = texts.cast(pa.int64())
    low, high = INTEGER_BOUNDS[kind]
    if kind is not Kind.INT8 and values.null_count < len(values):
        found = pc.min_max(values)
        if found["min"].as_py() < low or found["max"].as_py() > high:
            raise pa.ArrowInvalid("out of range")
    return values


def parse_integer(text: str, t: SqlType) -> int:
    """One integer by PostgreSQL's rules: surrounding blanks, a sign, 0x 0o 0b, underscores between digits."""
    body = text.strip(BLANKS)
    match = _INTEGER.match(body)
    if match is not None:
        value = _integer_value(match)
        low, high = INTEGER_BOUNDS[t.kind]
        if t.kind is Kind.OID and -(2**31) <= value < 0:
            value += 2**32
        # Digits are counted while they are read: too many digits are reported before an error after them.
        if not low <= value <= high:
            raise _out_of_range(text, t)
        if match.end() == len(body):
            return value
    raise InvalidValue(f'invalid input syntax for type {type_name(t)}: "{text}"')


def _integer_value(match: re.Match[str]) -> int:
    sign, hexa, octal, binary, digits = match.groups()
    spelt = (hexa or octal or binary or digits).replace("_", "")
    if len(spelt) > 400:  # more than any bound, and more than Python likes to convert
        return -(10**100) if sign == "-" else 10**100
    value = int(spelt, 16 if hexa else 8 if octal else 2 if binary else 10)
    return -value if sign == "-" else value


def _out_of_range(text: str, t: SqlType) -> InvalidValue:
    return InvalidValue(f'value "{text}" is out of range for type {type_name(t)}', sqlstate="22003")


def _decode_float(texts: pa.Array, t: SqlType) -> pa.Array:
    target = arrow_type(t)

    def fast(column: pa.Array) -> pa.Array:
        values = column.cast(target)
        raw = numbers(values, np.float32 if t.kind is Kind.FLOAT4 else np.float64)
        # Arrow rounds an overflow to infinity and an underflow to zero. PostgreSQL refuses both.
        suspect = valid_mask(values) & (np.isinf(raw) | (raw == 0))
        rows = np.flatnonzero(suspect)
        if rows.size:
            chosen = column.take(pa.array(rows))
            harmless = pc.match_substring_regex(chosen, r"^[+-]?0*\.?0*$|^[+-]?0*\.?0*[eE]|[nN]")
            if not pc.all(harmless).as_py():
                raise pa.ArrowInvalid("over- or underflow")
        return values

    regular = r"^[+-]?[0-9]{1,30}(\.[0-9]{1,30})?$"
    return decode_column(texts, target, fast=fast, regular=regular, parse=partial(parse_float, t=t))


def parse_float(text: str, t: SqlType) -> float:
    """One float4 or float8, rounded to its width."""
    body = text.strip(BLANKS)
    unsigned = body.lstrip("+-").lower() if len(body) - len(body.lstrip("+-")) <= 1 else ""
    if unsigned in _FLOAT_WORDS:
        return float(("-" if body.startswith("-") else "") + _FLOAT_WORDS[unsigned])
    match = _HEX_FLOAT.match(body) or _FLOAT.match(body)
    if match is None:
        raise InvalidValue(f'invalid input syntax for type {type_name(t)}: "{text}"')
    spelt = match[0]
    digits = re.split("[eE]", spelt)[0]
    if _HEX_FLOAT.fullmatch(spelt):
        digits = re.split("[pP]", spelt[spelt.lower().index("x") :])[0]
        try:
            spelt = repr(float.fromhex(spelt))
        except OverflowError:
            raise _float_out_of_range(match[0], t) from None
    value = pa.scalar(spelt).cast(arrow_type(t)).as_py()
    # As for integers, a number out of range is reported before an error after it.
    if value in (float("inf"), float("-inf")) or (value == 0 and re.search("[1-9a-fA-F]", digits)):
        raise _float_out_of_range(match[0], t)
    if match.end() != len(body):
        raise InvalidValue(f'invalid input syntax for type {type_name(t)}: "{text}"')
    return value


def _float_out_of_range(text: str, t: SqlType) -> InvalidValue:
    return InvalidValue(f'"{text}" is out of range for type {type_name(t)}', sqlstate="22003")


def _decode_numeric(texts: pa.Array, t: SqlType) -> pa.Array:
    precision, scale = decimal_shape(t)
    target = arrow_type(t)

    def fast(column: pa.Array) -> pa.Array:
        # Arrow's parser overflows silently beyond 38 digits, so it gets only texts that cannot have as many.
        offsets, data = spans(column)
        longest = int(np.diff(offsets).max()) if len(column) else 0
        used = data[offsets[0] : offsets[-1]]
        if longest > _SAFE_NUMERIC_LENGTH or bool((used > ord("9")).any()):
            raise pa.ArrowInvalid("not surely within 38 digits")
        wide = column.cast(pa.decimal128(38, 18))
        if (precision, scale) == (38, 18):
            return wide
        return (
            pc.round(wide, scale, "half_towards_infinity").cast(target) if scale < 18 else wide.cast(target)
        )

    regular = r"^[+-]?[0-9]{1,18}$|^[+-]?[0-9]{1,9}\.[0-9]{1,9}$"
    return decode_column(texts, target, fast=fast, regular=regular, parse=partial(parse_numeric, t=t))


def parse_numeric(text: str, t: SqlType) -> Decimal:
    """One numeric, rounded half away from zero to the type's scale."""
    body = text.strip(BLANKS)
    if _DECIMAL.fullmatch(body):
        try:
            value = Decimal(body.replace("_", ""))
        except InvalidOperation:  # an exponent beyond what decimal counts in
            raise InvalidValue("value overflows numeric format", sqlstate="22003") from None
    elif (match := _INTEGER.fullmatch(body)) is not None:
        digits = (match[2] or match[3] or match[4]).replace("_", "")
        value = Decimal(int(digits, 0)) * (-1 if match[1] == "-" else 1)
    elif body.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise Unsupported(
            f'"{body}" is not supported for type numeric', hint="Use double precision for NaN and infinities."
        )
    else:
        raise InvalidValue(f'invalid input syntax for type numeric: "{text}"')
    return fit_numeric(value, t)


def fit_numeric(value: Decimal, t: SqlType) -> Decimal:
    """The value at the type's scale, or `numeric field overflow`."""
    precision, scale = decimal_shape(t)
    if value and value.adjusted() > _MAX_EXPONENT:
        raise InvalidValue("value overflows numeric format", sqlstate="22003")
    if value and value.adjusted() >= precision:
        raise _overflow(precision, scale)
    if value.adjusted() < -scale - 1:
        return Decimal(0)
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if rounded and rounded.adjusted() >= precision - scale:
        raise _overflow(precision, scale)
    # Numeric has no negative zero.
    return rounded if rounded else Decimal(0)


def _overflow(precision: int, scale: int) -> InvalidValue:
    limit = f"10^{precision - scale}" if precision > scale else "1"
    bound = f"must round to an absolute value less than {limit}"
    detail = f"A field with precision {precision}, scale {scale} {bound}."
    return InvalidValue("numeric field overflow", detail=detail, sqlstate="22003")


def _decode_bool(texts: pa.Array) -> pa.Array:
    """Few spellings in many rows: each distinct one is read once."""
    coded = texts.dictionary_encode()
    spellings = coded.dictionary
    try:
        values = decode_rows(spellings, np.arange(len(spellings)), parse_bool, pa.bool_())
    except InvalidField as error:
        row = int(pc.index(coded.indices, pa.scalar(error.row, coded.indices.type)).as_py())
        raise InvalidField(error, row) from None
    return values.take(coded.indices)


def parse_bool(text: str) -> bool:
    """Any unambiguous prefix of true, false, yes, no; on, off; 1, 0."""
    word = text.strip(BLANKS).lower()
    if word:
        if "true".startswith(word) or "yes".startswith(word) or word in ("on", "1"):
            return True
        if "false".startswith(word) or "no".startswith(word) or word in ("off", "of", "0"):
            return False
    raise InvalidValue(f'invalid input syntax for type boolean: "{text}"')
