"""Functions and operators on text and bytea. Positions and lengths count characters; positions start at 1."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.rowwise import row_function
from tidemill.sql.functions.signature import function, operator
from tidemill.sql.functions.tree import (
    Tree,
    add,
    at_least,
    bigint,
    binary,
    call,
    case,
    cast,
    eq,
    gt,
    if_,
    integer,
    is_null,
    let_all,
    lt,
    mul,
    not_,
    null,
    or_,
    raise_error,
    string,
    sub,
)
from tidemill.sql.scalar import octets
from tidemill.types.model import BOOL, BYTEA, INT4, INT8, TEXT, Kind, SqlType

_MAX_INT = 2147483647
# The largest text that a function may make of small input: as much as a client can send. A task has less
# memory than PostgreSQL's own limit of a gigabyte.
MAX_MADE_BYTES = 64 << 20
_TOO_LONG = ("54000", "requested length too large")


def _substring(args: Sequence[Tree]) -> Tree:
    """PostgreSQL's substring may start before the string; what lies there counts toward the length."""

    def cut(v: list[Tree]) -> Tree:
        text, start, length = v
        first = at_least(start, integer(1))
        end = add(cast(start, "BIGINT"), cast(length, "BIGINT"))
        # Of NULL and a number Spark's greatest and least give the number.
        count = call("least", call("greatest", sub(end, first), bigint(0)), bigint(_MAX_INT))
        return case(
            (is_null(length), null()),
            (
                lt(length, integer(0)),
                raise_error("22011", "negative substring length not allowed"),
            ),
            otherwise=call("substring", text, first, cast(count, "INT")),
        )

    return let_all(list(args), cut)


def _substring_from(args: Sequence[Tree]) -> Tree:
    return let_all(list(args), lambda v: call("substring", v[0], at_least(v[1], integer(1))))


def _left(args: Sequence[Tree]) -> Tree:
    """A negative count leaves out the last characters."""

    def cut(v: list[Tree]) -> Tree:
        text, n = v
        rest = call("greatest", add(cast(call("length", text), "BIGINT"), cast(n, "BIGINT")), bigint(0))
        return if_(
            lt(n, integer(0)), call("substring", text, integer(1), cast(rest, "INT")), call("left", text, n)
        )

    return let_all(list(args), cut)


def _right(args: Sequence[Tree]) -> Tree:
    """A negative count leaves out the first characters."""

    def cut(v: list[Tree]) -> Tree:
        text, n = v
        start = call("least", sub(bigint(1), cast(n, "BIGINT")), bigint(_MAX_INT))
        return if_(lt(n, integer(0)), call("substring", text, cast(start, "INT")), call("right", text, n))

    return let_all(list(args), cut)


def _pad(name: str) -> None:
    def three(args: Sequence[Tree]) -> Tree:
        def padded(v: list[Tree]) -> Tree:
            text, n, fill = v
            # Nothing to fill with: only truncate.
            bare = call("left", text, at_least(n, integer(0)))
            # A character has up to four bytes. (Of constants Spark works out both branches.)
            long = gt(n.copy(), integer(MAX_MADE_BYTES // 4))
            made = call(name, text, if_(long.copy(), integer(0), n.copy()), fill)
            return if_(long, raise_error(*_TOO_LONG), if_(eq(fill, string("")), bare, made))

        return let_all(list(args), padded)

    function(name, (TEXT, INT4), TEXT, lambda a: three([*a, string(" ")]))
    function(name, (TEXT, INT4, TEXT), TEXT, three)


def _split_part(args: Sequence[Tree]) -> Tree:
    def part(v: list[Tree]) -> Tree:
        text, delimiter, n = v
        whole = or_(eq(n, integer(1)), eq(n, integer(-1)))
        return case(
            (or_(is_null(text), is_null(delimiter), is_null(n)), null()),
            (eq(n, integer(0)), raise_error("22023", "field position must not be zero")),
            (eq(delimiter, string("")), if_(whole, text, string(""))),
            (eq(text, string("")), string("")),
            otherwise=call("split_part", text, delimiter, n),
        )

    return let_all(list(args), part)


def _repeat(args: Sequence[Tree]) -> Tree:
    def repeated(v: list[Tree]) -> Tree:
        text, n = v
        times = if_(lt(n.copy(), integer(0)), integer(0), n.copy())
        size = mul(cast(call("octet_length", text.copy()), "BIGINT"), cast(times.copy(), "BIGINT"))
        long = gt(size, bigint(MAX_MADE_BYTES))
        # Of constants Spark works out both branches.
        made = call("repeat", text, if_(long.copy(), integer(0), times))
        return if_(long, raise_error(*_TOO_LONG), made)

    return let_all(list(args), repeated)


def like(args: Sequence[Tree]) -> Tree:
    return call("like", args[0], _pattern(args[1]))


def ilike(args: Sequence[Tree]) -> Tree:
    return call("ilike", args[0], _pattern(args[1]))


def _pattern(pattern: Tree) -> Tree:
    """A backslash before an ordinary character means that character; Spark refuses it, so constants are
    rewritten."""
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        escaped = string(r"\\([^%_\\])|(\\[%_\\])")
        return call("regexp_replace", pattern, escaped, string("$1$2"))
    text = str(pattern.this)
    out: list[str] = []
    i = 0
    while i < len(text):
        if text[i] == "\\" and i + 1 < len(text) and text[i + 1] not in "%_\\":
            i += 1
        elif text[i] == "\\" and i + 1 < len(text):
            out.append(text[i])
            i += 1
        out.append(text[i])
        i += 1
    return string("".join(out))


# Spark's locate() takes no bytes.
_position_of_bytes = row_function(
    "position", (BYTEA, BYTEA), INT4, lambda data, part: octets.position(part, data)
)


def _install() -> None:
    for name in ("length", "char_length", "character_length"):
        function(name, (TEXT,), INT4, "length")
    function("length", (BYTEA,), INT4, "octet_length")
    for t in (TEXT, BYTEA, SqlType(Kind.CHAR)):
        function("octet_length", (t,), INT4, "octet_length")
    for t in (TEXT, BYTEA):
        function("bit_length", (t,), INT4, "bit_length")
    function("lower", (TEXT,), TEXT, "lower")
    function("upper", (TEXT,), TEXT, "upper")
    for name in ("substring", "substr"):
        function(name, (TEXT, INT4, INT4), TEXT, _substring)
        function(name, (TEXT, INT4), TEXT, _substring_from)
        function(name, (BYTEA, INT4, INT4), BYTEA, _substring)
        function(name, (BYTEA, INT4), BYTEA, _substring_from)
    for name in ("btrim", "ltrim", "rtrim"):
        function(name, (TEXT,), TEXT, name)
        spark = {"btrim": "btrim", "ltrim": "ltrim", "rtrim": "rtrim"}[name]
        if name == "btrim":
            function(name, (TEXT, TEXT), TEXT, spark)
        else:
            # Spark's two-argument forms take the characters first.
            function(name, (TEXT, TEXT), TEXT, lambda a, f=spark: call(f, a[1], a[0]))
    for name in ("strpos", "position"):
        function(name, (TEXT, TEXT), INT4, lambda a: call("instr", a[0], a[1]))
    function("position", (BYTEA, BYTEA), INT4, _position_of_bytes)
    function("replace", (TEXT, TEXT, TEXT), TEXT, "replace")
    function("left", (TEXT, INT4), TEXT, _left)
    function("right", (TEXT, INT4), TEXT, _right)
    function("split_part", (TEXT, TEXT, INT4), TEXT, _split_part)
    _pad("lpad")
    _pad("rpad")
    function("repeat", (TEXT, INT4), TEXT, _repeat)
    function("reverse", (TEXT,), TEXT, "reverse")
    function("starts_with", (TEXT, TEXT), BOOL, "startswith")
    function("translate", (TEXT, TEXT, TEXT), TEXT, "translate")
    function("ascii", (TEXT,), INT4, "ascii")
    function("md5", (TEXT,), TEXT, "md5")
    function("md5", (BYTEA,), TEXT, "md5")
    for bits in (224, 256, 384, 512):
        function(
            f"sha{bits}", (BYTEA,), BYTEA, lambda a, n=bits: call("unhex", call("sha2", a[0], integer(n)))
        )
    function("to_hex", (INT4,), TEXT, _hex32)
    function("to_hex", (INT8,), TEXT, lambda a: call("lower", call("hex", a[0])))
    operator("||", (TEXT, TEXT), TEXT, lambda a: call("concat", a[0], a[1]))
    operator("||", (BYTEA, BYTEA), BYTEA, lambda a: call("concat", a[0], a[1]))
    for symbol, build in (("~~", like), ("~~*", ilike)):
        for t in (TEXT, SqlType(Kind.CHAR)):
            # Of char(n) the padding counts here.
            operator(symbol, (t, TEXT), BOOL, build)
            operator(f"!{symbol}", (t, TEXT), BOOL, lambda a, b=build: not_(b(a)))


def _hex32(args: Sequence[Tree]) -> Tree:
    bits = binary(exp.BitwiseAnd, cast(args[0], "BIGINT"), bigint(0xFFFFFFFF))
    return call("lower", call("hex", bits))


_install()
