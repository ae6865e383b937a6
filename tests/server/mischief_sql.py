"""Names, literals and statements that have broken programs before, from a random number generator."""

from __future__ import annotations

import random

_WORDS = [
    "a",
    "select",
    "NULL",
    "undefined",
    "True",
    "constructor",
    "\u202etest\u202c",
    "\u0301\u0302\u0303",
    "\U0001f469\u200d\U0001f52c",
    "\ufeff",
    "\u200b",
    "\u2028",
    "\uffff",
    "Ω≈ç√∫˜µ≤≥÷",
    "田中さん",
    "社會科學院",
    "ثم نفس",
    "1;DROP TABLE users",
    "' OR 1=1 -- 1",
    '"; --',
    "/* */ --",
    "$$",
    "$1",
    "%s%s%n",
    "{0}",
    "../../../etc/passwd",
    "<script>alert(1)</script>",
    "\\",
    "\\x41",
    "\t",
    "\r\n",
    "\x01\x7f",
    "İ",
    "ß",
    "ﬀ",
    "0x0",
    "1e400",
    "NaN",
    "-0",
    "e\u0301",
    "x" * 255,
    "x" * 256,
    "é" * 127,
]
_NUMBERS = [
    "0",
    "-0",
    "00000000000000000001",
    "9223372036854775807",
    "9223372036854775808",
    "1" * 60,
    "0." + "1" * 60,
    "1e308",
    "1e309",
    "1e-400",
    "1_000",
    "0x1F",
    "0b1",
    "1.",
    ".5",
    "1e",
    "1..2",
]
_LITERALS = [
    "E'\\000'",
    "E'\\uD800'",
    "E'\\U0010FFFF'",
    "E'\\x'",
    "E'\\'",
    "U&'\\0041'",
    "B'0101'",
    "X'zz'",
    "$$a$$",
    "$x$a$y$b$x$",
    "'a' 'b'",
    "'a'\n'b'",
    "''''",
    "date '0000-00-00'",
    "timestamp '294276-12-31 23:59:59.999999'",
    "timestamp 'infinity'",
    "interval '1 year 2 mons 3 days 04:05:06.789'",
    "interval '99999999999 years'",
    "'{1,{2}}'::int[]",
    "'{'::jsonb",
    "'[' || ']'",
    "'\\xZZ'::bytea",
    "'x'::nosuch",
    "NULL::int[][]",
    "ARRAY[]",
    "ROW()",
    "DEFAULT",
]
_TOKENS = [
    *(
        "select",
        "from",
        "where",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        "*",
        "=",
        "<>",
        "::",
        "||",
        "->",
        "@>",
        "~",
        ".",
    ),
    *("'", '"', "$1", "$0", "$99999", "1", "'a'", "NULL", "case", "when", "then", "end", "and", "not", "in"),
    *("with", "as", "join", "on", "group", "by", "order", "limit", "union", "values", "over", "lateral"),
    *("create", "table", "insert", "into", "copy", "subscribe", "--", "/*", "*/", "\\", ":=", "=>", "@", "`"),
]
_SETTINGS = ["timezone", "application_name", "statement_timeout", "search_path", "client_min_messages", "x.y"]


def word(rng: random.Random) -> str:
    return rng.choice(_WORDS)


def text(rng: random.Random, longest: int) -> str:
    """Any text without NUL, which frames cannot carry."""
    if rng.random() < 0.5:
        return word(rng)
    return "".join(chr(rng.choice([rng.randrange(1, 128), rng.randrange(1, 0xD800)])) for _ in range(longest))


def ident(rng: random.Random) -> str:
    return '"' + word(rng).replace('"', '""') + '"'


def literal(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return "'" + word(rng).replace("'", "''") + "'"
    return rng.choice(_NUMBERS if kind < 0.7 else _LITERALS)


def _nested(rng: random.Random) -> str:
    depth = rng.choice([5, 60, 120, 200, 1000, 5000])
    return rng.choice(
        [
            lambda: "SELECT " + "(" * depth + "1" + ")" * depth,
            lambda: "SELECT " + "-" * depth + "1",
            lambda: "SELECT " + "- " * depth + "1",
            lambda: "SELECT " + "NOT " * depth + "true",
            lambda: "SELECT " + "1+" * depth + "1",
            lambda: "SELECT " + "'a'||" * depth + "'a'",
            lambda: "SELECT " + "upper(" * depth + "'a'" + ")" * depth,
            lambda: "SELECT " + "ARRAY[" * depth + "1" + "]" * depth,
            lambda: "SELECT " + "CASE WHEN true THEN " * depth + "1" + " END" * depth,
            lambda: "SELECT * FROM " + "(SELECT * FROM " * depth + "t" + ") x" * depth,
            lambda: "SELECT 1" + " UNION SELECT 1" * depth,
            lambda: "SELECT 1 WHERE 1 IN (" + "1," * depth + "1)",
            lambda: "SELECT 1 WHERE " + "true AND " * depth + "true",
            lambda: "WITH " + ", ".join(f"c{n} AS (SELECT 1)" for n in range(min(depth, 300))) + " SELECT 1",
            lambda: "SELECT 1" + "::int" * depth,
            lambda: "SELECT '" + "[" * depth + "]" * depth + "'::jsonb",
            lambda: "/*" * depth + "*/" * depth + " SELECT 1",
            lambda: "(" * depth,
            lambda: "SELECT " + "x." * min(depth, 50) + "y",
            lambda: "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(min(depth, 1700))),
        ]
    )()


def statement(rng: random.Random) -> str:
    """Any statement, or what looks like one."""
    kind = rng.random()
    if kind < 0.2:
        return " ".join(rng.choice(_TOKENS) for _ in range(rng.randrange(1, 40)))
    if kind < 0.35:
        return _nested(rng)
    if kind < 0.45:
        return text(rng, rng.randrange(1, 200))
    a, b, c = ident(rng), ident(rng), literal(rng)
    return rng.choice(
        [
            f"SELECT {c}",
            f"SELECT {c} AS {a}",
            f"SELECT {a} FROM {b}",
            f"SELECT * FROM {a}.{b} WHERE {a} = {c}",
            f"SELECT {c} + {literal(rng)}",
            f"SELECT {c} = {literal(rng)}",
            f"SELECT {c} IN ({literal(rng)}, {literal(rng)})",
            f"SELECT {rng.choice(['upper', 'length', 'abs', 'now', 'nosuch', 'coalesce'])}({c})",
            f"SELECT CAST({c} AS {rng.choice(['int4', 'text', 'numeric(38,10)', 'date', 'jsonb', 'uuid'])})",
            f"SELECT $1, ${rng.choice([1, 2, 3, 65535, 65536, 99999999999])}",
            f"SELECT x FROM (VALUES ({c}), ({literal(rng)})) AS {a} (x)",
            f"INSERT INTO {a} VALUES ({c})",
            f"UPDATE {a} SET {b} = {c}",
            f"DELETE FROM {a} WHERE {b} LIKE {c}",
            f"COPY {a} ({b}) FROM STDIN WITH (DELIMITER {c})",
            f"COPY (SELECT {c}) TO STDOUT (FORMAT csv, QUOTE {c})",
            f"SUBSCRIBE {a}",
            f"DECLARE {a} CURSOR FOR SELECT {c}",
            f"EXPLAIN SELECT {c}",
            f"CREATE VIEW {a} AS SELECT {c}",
            f"SELECT {c} AS OF {literal(rng)}",
            f"SELECT 1 LIMIT {c} OFFSET {literal(rng)}",
            f"SELECT 1 ORDER BY {c}",
        ]
    )


def harmless(rng: random.Random) -> str:
    """A text that may be run, many times, on a server without Spark."""
    a, c = ident(rng), literal(rng)
    value = "'" + word(rng).replace("'", "''") + "'"
    if rng.random() < 0.03:
        return f"CREATE TABLE {a} ({ident(rng)} text); DROP TABLE {a}"
    return rng.choice(
        [
            f"SELECT {value}",
            f"SELECT {value} AS {a}, {value}",
            f"SET {rng.choice(_SETTINGS)} = {c}; RESET ALL; SET statement_timeout = '200ms'",
            f"BEGIN; SET LOCAL application_name = {value}; SHOW application_name; ROLLBACK",
            f"SHOW {rng.choice(_SETTINGS)}",
            f"PREPARE {a} AS SELECT $1::text; EXECUTE {a} ({value}); DEALLOCATE {a}",
            f"DEALLOCATE {a}",
            f"FETCH {rng.choice(['1', 'ALL', '-1', '99999999999999999999'])} FROM {a}",
            f"SAVEPOINT {a}",
            f"SELECT {value}; {text(rng, 20)}",
            "".join(f"SELECT {n};" for n in range(rng.randrange(50))),
            text(rng, 40),
            _nested(rng) + " nonsense nonsense",
        ]
    )
