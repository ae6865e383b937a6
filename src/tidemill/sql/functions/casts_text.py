"""Casts to and from text at run time.

Spark and PostgreSQL accept different input. A cast from text therefore checks the input against the forms
that both read alike; any other form fails with PostgreSQL's message and never gives a different value. (The
binder reads constants with `types.wire`, in all of PostgreSQL's forms.) A cast to text exists only where the
result equals PostgreSQL's exactly.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tidemill.errors import Unsupported
from tidemill.sql.functions.any_texts import text_tree
from tidemill.sql.functions.casts_read import read_text
from tidemill.sql.functions.casts_time import MICROS_PER_DAY, is_endless
from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.tree import (
    Tree,
    bigint,
    boolean,
    call,
    case,
    cast,
    cast_to,
    eq,
    gt,
    if_,
    int_divide,
    integer,
    is_infinite,
    is_null,
    let,
    null,
    or_,
    raise_error,
    remainder,
    string,
    sub,
    word,
)
from tidemill.types.model import DATE, TIMESTAMP, TIMESTAMPTZ, Kind, SqlType

# PostgreSQL's isspace(): characters that may surround a value.
_BLANKS = " \t\n\v\f\r"

_INTEGER = r"^[+-]?[0-9]+(_[0-9]+)*$"
_NUMERIC = r"^[+-]?([0-9]+(_[0-9]+)*\.?([0-9]+(_[0-9]+)*)?|\.[0-9]+(_[0-9]+)*)([eE][+-]?[0-9]+)?$"
_PLAIN_NUMERIC = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_FLOAT_WORD = r"^[+-]?(inf|infinity|nan)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"
_TIMESTAMPTZ = _TIMESTAMP[:-1] + r"(Z|[+-][0-9]{2}(:[0-9]{2})?)$"
_TIME = r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_BYTEA = r"^\\x([0-9a-fA-F]{2})*$"

_TRUE = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_FALSE = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")


def fit(text: Tree, source: SqlType, target: SqlType, *, explicit: bool) -> Tree:
    """A string as varchar(n), char(n) or text. char(n) is stored padded; its blanks are not part of the
    value."""
    if source.kind is Kind.CHAR and target.kind is not Kind.CHAR:
        text = call("rtrim", text)
    if target.kind is Kind.NAME:
        return call("left", text, integer(63))
    length = target.length
    if length is None or target.kind not in (Kind.VARCHAR, Kind.CHAR):
        return text
    if source.kind is target.kind and source.length is not None and source.length <= length:
        return text if target.kind is Kind.VARCHAR else call("rpad", text, integer(length), string(" "))

    def fitted(v: Tree) -> Tree:
        cut = call("left", v, integer(length))
        if not explicit:
            # Blanks beyond the length are truncated without an error, as the standard requires.
            too_long = gt(call("length", call("rtrim", v.copy())), integer(length))
            cut = if_(too_long, raise_error("22001", f"value too long for type {target}"), cut)
        return call("rpad", cut, integer(length), string(" ")) if target.kind is Kind.CHAR else cut

    return let(text, fitted)


def to_text(value: Tree, source: SqlType) -> Tree:
    build = _TO_TEXT.get(source.kind)
    if source.kind is Kind.NUMERIC and source.precision is not None:
        return cast(value, "STRING")
    if source.kind is Kind.NUMERIC and source.shown is not None:
        return cast(cast(value, f"DECIMAL(38,{source.shown})"), "STRING")
    if build is None:
        return text_tree(value, source)
    return build(value)


def from_text(value: Tree, target: SqlType) -> Tree:
    if not _is_variable(value):
        read = read_text(value, target)
        if read is not None:
            return read
    build = _FROM_TEXT.get(target.kind)
    if build is None:
        raise Unsupported(f"cast from text to {target} is not supported for values that are no constants")
    trimmed = call("btrim", value, string(_BLANKS))
    return let(trimmed, lambda v: build(v, target))


def _is_variable(value: Tree) -> bool:
    """Whether it is an element of an array inside a lambda, where Spark accepts no Python function."""
    return isinstance(value, exp.Column) and not value.table


def _plain(value: Tree) -> Tree:
    return cast(value, "STRING")


def _numeric_text(value: Tree) -> Tree:
    return call("regexp_replace", cast(value, "STRING"), string(r"\.?0+$"), string(""))


def _time_text(value: Tree) -> Tree:
    """Microseconds of the day as hh:mm:ss[.ffffff]."""
    clock = call(
        "substring",
        cast(cast(call("timestamp_micros", value), "TIMESTAMP_NTZ"), "STRING"),
        integer(12),
    )
    return if_(eq(value.copy(), bigint(MICROS_PER_DAY)), string("24:00:00"), clock)


def _uuid_text(value: Tree) -> Tree:
    return call(
        "regexp_replace",
        call("lower", call("hex", value)),
        string("^(.{8})(.{4})(.{4})(.{4})(.{12})$"),
        string("$1-$2-$3-$4-$5"),
    )


def _bytea_text(value: Tree) -> Tree:
    return call("concat", string("\\x"), call("lower", call("hex", value)))


def _with_odd_years(value: Tree, t: SqlType, text: Callable[[Tree], Tree]) -> Tree:
    """Dates outside Spark's format: Spark writes years outside 1..9999 differently (+12345, -0043), and has
    no infinity.
    """

    def checked(v: Tree) -> Tree:
        year = call("year", v)
        odd = or_(gt(year, integer(9999)), gt(integer(1), year.copy()))
        endless = if_(gt(year.copy(), integer(0)), string("infinity"), string("-infinity"))
        return case(
            (is_endless(v, t), endless), (odd, _odd_text(v, text(v.copy()))), otherwise=text(v.copy())
        )

    return let(value, checked)


def _odd_text(v: Tree, text: Tree) -> Tree:
    """Spark's text after the year equals PostgreSQL's; BC is appended at the end."""
    year = call("year", v)
    before = gt(integer(1), year)
    shown = cast(if_(before, sub(integer(1), year.copy()), year.copy()), "STRING")
    padded = call("lpad", shown, call("greatest", call("length", shown.copy()), integer(4)), string("0"))
    rest = call("regexp_replace", text, string("^[+-]?[0-9]+"), string(""))
    return call("concat", padded, rest, if_(before.copy(), string(" BC"), string("")))


def _timestamptz_text(value: Tree) -> Tree:
    def text(v: Tree) -> Tree:
        local = call("from_utc_timestamp", v, zone())
        seconds = int_divide(call("timestampdiff", word("SECOND"), v.copy(), local.copy()), bigint(1))
        return call("concat", cast(cast(local, "TIMESTAMP_NTZ"), "STRING"), _offset_text(seconds))

    # The year is that of the zone, so it is computed in local time.
    def whole(v: Tree) -> Tree:
        endless = if_(gt(call("year", v), integer(0)), string("infinity"), string("-infinity"))
        year = call("year", call("from_utc_timestamp", v, zone()))
        odd = or_(gt(year, integer(9999)), gt(integer(1), year.copy()))
        shown = _odd_text(call("from_utc_timestamp", v, zone()), text(v))
        return case((is_endless(v, TIMESTAMPTZ), endless), (odd, shown), otherwise=text(v))

    return let(value, whole)


def _offset_text(seconds: Tree) -> Tree:
    """A zone's offset in PostgreSQL's form: +00, -05, +05:30, +00:53:28."""
    size = call("abs", seconds)

    def two(value: Tree) -> Tree:
        return call("lpad", cast(value, "STRING"), integer(2), string("0"))

    def tail(value: Tree, shown: Tree) -> Tree:
        return if_(eq(value, bigint(0)), string(""), shown)

    minutes = int_divide(remainder(size, bigint(3600)), bigint(60))
    rest = remainder(size.copy(), bigint(60))
    sign = if_(gt(bigint(0), seconds.copy()), string("-"), string("+"))
    return call(
        "concat",
        sign,
        two(int_divide(size.copy(), bigint(3600))),
        tail(remainder(size.copy(), bigint(3600)), call("concat", string(":"), two(minutes))),
        tail(rest, call("concat", string(":"), two(rest.copy()))),
    )


_TO_TEXT: dict[Kind, Callable[[Tree], Tree]] = {
    Kind.BOOL: _plain,
    Kind.INT2: _plain,
    Kind.INT4: _plain,
    Kind.INT8: _plain,
    Kind.UINT2: _plain,
    Kind.UINT4: _plain,
    Kind.UINT8: _plain,
    Kind.OID: _plain,
    Kind.MZ_TIMESTAMP: _plain,
    Kind.NUMERIC: _numeric_text,
    Kind.DATE: lambda v: _with_odd_years(v, DATE, _plain),
    Kind.TIMESTAMP: lambda v: _with_odd_years(v, TIMESTAMP, _plain),
    Kind.TIMESTAMPTZ: _timestamptz_text,
    Kind.TIME: _time_text,
    Kind.UUID: _uuid_text,
    Kind.BYTEA: _bytea_text,
    Kind.FLOAT4: lambda v: call("tm_float4_text", v),
    Kind.FLOAT8: lambda v: call("tm_float8_text", v),
    Kind.INTERVAL: lambda v: call("tm_interval_text", v),
    Kind.JSONB: lambda v: v,
}


def _guard(pattern: str, sqlstate: str = "22P02") -> Callable[[Tree, SqlType], Tree]:
    """Spark's own cast for inputs of the pattern, PostgreSQL's error for the rest."""

    def build(v: Tree, target: SqlType) -> Tree:
        digits = call("replace", v.copy(), string("_"), string("")) if "_" in pattern else v.copy()
        return if_(_fits(v, pattern), cast_to(digits, target), _invalid(v.copy(), target, sqlstate))

    return build


def _fits(v: Tree, pattern: str) -> Tree:
    return or_(is_null(v), call("rlike", v.copy(), string(pattern)))


def _invalid(v: Tree, target: SqlType, sqlstate: str = "22P02") -> Tree:
    kind = SqlType(target.kind) if target.kind is Kind.NUMERIC else target
    text = call("concat", string(f'invalid input syntax for type {kind}: "'), v, string('"'))
    return raise_error(sqlstate, text)


def _bool(v: Tree, target: SqlType) -> Tree:
    lower = call("lower", v)
    return case(
        (is_null(v.copy()), cast_to(null(), target)),
        (_in(lower, _TRUE), boolean(True)),
        (_in(lower.copy(), _FALSE), boolean(False)),
        otherwise=_invalid(v.copy(), target),
    )


def _in(v: Tree, words: tuple[str, ...]) -> Tree:
    return call("array_contains", call("array", *map(string, words)), v)


def _float(v: Tree, target: SqlType) -> Tree:
    number = cast_to(v.copy(), target)
    infinite = is_infinite(number)
    text = call("concat", string('"'), v.copy(), string(f'" is out of range for type {target}'))
    return case(
        (is_null(v), cast_to(null(), target)),
        (call("rlike", call("lower", v.copy()), string(_FLOAT_WORD)), number.copy()),
        (
            call("rlike", v.copy(), string(_PLAIN_NUMERIC)),
            if_(infinite, raise_error("22003", text), number.copy()),
        ),
        otherwise=_invalid(v.copy(), target),
    )


def _timestamptz(v: Tree, target: SqlType) -> Tree:
    local = call("to_utc_timestamp", cast(cast(v.copy(), "TIMESTAMP_NTZ"), "TIMESTAMP_LTZ"), zone())
    return case(
        (is_null(v), cast_to(null(), target)),
        (call("rlike", v.copy(), string(_TIMESTAMPTZ)), cast_to(_whole_offset(v.copy()), target)),
        (call("rlike", v.copy(), string(_TIMESTAMP)), local),
        otherwise=_invalid(v.copy(), target, "22007"),
    )


def _whole_offset(v: Tree) -> Tree:
    """+02 as +02:00, which Spark reads."""
    return call("regexp_replace", v, string("([+-][0-9]{2})$"), string("$1:00"))


def _time(v: Tree, target: SqlType) -> Tree:
    stamp = cast(call("concat", string("1970-01-01 "), v.copy()), "TIMESTAMP_NTZ")
    micros = call("unix_micros", cast(stamp, "TIMESTAMP_LTZ"))
    return if_(_fits(v, _TIME), micros, _invalid(v.copy(), target, "22007"))


def _uuid(v: Tree, target: SqlType) -> Tree:
    value = call("unhex", call("replace", v.copy(), string("-")))
    return if_(_fits(v, _UUID), value, _invalid(v.copy(), target))


def _bytea(v: Tree, target: SqlType) -> Tree:
    value = call("unhex", call("substring", v.copy(), integer(3)))
    return if_(_fits(v, _BYTEA), value, _invalid(v.copy(), target))


def _unsigned(v: Tree, target: SqlType) -> Tree:
    from tidemill.sql.functions.casts import unsigned

    number = unsigned(cast(v.copy(), "DECIMAL(38,0)"), target.kind)
    return if_(_fits(v, _INTEGER), number, _invalid(v.copy(), target))


_FROM_TEXT: dict[Kind, Callable[[Tree, SqlType], Tree]] = {
    Kind.BOOL: _bool,
    Kind.INT2: _guard(_INTEGER),
    Kind.INT4: _guard(_INTEGER),
    Kind.INT8: _guard(_INTEGER),
    Kind.UINT2: _unsigned,
    Kind.UINT4: _unsigned,
    Kind.UINT8: _unsigned,
    Kind.OID: _guard(_INTEGER),
    Kind.MZ_TIMESTAMP: _guard(r"^[0-9]+$"),
    Kind.NUMERIC: _guard(_NUMERIC),
    Kind.FLOAT4: _float,
    Kind.FLOAT8: _float,
    Kind.DATE: _guard(_DATE, "22007"),
    Kind.TIME: _time,
    Kind.TIMESTAMP: _guard(_TIMESTAMP, "22007"),
    Kind.TIMESTAMPTZ: _timestamptz,
    Kind.UUID: _uuid,
    Kind.BYTEA: _bytea,
}
