"""Conversion of values between types, including text input, text output and comparison keys.

`to_type` is the coercion that the grammar implies (operands, results of CASE, arguments); `explicit` is a
written cast. Values are Python's: int for integers and OIDs, str, bool, Decimal, list for arrays, datetime;
JSON is its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tidemill.errors import InvalidValue, TidemillError
from tidemill.sql.functions.lattice import base
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.kinds import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    PLAIN,
    STRINGS,
    Category,
    Reg,
    Type,
    array_element,
    category,
    is_vector,
    kind,
)
from tidemill.sql.local.model import NotLocal, Runtime, Typed
from tidemill.types import model
from tidemill.types.arrow import element_type
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire import parse_literal

Convert = Callable[[Any, Runtime], Any]
# The bytes that PostgreSQL keeps of a name.
NAME_BYTES = 63


def constant(value: Any, t: Type) -> Typed:
    return Typed(t, lambda e, rt: value)


def unknown(text: str | None) -> Typed:
    """A literal without a type; its context decides the type."""
    return Typed(model.UNKNOWN, lambda e, rt: text, literal=text, untyped=True)


def to_type(ctx: LocalContext, value: Typed, target: Type) -> Typed:
    """The value as an operand or result of type `target`."""
    if value.param is not None and _open(value):
        return _decided(ctx, value, target)
    if value.type == target:
        return value
    if value.untyped:
        return _read(ctx, value.literal, target)
    if category(value.type) is not category(target):
        raise NotLocal(f"no coercion from {value.type} to {target}")
    return explicit(ctx, value, target)


def _decided(ctx: LocalContext, value: Typed, target: Type) -> Typed:
    """A parameter takes the type of its first use. Values of types such as regclass are sent as text."""
    assert value.param is not None
    given = model.TEXT if isinstance(target, Reg) else target
    ctx.params[value.param - 1] = given
    return explicit(ctx, Typed(given, value.run), target)


def _read(ctx: LocalContext, text: str | None, target: Type) -> Typed:
    if text is None:
        return constant(None, target)
    if isinstance(target, Reg):
        return Typed(target, lambda e, rt: rt.facts.reg_input(target, text))
    if target.kind in STRINGS:
        return constant(_cut(text, target), target)
    if not _readable(target):
        raise NotLocal(f"no literal of {target}")
    return constant(_value(text, target, ctx.session.time_zone), target)


def _value(text: str, target: SqlType, zone: str) -> Any:
    """A literal's value, if Python can represent it: Python's calendar ends before PostgreSQL's, and has no
    infinity.
    """
    read = parse_literal(text, target, timezone=zone)
    try:
        return read.as_py()
    except (OverflowError, ValueError):
        raise NotLocal(f"{text} has no value of Python's") from None


def explicit(ctx: LocalContext, value: Typed, target: Type) -> Typed:
    """CAST(value AS target)."""
    if value.untyped or _open(value):
        return to_type(ctx, value, target)
    convert = converter(ctx, value.type, target)
    if convert is None:
        return Typed(target, value.run, value.refs, column=value.column)
    run = value.run

    def cast(e: list[Any], rt: Runtime) -> Any:
        v = run(e, rt)
        return None if v is None else convert(v, rt)

    return Typed(target, cast, value.refs)


def converter(ctx: LocalContext, source: Type, target: Type) -> Convert | None:
    """The conversion of a value that is not NULL to `target`; None if none is needed."""
    if source == target:
        return None
    if isinstance(target, Reg):
        if category(source) is Category.STRING:
            return lambda v, rt: rt.facts.reg_input(target, v)
        if kind(source) in INTEGERS:
            return None
    elif target.kind is Kind.QCHAR and kind(source) is Kind.INT4:
        return lambda v, rt: _one_byte(v)
    elif target.kind is Kind.QCHAR and category(source) is not Category.STRING:
        raise TidemillError(f'cannot cast type {source} to "char"', sqlstate="42846")
    elif target.kind is Kind.INT4 and kind(source) is Kind.QCHAR:
        return lambda v, rt: _byte_of(v)
    elif target.kind in STRINGS:
        text = writer(source)
        if target.kind in (Kind.TEXT, Kind.VARCHAR) and target.length is None:
            return text
        return lambda v, rt: _cut(v if text is None else text(v, rt), target)
    elif category(source) is Category.STRING:
        if not _readable(target):
            raise NotLocal(f"no cast from text to {target}")
        zone = ctx.session.time_zone
        return lambda v, rt: _value(v, target, zone)
    elif target.kind in INTEGERS and kind(source) in NUMBERS:
        return _integer(target, kind(source))
    elif target.kind is Kind.INT4 and kind(source) is Kind.BOOL:
        return lambda v, rt: int(v)
    elif target.kind is Kind.NUMERIC and target.precision is None and kind(source) in INTEGERS:
        return lambda v, rt: Decimal(v)
    elif target.kind in FLOATS and kind(source) in NUMBERS | FLOATS:
        if target.kind is Kind.FLOAT4 and kind(source) is not Kind.FLOAT4:
            raise NotLocal("a narrower float")
        return lambda v, rt: float(v)
    elif target.kind is Kind.ARRAY and isinstance(source, SqlType) and source.kind is Kind.ARRAY:
        inner = converter(ctx, array_element(source), array_element(target))
        if inner is None:
            return None
        return lambda v, rt: [None if x is None else inner(x, rt) for x in v]
    raise NotLocal(f"no cast from {source} to {target}")


def _readable(t: SqlType) -> bool:
    """Whether its values are Python's own, as `parse_literal` returns them."""
    inner = element_type(t) if t.kind is Kind.ARRAY else t
    return inner.kind in PLAIN | STRINGS | NUMBERS | FLOATS or inner.kind is Kind.JSONB


_BOUNDS = {
    Kind.INT2: (-(1 << 15), (1 << 15) - 1, "smallint"),
    Kind.INT4: (-(1 << 31), (1 << 31) - 1, "integer"),
    Kind.INT8: (-(1 << 63), (1 << 63) - 1, "bigint"),
    Kind.OID: (0, (1 << 32) - 1, "OID"),
}


def _integer(target: SqlType, source: Kind) -> Convert | None:
    bounds = _BOUNDS.get(target.kind)
    if bounds is None:
        raise NotLocal(f"no cast to {target}")
    low, high, name = bounds

    def convert(v: Any, rt: Runtime) -> int:
        number = int(v.to_integral_value(ROUND_HALF_UP)) if isinstance(v, Decimal) else v
        if target.kind is Kind.OID and -(1 << 31) <= number < 0:
            number += 1 << 32
        if source is Kind.OID and target.kind is Kind.INT4 and number > high:
            number -= 1 << 32
        if not low <= number <= high:
            raise InvalidValue(f"{name} out of range", sqlstate="22003")
        return number

    return convert


def _one_byte(number: int) -> str:
    """A number as "char": one byte, in octal if it is not a character."""
    if not -128 <= number <= 127:
        raise InvalidValue('"char" out of range', sqlstate="22003")
    if number < 0:
        return f"\\{number + 256:03o}"
    return chr(number) if number else ""


def _byte_of(text: str) -> int:
    if text.startswith("\\") and len(text) == 4:
        return int(text[1:], 8) - 256
    return ord(text) if text else 0


def _cut(text: str, target: SqlType) -> str:
    if target.kind is Kind.NAME:
        raw = text.encode()
        return text if len(raw) <= NAME_BYTES else raw[:NAME_BYTES].decode(errors="ignore")
    if target.kind is Kind.QCHAR:
        return text[:1]
    return text if target.length is None else text[: target.length]


# --- output


def writer(source: Type) -> Convert | None:
    """The function that writes a value as text; None if it is text."""
    if isinstance(source, Reg):
        return lambda v, rt: rt.facts.reg_output(source, v)
    if source.kind in STRINGS or source.kind is Kind.UNKNOWN:
        return None
    if source.kind is Kind.BOOL:
        return lambda v, rt: "true" if v else "false"
    if source.kind in INTEGERS or source.kind is Kind.MZ_TIMESTAMP:
        return lambda v, rt: str(v)
    if source.kind is Kind.NUMERIC and source.precision is not None:
        return lambda v, rt: format(v, "f")
    if is_vector(source):
        return lambda v, rt: " ".join(map(str, v))
    if source.kind is Kind.ARRAY:
        element = array_element(source)
        inner = writer(element)
        if isinstance(element, SqlType) and element.kind is Kind.BOOL:
            return lambda v, rt: array_text([None if x is None else "t" if x else "f" for x in v])
        return lambda v, rt: array_text(
            [None if x is None else x if inner is None else inner(x, rt) for x in v]
        )
    raise NotLocal(f"no text of {source}")


def array_text(items: Sequence[str | None]) -> str:
    return "{" + ",".join("NULL" if x is None else _quoted(x) for x in items) + "}"


def _quoted(text: str) -> str:
    if text and text.upper() != "NULL" and not any(c in '{},"\\' or c.isspace() for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- one type for several


def unify(ctx: LocalContext, values: Sequence[Typed]) -> tuple[list[Typed], Type]:
    """The values as one type, as CASE, UNION, COALESCE and ARRAY require."""
    known = [v.type for v in values if not v.untyped and not _open(v)]
    if not known:
        return [to_type(ctx, v, model.TEXT) for v in values], model.TEXT
    target = known[0]
    for t in known[1:]:
        target = common(target, t)
    return [to_type(ctx, v, target) for v in values], target


def _open(value: Typed) -> bool:
    return value.param is not None and value.type == model.UNKNOWN


_WIDTH = [Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC]


def common(a: Type, b: Type) -> Type:
    if a == b:
        return a
    if category(a) is not category(b) or Category.OTHER in (category(a), category(b)):
        raise NotLocal(f"no common type of {a} and {b}")
    if category(a) is Category.NUMBER:
        kinds = (kind(a), kind(b))
        if Kind.OID in kinds:
            return model.OID
        if all(k in _WIDTH for k in kinds):
            wide = max(kinds, key=_WIDTH.index)
            return SqlType(wide)
        raise NotLocal(f"no common type of {a} and {b}")
    if category(a) is Category.STRING:
        # Both cast to each other implicitly: the first counts.
        same = kind(a) is kind(b) or {kind(a), kind(b)} == {Kind.TEXT, Kind.VARCHAR}
        return SqlType(kind(a)) if same else model.TEXT
    if category(a) is Category.ARRAY and isinstance(a, SqlType) and isinstance(b, SqlType):
        return model.array(_plain(common(element_type(a), element_type(b))))
    raise NotLocal(f"no common type of {a} and {b}")


def _plain(t: Type) -> SqlType:
    if isinstance(t, Reg):
        raise NotLocal("arrays of OIDs by name")
    return t


def beside(t: Type) -> Type:
    """The type of a literal beside a value of this type: of any length and scale."""
    return t if isinstance(t, Reg) else base(t)


def comparable(ctx: LocalContext, a: Typed, b: Typed) -> tuple[Typed, Typed]:
    """Both operands of a comparison in a form that Python compares as PostgreSQL compares the values."""
    if (a.untyped or _open(a)) and (b.untyped or _open(b)):
        return to_type(ctx, a, model.TEXT), to_type(ctx, b, model.TEXT)
    if a.untyped or _open(a):
        a = to_type(ctx, a, beside(b.type))
    elif b.untyped or _open(b):
        b = to_type(ctx, b, beside(a.type))
    pair = (category(a.type), category(b.type))
    if pair == (Category.STRING, Category.STRING) or pair == (Category.NUMBER, Category.NUMBER):
        return a, b
    if a.type == b.type and isinstance(a.type, SqlType) and _compares(a.type):
        return a, b
    raise NotLocal(f"no comparison of {a.type} and {b.type}")


def _compares(t: SqlType) -> bool:
    if t.kind is Kind.ARRAY:
        return _compares(element_type(t))
    # Not floats: NaN is equal to itself here, and is not in Python.
    return t.kind in PLAIN | STRINGS | NUMBERS


def hashable(t: Type) -> bool:
    return isinstance(t, Reg) or t.kind in PLAIN | STRINGS | NUMBERS
