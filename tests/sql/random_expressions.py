"""Random expressions of the allow-list: type-directed, from a seed.

An expression is made for a type: a column, a literal, or one of the functions, operators and casts whose
result is that type, over expressions of the types that it takes. The rows come from the binder's own tables,
so what is added there is asked here. What PostgreSQL does not promise to the last digit (a sine, a quotient
of numerics) stands only at the top, where it is compared by its value."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from random_hints import HINTS, LIKES, NUMBER_PICTURES, SMALL, TIME_PICTURES, UNITS
from random_values import (
    ARRAYS,
    COLUMNS,
    ELEMENTS,
    SCALARS,
    TYPES,
    VALUES,
    quoted,
    spelled,
)

from tidemill.sql.bind.forms import session
from tidemill.sql.functions import lattice
from tidemill.sql.functions.signature import Declared, Fn, Poly, every_function, every_operator
from tidemill.types.model import (
    BOOL,
    DATE,
    INT4,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
    array,
)

# What differs in its last digits with the platform or the size of its operands: at the top alone.
LOOSE = frozenset(
    (
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh"),
        *("atanh", "cot", "sind", "cosd", "tand", "cotd", "asind", "acosd", "atand", "atan2d", "erf", "erfc"),
        *("exp", "ln", "log", "log10", "cbrt", "power", "pow", "^", "sqrt"),
    )
)
# Not asked: their answers are another each time, or are of the server.
_SKIPPED = frozenset(
    ("random", "gen_random_uuid", "uuidv4", "now", "transaction_timestamp", "statement_timestamp")
)
_OURS = {Kind.UINT2, Kind.UINT4, Kind.UINT8, Kind.MZ_TIMESTAMP, Kind.LIST, Kind.MAP}

# Jsonb numbers that are equal to others written in another way: where only their value counts.
_EQUAL_NUMBERS = ("'1.0'", "'1e2'", "'[1.00, 2.50]'", "'{\"a\": 1.0}'")
_BY_VALUE = frozenset(("=", "<>", "<", "<=", ">", ">=", "@>", "<@"))


@dataclass(frozen=True, slots=True)
class Made:
    text: str
    loose: bool = False


class Expressions:
    """Expressions from a random source. `columns` are what they may read, by type."""

    def __init__(self, rng: random.Random, columns: dict[str, SqlType] | None = None) -> None:
        self.rng = rng
        self._columns: dict[SqlType, list[str]] = {}
        for name, t in (COLUMNS if columns is None else columns).items():
            self._columns.setdefault(t, []).append(name)
        self._rows: dict[SqlType, dict[str, list[Fn]]] = {t: {} for t in TYPES}
        self.operators = {id(r) for r in every_operator()}
        self.all_rows = [r for r in (*every_function(), *every_operator()) if _asked(r)]
        for row in self.all_rows:
            for t in TYPES:
                if _gives(row.result, t):
                    self._rows[t].setdefault(row.name, []).append(row)
        self._special = _specials()

    def of_row(self, row: Fn, depth: int) -> Made:
        """A call of this row."""
        element = self.rng.choice(ELEMENTS)
        return Made(self._call(row, element, depth), row.name in LOOSE or _inexact(row))

    def top(self, t: SqlType, depth: int) -> Made:
        """An expression of the type; what is loose only here."""
        names = self._rows[t]
        if self.rng.random() < 0.7 and names:
            row = self.rng.choice(names[self.rng.choice(sorted(names))])
            return Made(self._call(row, self._element(row, t), depth), row.name in LOOSE or _inexact(row))
        return Made(self.expr(t, depth))

    def expr(self, t: SqlType, depth: int) -> str:
        rng = self.rng
        if t not in self._rows:
            return self.leaf(t)
        if depth <= 0 or rng.random() < 0.15:
            return self.leaf(t)
        if rng.random() < 0.3:
            made = rng.choice(self._special)(self, t, depth)
            if made is not None:
                return made
        names = {
            n: sound
            for n, rows in self._rows[t].items()
            if n not in LOOSE and (sound := [r for r in rows if not _inexact(r)])
        }
        if not names:
            return self.leaf(t)
        row = rng.choice(names[rng.choice(sorted(names))])
        return self._call(row, self._element(row, t), depth)

    def leaf(self, t: SqlType) -> str:
        rng = self.rng
        columns = self._columns.get(t, [])
        if columns and rng.random() < 0.65:
            return rng.choice(columns)
        if rng.random() < 0.06:
            return f"NULL::{spelled(t)}"
        return self.literal(t)

    def literal(self, t: SqlType) -> str:
        values = VALUES.get(t)
        if values is None:
            return f"NULL::{spelled(t)}"
        value = self.rng.choice(values)
        if t == INT4 and self.rng.random() < 0.8 and value != "-2147483648":
            return value if value[0] != "-" else f"({value})"
        if t == BOOL and self.rng.random() < 0.7:
            return value
        return f"{quoted(value)}::{spelled(t)}"

    def _element(self, row: Fn, t: SqlType) -> SqlType:
        if row.result is Poly.ELEMENT:
            return t
        if row.result is Poly.ARRAY and t.element is not None:
            return t.element
        return self.rng.choice(ELEMENTS)

    def _call(self, row: Fn, element: SqlType, depth: int) -> str:
        declared = list(row.args)
        if row.variadic:
            declared += [declared[-1]] * self.rng.randrange(3)
        args = [self._arg(row.name, at, d, element, depth - 1) for at, d in enumerate(declared)]
        if id(row) in self.operators:
            return f"({args[0]} {row.name} {args[1]})" if len(args) == 2 else f"({row.name} {args[0]})"
        if row.name == "position":
            return f"position({args[1]} IN {args[0]})"
        if row.name == "timezone" and self.rng.random() < 0.5:
            return f"({args[1]} AT TIME ZONE {args[0]})"
        return f"{row.name}({', '.join(args)})"

    def _arg(self, name: str, at: int, declared: Declared, element: SqlType, depth: int) -> str:
        rng = self.rng
        hints = HINTS.get((name, at))
        if name == "to_char" and at == 1:
            hints = [quoted(p) for p in (*TIME_PICTURES, *NUMBER_PICTURES)]
        if name == "to_number" and at == 0:
            hints = ("'12'", "'-1,234.5'", "s", "m::text", "''")
        if name == "pg_size_pretty" and declared == NUMERIC:
            # It shows the digits of its argument.
            return self.literal(NUMERIC)
        if hints is not None and rng.random() < 0.93:
            return rng.choice(hints)
        t = _bound(declared, element, rng)
        if name in _BY_VALUE and t == JSONB and rng.random() < 0.2:
            return rng.choice(_EQUAL_NUMBERS) + "::jsonb"
        if isinstance(declared, SqlType) and rng.random() < 0.2:
            # One that becomes it by itself.
            others = [o for o in SCALARS if o != t and lattice.can_coerce(o, t)]
            if others:
                t = rng.choice(others)
        if rng.random() < 0.06 and isinstance(declared, SqlType) and t in VALUES:
            return quoted(rng.choice(VALUES[t]))
        return self.expr(t, depth)


# An expression that is longer says little that shorter ones do not, and takes Spark long to compile.
LONGEST = 1500


def expressions(seed: int, count: int) -> list[Made]:
    """So many of them, or a few less: each row of the allow-list in its turn, and as many by their type."""
    made = Expressions(random.Random(seed))
    rows = list(made.all_rows)
    made.rng.shuffle(rows)
    found: dict[str, Made] = {}
    for i in range(count):
        depth = made.rng.choice((1, 1, 2, 2, 3, 4))
        one = (
            made.of_row(rows[i // 2 % len(rows)], depth) if i % 2 else made.top(made.rng.choice(TYPES), depth)
        )
        if len(one.text) < LONGEST:
            found[one.text] = one
    return list(found.values())


def _asked(row: Fn) -> bool:
    kinds = {d.kind for d in (*row.args, row.result) if isinstance(d, SqlType)}
    return not (
        row.aggregate
        or row.refused
        or row.volatile
        or kinds & _OURS
        or Poly.LIST in row.args
        or row.name in _SKIPPED
        or row.name in session.FUNCTIONS
    )


def _inexact(row: Fn) -> bool:
    """A quotient of numerics has another number of digits here."""
    return row.result == NUMERIC and row.name in ("/", "div", "to_number")


def _gives(declared: Declared, t: SqlType) -> bool:
    if declared is Poly.ELEMENT:
        return t in ELEMENTS
    if declared is Poly.ARRAY:
        return t in ARRAYS
    return declared == t


def _bound(declared: Declared, element: SqlType, rng: random.Random) -> SqlType:
    if declared is Poly.ELEMENT:
        return element
    if declared is Poly.ARRAY:
        return array(element)
    if isinstance(declared, Poly):
        return rng.choice(SCALARS)
    return declared


# Expressions that are no row of a table: a maker gives one for the type, or None.
Special = Callable[[Expressions, SqlType, int], "str | None"]


def _case(e: Expressions, t: SqlType, depth: int) -> str | None:
    other = "" if e.rng.random() < 0.3 else f" ELSE {e.expr(t, depth - 1)}"
    return f"CASE WHEN {e.expr(BOOL, depth - 1)} THEN {e.expr(t, depth - 1)}{other} END"


def _choice(e: Expressions, t: SqlType, depth: int) -> str | None:
    name = e.rng.choice(("coalesce", "nullif", "greatest", "least"))
    if t == JSONB and name != "coalesce":
        name = "coalesce"
    return f"{name}({e.expr(t, depth - 1)}, {e.expr(t, depth - 1)})"


# Texts of numerics and of what is made of them show their digits: only of a literal or a column.
def _cast(e: Expressions, t: SqlType, depth: int) -> str | None:
    source = e.rng.choice(ARRAYS if t.kind is Kind.ARRAY else SCALARS)
    if lattice.cast_context(source, t) is None:
        return None
    if t.kind in lattice.STRINGS and source in (NUMERIC, JSONB):
        return f"({e.literal(source)})::{spelled(t)}"
    return f"({e.expr(source, depth - 1)})::{spelled(t)}"


def _test(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != BOOL:
        return None
    rng = e.rng
    other = rng.choice(TYPES)
    first = e.expr(other, depth - 1)
    kind = rng.randrange(12)
    if kind == 0:
        return f"({first} IS {rng.choice(('', 'NOT '))}NULL)"
    if kind == 1:
        return f"({first} IS {rng.choice(('', 'NOT '))}DISTINCT FROM {e.expr(other, depth - 1)})"
    if kind == 2:
        low, high = e.expr(other, depth - 1), e.expr(other, depth - 1)
        return f"({first} {rng.choice(('', 'NOT '))}BETWEEN {rng.choice(('', 'SYMMETRIC '))}{low} AND {high})"
    if kind == 3:
        items = ", ".join(e.expr(other, depth - 2) for _ in range(rng.randrange(1, 4)))
        return f"({first} {rng.choice(('', 'NOT '))}IN ({items}))"
    if kind == 4:
        return f"({e.expr(BOOL, depth - 1)} {rng.choice(('AND', 'OR'))} {e.expr(BOOL, depth - 1)})"
    if kind == 5:
        return f"(NOT {e.expr(BOOL, depth - 1)})"
    if kind == 6:
        truth = rng.choice(("TRUE", "FALSE", "UNKNOWN", "NOT TRUE", "NOT FALSE", "NOT UNKNOWN"))
        return f"({e.expr(BOOL, depth - 1)} IS {truth})"
    if kind == 7:
        element = rng.choice(ELEMENTS)
        op, word = rng.choice(("=", "<>", "<", ">=")), rng.choice(("ANY", "ALL"))
        return f"({e.expr(element, depth - 1)} {op} {word} ({e.expr(array(element), depth - 1)}))"
    if kind == 8:
        word = rng.choice(("LIKE", "NOT LIKE", "ILIKE", "SIMILAR TO"))
        escape = rng.choice(("", "", " ESCAPE '#'", " ESCAPE ''"))
        return f"({e.expr(TEXT, depth - 1)} {word} {quoted(rng.choice(LIKES))}{escape})"
    if kind == 9:
        second = rng.choice(SCALARS)
        pair = [f"({e.expr(other, depth - 2)}, {e.expr(second, depth - 2)})" for _ in range(2)]
        return f"({pair[0]} {rng.choice(('=', '<', '>=', '<>'))} {pair[1]})"
    if kind == 10:
        one, two, three = (e.expr(TIMESTAMP, depth - 2) for _ in range(3))
        return f"(({one}, {e.expr(INTERVAL, depth - 2)}) OVERLAPS ({two}, {three}))"
    return f"(({first}) = ({e.expr(other, depth - 1)}))"


def _of_text(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != TEXT:
        return None
    rng = e.rng
    kinds = [k for k in TYPES if k not in (NUMERIC, JSONB, array(NUMERIC))]
    kind = rng.randrange(7)
    one, two = (e.expr(rng.choice(kinds), depth - 1) for _ in range(2))
    if kind == 0:
        return f"concat({one}, {two})"
    if kind == 1:
        return f"concat_ws({e.expr(TEXT, depth - 2)}, {one}, {two})"
    if kind == 2:
        template = rng.choice(("%s", "%s-%s", "%L", "%I", "%10s|%-5s", "%%%s", "%2$s %1$s"))
        return f"format({quoted(template)}, {one}, {two})"
    if kind == 3:
        return f"({e.expr(TEXT, depth - 1)} || {one})"
    if kind == 4:
        return f"substring({e.expr(TEXT, depth - 1)} FROM {rng.choice(SMALL)} FOR {rng.choice(SMALL)})"
    if kind == 5:
        side, what = rng.choice(("BOTH", "LEADING", "TRAILING")), rng.choice(("a", " ", "ab", ""))
        return f"trim({side} {quoted(what)} FROM {e.expr(TEXT, depth - 1)})"
    return f"quote_literal({one})"


def _extract(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != NUMERIC:
        return None
    of = e.expr(e.rng.choice((DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL)), depth - 1)
    return f"extract({e.rng.choice(UNITS)} FROM {of})"


def _of_array(e: Expressions, t: SqlType, depth: int) -> str | None:
    rng = e.rng
    if t.kind is Kind.ARRAY and t.element is not None:
        if rng.random() < 0.5:
            low, high = rng.choice(("", "0", "1", "2", "-1")), rng.choice(("", "0", "1", "2", "9"))
            return f"({e.expr(t, depth - 1)})[{low}:{high}]"
        return f"ARRAY[{', '.join(e.expr(t.element, depth - 1) for _ in range(rng.randrange(1, 4)))}]"
    if t in ELEMENTS:
        return f"({e.expr(array(t), depth - 1)})[{rng.choice(SMALL)}]"
    return None


def _of_json(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != JSONB:
        return None
    kinds = [k for k in TYPES if k not in (NUMERIC, array(NUMERIC))]
    one, two = (e.expr(e.rng.choice(kinds), depth - 1) for _ in range(2))
    return e.rng.choice(
        (
            f"to_jsonb({one})",
            f"jsonb_build_object('k', {one}, 'l', {two})",
            f"jsonb_build_array({one}, {two})",
        )
    )


def _specials() -> Sequence[Special]:
    return (
        _case,
        _choice,
        _cast,
        _cast,
        _test,
        _test,
        _test,
        _of_text,
        _of_text,
        _extract,
        _of_array,
        _of_json,
    )
