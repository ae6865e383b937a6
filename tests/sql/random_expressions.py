"""Random expressions of the allow-list: type-directed, from a seed.

An expression is made for a type: a column, a literal, or one of the functions, operators and casts whose
result is that type, over expressions of the types that it takes. The rows come from the binder's own tables,
so what is added there is asked here. What PostgreSQL does not promise to the last digit (a sine, a quotient
of numerics) stands only at the top, where it is compared by its value."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.sql.bind import session
from tidemill.sql.functions import lattice
from tidemill.sql.functions.signature import Declared, Fn, Poly, every_function, every_operator
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    Kind,
    SqlType,
    array,
)

BPCHAR = SqlType(Kind.CHAR)
# The types that expressions are made for, with how they are written in a cast.
SCALARS = (
    BOOL, INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC, TEXT, VARCHAR, BPCHAR, BYTEA, DATE, TIME, TIMESTAMP,
    TIMESTAMPTZ, INTERVAL, UUID, JSONB,
)  # fmt: skip
ELEMENTS = (INT4, TEXT, FLOAT8, NUMERIC, DATE, BOOL)
ARRAYS = tuple(array(e) for e in ELEMENTS)
TYPES = SCALARS + ARRAYS

# The table w, one column per type: every value below in some row.
COLUMNS: dict[str, SqlType] = {
    "i2": INT2, "i": INT4, "l": INT8, "r": FLOAT4, "f": FLOAT8, "n": NUMERIC, "m": NUMERIC, "s": TEXT,
    "vc": VARCHAR, "c": BPCHAR, "y": BYTEA, "b": BOOL, "d": DATE, "t": TIME, "ts": TIMESTAMP,
    "tz": TIMESTAMPTZ, "iv": INTERVAL, "u": UUID, "j": JSONB, "a": array(INT4), "sa": array(TEXT),
    "fa": array(FLOAT8), "na": array(NUMERIC), "da": array(DATE), "ba": array(BOOL),
}  # fmt: skip
_DECLARED = {"m": "numeric(10,2)", "vc": "varchar(10)", "c": "char(5)"}
ROWS = 12

_ASTRAL = "\U0001d11e"
VALUES: dict[SqlType, Sequence[str]] = {
    BOOL: ("true", "false"),
    INT2: ("0", "1", "-1", "2", "7", "32767", "-32768", "100", "-3"),
    INT4: ("0", "1", "-1", "2", "3", "-7", "2147483647", "-2147483648", "10", "65536", "1000000", "-100"),
    INT8: ("0", "1", "-1", "5", "9223372036854775807", "-9223372036854775808", "4294967296", "-42", "86400"),
    FLOAT4: ("0", "-0", "1.5", "-2.25", "NaN", "Infinity", "-Infinity", "1e30", "3.4028235e38", "1e-40",
             "0.1", "16777217", "-7"),
    FLOAT8: ("0", "-0", "2.5", "-0.1", "NaN", "Infinity", "-Infinity", "1e100", "1.7976931348623157e308",
             "5e-324", "0.3333333333333333", "9007199254740993", "123456789.125", "-3.5", "1e15", "1e-5"),
    NUMERIC: ("0", "1", "-1", "0.5", "2.5", "-2.5", "12345.6789", "99999999999.999999999999",
              "0.000000000000000001", "-98765432109876.5", "3.14159265358979", "1e5", "-0.1", "1000000"),
    TEXT: ("", " ", "a", "abc", "ABC def", " x  y ", "ÄÖ ü€", _ASTRAL + "x", "e\u0301a", "a%b_c\\d", "12", "-7",
           "2024-02-29", "true", "hello world", "a,b,,c", "ñ", "日本語", "\t\n", "{1,2}", "x'y\"z", "1.50", "aAbB"),
    VARCHAR: ("", "abc", "x y  ", "é", "12", "A_%"),
    BPCHAR: ("", "ab", "xy z", "A", "é"),
    BYTEA: ("\\x", "\\x00", "\\x00ff10", "\\x616263", "\\xdeadbeef", "\\xc3a4", "\\x5c"),
    DATE: ("2020-02-29", "1999-12-31", "2000-01-01", "1970-01-01", "0044-03-15 BC", "0001-01-01", "infinity",
           "-infinity", "9999-12-31", "20000-06-15", "1582-10-10", "2024-03-31"),
    TIME: ("00:00:00", "23:59:59.999999", "12:34:56.789", "10:20:30.5", "24:00:00", "02:30:00"),
    TIMESTAMP: ("2020-02-29 10:20:30.123456", "1999-12-31 23:59:59", "1969-12-31 23:59:59.5", "infinity",
                "-infinity", "0044-03-15 12:00:00 BC", "0001-01-01 00:00:00", "20000-06-15 01:02:03",
                "2023-10-29 02:30:00", "2000-01-01 00:00:00", "1582-10-04 00:00:00.000001"),
    TIMESTAMPTZ: ("2020-02-29 10:20:30.5+00", "1999-12-31 23:59:59.999999+00", "1970-01-01 00:00:00+00",
                  "infinity", "-infinity", "2038-01-19 03:14:08+00", "0044-03-15 12:00:00+00 BC",
                  "2023-10-29 01:30:00+02", "1883-11-18 17:00:00+00"),
    INTERVAL: ("0", "1 mon 2 days 03:04:05", "-1 days", "1 mon -30 days", "-1 mon +1 day -00:00:01",
               "24:00:00", "00:00:00.000001", "2 years -3 months", "100 years", "-00:00:00.5", "125:59:01",
               "-9 years -8 mons -7 days -06:05:04.3", "1000 days 1000:00:00", "infinity", "-infinity"),
    UUID: ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
           "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "01890a5d-ac96-774b-bcce-b302099a8057"),
    JSONB: ('{"a": 1, "b": {"c": [1, 2, "x"]}, "s": "t"}', "[1, 2.5, null, true]", '"str"', "{}", "[]", "3",
            "null", "true", '{"a": [{"b": null}], "": ""}', "-0.5", '[[1], {"k": "v"}]', '"1"', "100",
            '{"ä": "\U0001d11e", "a b": "\\n\\""}', "12345678901234567890", "false"),
    array(INT4): ("{}", "{1,2,3}", "{NULL,5}", "{7}", "{3,3,1,NULL}", "{-2147483648,2147483647}"),
    array(TEXT): ("{}", "{a,b,NULL}", '{"a b","c,d",""}', '{"NULL","\\"q\\""}', "{ä,日}", "{x}"),
    array(FLOAT8): ("{}", "{1.5,NULL,NaN}", "{0,2.5}", "{Infinity,-2.5}", "{1e100}"),
    array(NUMERIC): ("{}", "{1.5,NULL}", "{0.1,-2.25,3}", "{10}"),
    array(DATE): ("{}", "{2020-02-29,NULL}", "{infinity,1999-12-31}", '{"0044-03-15 BC"}'),
    array(BOOL): ("{}", "{t,f,NULL}", "{t}", "{f,f}"),
}  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def spelled(t: SqlType) -> str:
    """A type as a cast names it."""
    if t.kind is Kind.ARRAY and t.element is not None:
        return f"{spelled(t.element)}[]"
    return t.kind.value


def table_sql() -> str:
    """CREATE TABLE and INSERT of w. The last row is of NULLs; the values of a column come round."""
    columns = ", ".join(f"{n} {_DECLARED.get(n, spelled(t))}" for n, t in COLUMNS.items())
    rows: list[str] = []
    for k in range(ROWS):
        cells = [str(k + 1)]
        for at, (name, t) in enumerate(COLUMNS.items()):
            values = [v for v in VALUES[t] if name != "m" or len(v) < 8]
            value = values[(k + at) % len(values)] if k % 7 != 5 or at % 4 else None
            cells.append("NULL" if value is None or k == ROWS - 1 else quoted(value))
        rows.append(f"({', '.join(cells)})")
    return f"CREATE TABLE w (id int, {columns});\nINSERT INTO w VALUES\n{', '.join(rows)};\n"


# What differs in its last digits with the platform or the size of its operands: at the top alone.
LOOSE = frozenset(
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh cot sind cosd tand cotd asind acosd atand "
    "atan2d erf erfc exp ln log log10 cbrt power pow ^ sqrt gamma lgamma".split()
)
# Not asked: their answers are another each time, or are of the server.
_SKIPPED = frozenset(
    "random gen_random_uuid uuidv4 uuidv7 now transaction_timestamp statement_timestamp clock_timestamp "
    "list_length list_append list_prepend list_cat list_remove".split()
)
_OURS = {Kind.UINT2, Kind.UINT4, Kind.UINT8, Kind.MZ_TIMESTAMP, Kind.LIST, Kind.MAP}

_UNITS = ("year", "month", "day", "hour", "minute", "second", "week", "quarter", "decade", "century", "millennium",
          "milliseconds", "microseconds", "dow", "doy", "isodow", "isoyear", "epoch", "julian", "timezone", "y")  # fmt: skip
_ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Europe/Berlin", "+03", "EST", "nowhere")
_PATTERNS = ("a", "^a", ".", "x|y", "[a-c]+", "(b)(c)?", "\\d+", "\\s", "^$", "(?i)A", "[[:alpha:]]", "b*", "\\mh", "(")
_FLAGS = ("g", "i", "", "gi", "x", "n", "s", "q")
_LIKES = ("%", "a%", "%b%", "_", "__", "a\\%%", "%ä%", "", "ABC%", "x y%", "\\")
_TIME_PICTURES = ("YYYY-MM-DD", "HH24:MI:SS.US", "Day DD Mon YYYY", "FMMonth FMDDth", "Q WW IW IYYY", "J", "HH12 AM", "TZ OF",
                  "MS SSSS", "RM", "Y,YYY BC", "D ID DDD", "", "CC", "YYYYMMDD", "\"q\"YY")  # fmt: skip
_NUMBER_PICTURES = ("999", "FM999.99", "000D00", "S9999", "9G999G999", "RN", "EEEE", "9.99EEEE", "PL99", "99V9", "L999", "MI9",
                    "FM0000", "B99", "99th", "")  # fmt: skip
_SMALL = ("0", "1", "2", "3", "-1", "5", "-3", "10", "NULL")
_HINTS: dict[tuple[str, int], Sequence[str]] = {
    **{(n, 0): [quoted(u) for u in _UNITS] for n in ("date_trunc", "date_part")},
    ("date_trunc", 2): [quoted(z) for z in _ZONES],
    ("timezone", 0): [quoted(z) for z in _ZONES],
    ("date_add", 2): [quoted(z) for z in _ZONES],
    ("date_subtract", 2): [quoted(z) for z in _ZONES],
    ("make_timestamptz", 6): [quoted(z) for z in _ZONES],
    ("encode", 1): ("'hex'", "'base64'", "'escape'", "'nope'"),
    ("decode", 1): ("'hex'", "'base64'", "'escape'"),
    ("decode", 0): ("'616263'", "'YWJj'", "'\\\\000a'", "'zz'", "''", "s"),
    ("convert_from", 1): ("'UTF8'", "'LATIN1'", "'SQL_ASCII'"),
    ("convert_to", 1): ("'UTF8'", "'LATIN1'"),
    ("length", 1): ("'UTF8'",),
    ("normalize", 1): ("NFC", "NFD", "NFKC", "NFKD"),
    ("unistr", 0): ("'\\0061b'", "'\\+01D11E'", "'x'", "s", "'\\00'"),
    ("repeat", 1): _SMALL,
    **{(n, 1): _SMALL for n in ("lpad", "rpad", "left", "right", "substr", "trim_array", "array_length", "array_upper")},
    ("array_lower", 1): _SMALL,
    ("substring", 1): (*_SMALL, *map(quoted, _PATTERNS)),
    ("substring", 2): (*_SMALL, "'#'"),
    ("substr", 2): _SMALL,
    ("overlay", 2): _SMALL,
    ("overlay", 3): _SMALL,
    ("split_part", 2): _SMALL,
    ("split_part", 1): ("','", "' '", "''", "'b'"),
    ("array_fill", 1): ("'{2}'", "'{0}'", "'{3}'", "'{}'", "'{-1}'"),
    ("string_to_array", 1): ("','", "''", "NULL", "'b'"),
    ("round", 1): _SMALL,
    ("trunc", 1): _SMALL,
    ("factorial", 0): (*_SMALL, "20", "25", "i"),
    ("chr", 0): ("65", "0", "228", "119070", "55296", "1114112", "-1", "i2", "10"),
    ("^", 1): ("2", "3", "0", "-1", "0.5", "i2"),
    ("power", 1): ("2", "3", "0", "-1", "0.5", "i2"),
    ("pow", 1): ("2", "3", "0", "-1", "0.5", "i2"),
    ("exp", 0): ("1", "0", "-1", "2.5", "i2", "f", "0.001"),
    ("to_date", 1): ("'YYYY-MM-DD'", "'DD Mon YYYY'", "'YYYYMMDD'", "'J'", "'IYYY-IW'"),
    ("to_date", 0): ("'2024-02-29'", "'15 Mar 0044'", "'20240230'", "d::text", "s", "'2451545'"),
    ("to_timestamp", 1): ("'YYYY-MM-DD HH24:MI:SS'", "'YYYY-MM-DD'", "'HH12:MI AM'"),
    ("to_number", 1): [quoted(p) for p in _NUMBER_PICTURES],
    ("to_number", 0): ("'12'", "'-1,234.5'", "s", "m::text", "''"),
    ("pg_size_bytes", 0): ("'1 kB'", "'2.5MB'", "s", "'-1 GB'", "'10'"),
    ("width_bucket", 3): ("5", "1", "0", "100"),
    ("regexp_replace", 2): ("'X'", "'[\\1]'", "'\\&'", "''", "2"),
    ("regexp_replace", 3): ("'g'", "'i'", "1", "2", "''"),
    ("regexp_count", 3): [quoted(f) for f in _FLAGS],
    ("regexp_like", 2): [quoted(f) for f in _FLAGS],
    ("regexp_match", 2): [quoted(f) for f in _FLAGS if "g" not in f],
    ("regexp_split_to_array", 2): [quoted(f) for f in _FLAGS if "g" not in f],
    ("jsonb_pretty", 0): ("j",),
    ("get_byte", 1): _SMALL,
    ("set_byte", 1): _SMALL,
    ("set_byte", 2): ("0", "255", "256", "-1", "65"),
    ("get_bit", 1): _SMALL,
    ("set_bit", 1): _SMALL,
    ("set_bit", 2): ("0", "1", "2"),
    ("date_bin", 0): ("'1 day'", "'15 minutes'", "'7 days 01:00'", "'1 month'", "iv", "'0'", "'-2 hours'"),
    ("<<", 1): ("0", "1", "5", "31", "33", "-1", "i2"),
    (">>", 1): ("0", "1", "5", "31", "33", "-1", "i2"),
    ("parse_ident", 0): ("'a.b'", "'\"A b\".c'", "s", "'1a'"),
    **{(o, 1): [quoted(p) for p in _PATTERNS] for o in ("~", "~*")},
    **{(o, 1): [quoted(p) for p in _LIKES] for o in ("~~", "!~~", "~~*", "!~~*")},
    **{(f"regexp_{n}", 1): [quoted(p) for p in _PATTERNS] for n in ("like", "count", "instr", "substr", "match", "split_to_array", "replace")},
    **{("regexp_instr", k): _SMALL for k in (2, 3, 4, 6)},
    ("regexp_instr", 5): [quoted(f) for f in _FLAGS],
    **{("regexp_substr", k): _SMALL for k in (2, 3, 5)},
    ("regexp_substr", 4): [quoted(f) for f in _FLAGS],
    ("regexp_count", 2): _SMALL,
    ("->", 1): ("'a'", "'b'", "''", "0", "-1", "1", "'ä'"),
    ("->>", 1): ("'a'", "'b'", "''", "0", "-1", "1", "'ä'"),
    **{(o, 1): ("'{a}'", "'{b,c}'", "'{b,c,0}'", "'{0}'", "'{}'", "'{-1}'", "'{a,NULL}'", "sa") for o in ("#>", "#>>", "#-")},
    **{(n, 1): ("'{a}'", "'{b,c}'", "'{b,c,0}'", "'{0}'", "'{}'", "'{-1}'", "'{z,y}'") for n in ("jsonb_set", "jsonb_insert", "jsonb_delete_path")},
    ("?", 1): ("'a'", "'str'", "''", "s"),
    ("make_date", 0): ("2024", "0", "-44", "i2"), ("make_date", 1): ("2", "12", "13", "0"), ("make_date", 2): ("29", "31", "1", "0"),
    ("make_time", 0): ("0", "23", "24", "-1"), ("make_time", 1): ("0", "59", "60"), ("make_time", 2): ("0", "59.999999", "60", "1.5", "f"),
    **{(n, 0): ("2024", "-44", "1", "0") for n in ("make_timestamp", "make_timestamptz")},
    **{(n, 1): ("2", "12", "13") for n in ("make_timestamp", "make_timestamptz")},
    **{(n, 2): ("29", "1", "31") for n in ("make_timestamp", "make_timestamptz")},
    **{(n, 3): ("0", "23", "24") for n in ("make_timestamp", "make_timestamptz")},
    **{(n, 4): ("0", "59") for n in ("make_timestamp", "make_timestamptz")},
    **{(n, 5): ("0", "59.5", "60") for n in ("make_timestamp", "make_timestamptz")},
    **{("make_interval", k): ("0", "1", "-2", "i2", "100") for k in range(7)},
}  # fmt: skip

# Jsonb numbers that are equal to others written in another way: where only their value counts.
_EQUAL_NUMBERS = ("'1.0'", "'1e2'", "'[1.00, 2.50]'", '\'{"a": 1.0}\'')
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
        hints = _HINTS.get((name, at))
        if name == "to_char" and at == 1:
            hints = [quoted(p) for p in (*_TIME_PICTURES, *_NUMBER_PICTURES)]
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
    if t.kind is Kind.ARRAY:
        source = e.rng.choice(ARRAYS)
    else:
        source = e.rng.choice(SCALARS)
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
        return f"({e.expr(BOOL, depth - 1)} IS {rng.choice(('', 'NOT '))}{rng.choice(('TRUE', 'FALSE', 'UNKNOWN'))})"
    if kind == 7:
        element = rng.choice(ELEMENTS)
        op = rng.choice(("=", "<>", "<", ">="))
        return f"({e.expr(element, depth - 1)} {op} {rng.choice(('ANY', 'ALL'))} ({e.expr(array(element), depth - 1)}))"
    if kind == 8:
        word = rng.choice(("LIKE", "NOT LIKE", "ILIKE", "SIMILAR TO"))
        escape = rng.choice(("", "", " ESCAPE '#'", " ESCAPE ''"))
        return f"({e.expr(TEXT, depth - 1)} {word} {quoted(rng.choice(_LIKES))}{escape})"
    if kind == 9:
        second = rng.choice(SCALARS)
        pair = [f"({e.expr(other, depth - 2)}, {e.expr(second, depth - 2)})" for _ in range(2)]
        return f"({pair[0]} {rng.choice(('=', '<', '>=', '<>'))} {pair[1]})"
    if kind == 10:
        return f"(({e.expr(TIMESTAMP, depth - 2)}, {e.expr(INTERVAL, depth - 2)}) OVERLAPS ({e.expr(TIMESTAMP, depth - 2)}, {e.expr(TIMESTAMP, depth - 2)}))"
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
        return f"format({rng.choice(('%s', '%s-%s', '%L', '%I', '%10s|%-5s', '%%%s', '%2$s %1$s'))!r}, {one}, {two})"
    if kind == 3:
        return f"({e.expr(TEXT, depth - 1)} || {one})"
    if kind == 4:
        return f"substring({e.expr(TEXT, depth - 1)} FROM {rng.choice(_SMALL)} FOR {rng.choice(_SMALL)})"
    if kind == 5:
        return f"trim({rng.choice(('BOTH', 'LEADING', 'TRAILING'))} {quoted(rng.choice(('a', ' ', 'ab', '')))} FROM {e.expr(TEXT, depth - 1)})"
    return f"quote_literal({one})"


def _extract(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != NUMERIC:
        return None
    of = e.expr(e.rng.choice((DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL)), depth - 1)
    return f"extract({e.rng.choice(_UNITS)} FROM {of})"


def _of_array(e: Expressions, t: SqlType, depth: int) -> str | None:
    rng = e.rng
    if t.kind is Kind.ARRAY and t.element is not None:
        if rng.random() < 0.5:
            low, high = rng.choice(("", "0", "1", "2", "-1")), rng.choice(("", "0", "1", "2", "9"))
            return f"({e.expr(t, depth - 1)})[{low}:{high}]"
        return f"ARRAY[{', '.join(e.expr(t.element, depth - 1) for _ in range(rng.randrange(1, 4)))}]"
    if t in ELEMENTS:
        return f"({e.expr(array(t), depth - 1)})[{rng.choice(_SMALL)}]"
    return None


def _of_json(e: Expressions, t: SqlType, depth: int) -> str | None:
    if t != JSONB:
        return None
    kinds = [k for k in TYPES if k not in (NUMERIC, array(NUMERIC))]
    one, two = (e.expr(e.rng.choice(kinds), depth - 1) for _ in range(2))
    return e.rng.choice(
        (f"to_jsonb({one})", f"jsonb_build_object('k', {one}, 'l', {two})", f"jsonb_build_array({one}, {two})")
    )


def _specials() -> Sequence[Special]:
    return (_case, _choice, _cast, _cast, _test, _test, _test, _of_text, _of_text, _extract, _of_array, _of_json)
