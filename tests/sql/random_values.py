"""The values that random expressions are made of, and the table w that holds them: ends of ranges, NULL,
minus zero, NaN, infinities, empty and blank texts, characters of several bytes, dates before Christ,
intervals of mixed signs, arrays with NULLs, nested documents."""

from __future__ import annotations

from collections.abc import Sequence

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
    BOOL,
    INT2,
    INT4,
    INT8,
    FLOAT4,
    FLOAT8,
    NUMERIC,
    TEXT,
    VARCHAR,
    BPCHAR,
    BYTEA,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    INTERVAL,
    UUID,
    JSONB,
)
ELEMENTS = (INT4, TEXT, FLOAT8, NUMERIC, DATE, BOOL)
ARRAYS = tuple(array(e) for e in ELEMENTS)
TYPES = SCALARS + ARRAYS

# The table w, one column per type: every value below in some row.
COLUMNS: dict[str, SqlType] = {
    "i2": INT2,
    "i": INT4,
    "l": INT8,
    "r": FLOAT4,
    "f": FLOAT8,
    "n": NUMERIC,
    "m": NUMERIC,
    "s": TEXT,
    "vc": VARCHAR,
    "c": BPCHAR,
    "y": BYTEA,
    "b": BOOL,
    "d": DATE,
    "t": TIME,
    "ts": TIMESTAMP,
    "tz": TIMESTAMPTZ,
    "iv": INTERVAL,
    "u": UUID,
    "j": JSONB,
    "a": array(INT4),
    "sa": array(TEXT),
    "fa": array(FLOAT8),
    "na": array(NUMERIC),
    "da": array(DATE),
    "ba": array(BOOL),
}
_DECLARED = {"m": "numeric(10,2)", "vc": "varchar(10)", "c": "char(5)"}
ROWS = 12

_ASTRAL = "\U0001d11e"
VALUES: dict[SqlType, Sequence[str]] = {
    BOOL: ("true", "false"),
    INT2: ("0", "1", "-1", "2", "7", "32767", "-32768", "100", "-3"),
    INT4: ("0", "1", "-1", "2", "3", "-7", "2147483647", "-2147483648", "10", "65536", "1000000", "-100"),
    INT8: ("0", "1", "-1", "5", "9223372036854775807", "-9223372036854775808", "4294967296", "-42", "86400"),
    FLOAT4: (
        "0",
        "-0",
        "1.5",
        "-2.25",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e30",
        "3.4028235e38",
        "1e-40",
        "0.1",
        "16777217",
        "-7",
    ),
    FLOAT8: (
        "0",
        "-0",
        "2.5",
        "-0.1",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e100",
        "1.7976931348623157e308",
        "5e-324",
        "0.3333333333333333",
        "9007199254740993",
        "123456789.125",
        "-3.5",
        "1e15",
        "1e-5",
    ),
    NUMERIC: (
        "0",
        "1",
        "-1",
        "0.5",
        "2.5",
        "-2.5",
        "12345.6789",
        "99999999999.999999999999",
        "0.000000000000000001",
        "-98765432109876.5",
        "3.14159265358979",
        "1e5",
        "-0.1",
        "1000000",
    ),
    TEXT: (
        "",
        " ",
        "a",
        "abc",
        "ABC def",
        " x  y ",
        "ÄÖ ü€",
        _ASTRAL + "x",
        "e\u0301a",
        "a%b_c\\d",
        "12",
        "-7",
        "2024-02-29",
        "true",
        "hello world",
        "a,b,,c",
        "ñ",
        "日本語",
        "\t\n",
        "{1,2}",
        "x'y\"z",
        "1.50",
        "aAbB",
    ),
    VARCHAR: ("", "abc", "x y  ", "é", "12", "A_%"),
    BPCHAR: ("", "ab", "xy z", "A", "é"),
    BYTEA: ("\\x", "\\x00", "\\x00ff10", "\\x616263", "\\xdeadbeef", "\\xc3a4", "\\x5c"),
    DATE: (
        "2020-02-29",
        "1999-12-31",
        "2000-01-01",
        "1970-01-01",
        "0044-03-15 BC",
        "0001-01-01",
        "infinity",
        "-infinity",
        "9999-12-31",
        "20000-06-15",
        "1582-10-10",
        "2024-03-31",
    ),
    TIME: ("00:00:00", "23:59:59.999999", "12:34:56.789", "10:20:30.5", "24:00:00", "02:30:00"),
    TIMESTAMP: (
        "2020-02-29 10:20:30.123456",
        "1999-12-31 23:59:59",
        "1969-12-31 23:59:59.5",
        "infinity",
        "-infinity",
        "0044-03-15 12:00:00 BC",
        "0001-01-01 00:00:00",
        "20000-06-15 01:02:03",
        "2023-10-29 02:30:00",
        "2000-01-01 00:00:00",
        "1582-10-04 00:00:00.000001",
    ),
    TIMESTAMPTZ: (
        "2020-02-29 10:20:30.5+00",
        "1999-12-31 23:59:59.999999+00",
        "1970-01-01 00:00:00+00",
        "infinity",
        "-infinity",
        "2038-01-19 03:14:08+00",
        "0044-03-15 12:00:00+00 BC",
        "2023-10-29 01:30:00+02",
        "1883-11-18 17:00:00+00",
    ),
    INTERVAL: (
        "0",
        "1 mon 2 days 03:04:05",
        "-1 days",
        "1 mon -30 days",
        "-1 mon +1 day -00:00:01",
        "24:00:00",
        "00:00:00.000001",
        "2 years -3 months",
        "100 years",
        "-00:00:00.5",
        "125:59:01",
        "-9 years -8 mons -7 days -06:05:04.3",
        "1000 days 1000:00:00",
        "infinity",
        "-infinity",
    ),
    UUID: (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "01890a5d-ac96-774b-bcce-b302099a8057",
    ),
    JSONB: (
        '{"a": 1, "b": {"c": [1, 2, "x"]}, "s": "t"}',
        "[1, 2.5, null, true]",
        '"str"',
        "{}",
        "[]",
        "3",
        "null",
        "true",
        '{"a": [{"b": null}], "": ""}',
        "-0.5",
        '[[1], {"k": "v"}]',
        '"1"',
        "100",
        '{"ä": "\U0001d11e", "a b": "\\n\\""}',
        "12345678901234567890",
        "false",
    ),
    array(INT4): ("{}", "{1,2,3}", "{NULL,5}", "{7}", "{3,3,1,NULL}", "{-2147483648,2147483647}"),
    array(TEXT): ("{}", "{a,b,NULL}", '{"a b","c,d",""}', '{"NULL","\\"q\\""}', "{ä,日}", "{x}"),
    array(FLOAT8): ("{}", "{1.5,NULL,NaN}", "{0,2.5}", "{Infinity,-2.5}", "{1e100}"),
    array(NUMERIC): ("{}", "{1.5,NULL}", "{0.1,-2.25,3}", "{10}"),
    array(DATE): ("{}", "{2020-02-29,NULL}", "{infinity,1999-12-31}", '{"0044-03-15 BC"}'),
    array(BOOL): ("{}", "{t,f,NULL}", "{t}", "{f,f}"),
}


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
