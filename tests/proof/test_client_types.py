"""Every type goes through a table and comes back the same: by literal, by parameter, by COPY, in text and in
binary, to psycopg and to asyncpg."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, LiteralString, cast
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

UTC = dt.UTC
# Type, a literal, and the value that clients know it by. The first few are at the edges of their types.
TYPES: list[tuple[LiteralString, LiteralString, Any]] = [
    ("bool", "true", True),
    ("int2", "-32768", -32768),
    ("int4", "-2147483648", -2147483648),
    ("int8", "-9223372036854775808", -(2**63)),
    ("float4", "'1.5e-3'", 0.0015),
    ("float8", "'-0.1'", -0.1),
    ("numeric(10,2)", "'-12345678.90'", Decimal("-12345678.90")),
    (
        "numeric",
        "'12345678901234567890.123456789012345678'",
        Decimal("12345678901234567890.123456789012345678"),
    ),
    ("text", "'it''s \\ \"quoted\" € 🙂\t\n'", 'it\'s \\ "quoted" € 🙂\t\n'),
    ("varchar(5)", "'ab '", "ab "),
    ("char(4)", "'ab'", "ab  "),
    ("bytea", "'\\x00ff5c'", b"\x00\xff\\"),
    ("date", "'0001-01-01'", dt.date(1, 1, 1)),
    ("time", "'23:59:59.999999'", dt.time(23, 59, 59, 999999)),
    ("timestamp", "'1969-12-31 23:59:59.999999'", dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ("timestamptz", "'2024-02-29 01:02:03.456789+02'", dt.datetime(2024, 2, 28, 23, 2, 3, 456789, UTC)),
    ("interval", "'-3 days 04:05:06.7'", dt.timedelta(days=-3, hours=4, minutes=5, seconds=6.7)),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("jsonb", """'{"a": [1, 2.5, null, "x"], "": {}}'""", {"a": [1, 2.5, None, "x"], "": {}}),
    ("bool[]", "'{t,NULL,f}'", [True, None, False]),
    ("int4[]", "'{1,NULL,-3}'", [1, None, -3]),
    ("int8[]", "'{}'", []),
    ("text[]", """'{a,"b, c",NULL,"NULL","\\"","\\\\"}'""", ["a", "b, c", None, "NULL", '"', "\\"]),
    ("numeric[]", "'{1.5,-2}'", [Decimal("1.5"), Decimal(-2)]),
    ("float8[]", "'{1.5,Infinity}'", [1.5, math.inf]),
    ("date[]", "'{2024-02-29}'", [dt.date(2024, 2, 29)]),
    ("timestamptz[]", "'{2024-01-01 00:00:00+00}'", [dt.datetime(2024, 1, 1, tzinfo=UTC)]),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", [UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
]
# Types of which PostgreSQL's clients know nothing: they see text.
OWN_TYPES: list[tuple[LiteralString, LiteralString, Any]] = [
    ("uint2", "65535", "65535"),
    ("uint4", "4294967295", "4294967295"),
    ("uint8", "18446744073709551615", "18446744073709551615"),
    ("int4 list", "'{1,NULL,3}'", "{1,NULL,3}"),
    ("text list list", "'{{a,b},{c}}'", "{{a,b},{c}}"),
    ("map[text=>int4]", "'{a=>1,b=>NULL}'", "{a=>1,b=>NULL}"),
]


def create(connection: psycopg.Connection[Any], table: str, types: Sequence[str]) -> None:
    columns = [
        sql.SQL(cast(LiteralString, "{} " + t)).format(sql.Identifier(f"c{n}")) for n, t in enumerate(types)
    ]
    text = sql.SQL("CREATE TABLE {} (k int4, {})")
    connection.execute(text.format(sql.Identifier(table), sql.SQL(", ").join(columns)))


def rows_of(connection: psycopg.Connection[Any], table: str, *, binary: bool) -> list[tuple[Any, ...]]:
    text = sql.SQL("SELECT * FROM {} ORDER BY k").format(sql.Identifier(table))
    with connection.cursor(binary=binary) as cursor:
        return cursor.execute(text).fetchall()


def same(found: Any, expected: Any) -> bool:
    """float4 comes back as the nearest float8 in binary."""
    return found == expected or (isinstance(expected, float) and math.isclose(found, expected, rel_tol=1e-7))


def check_rows(found: list[tuple[Any, ...]], keys: int) -> None:
    """`keys` rows of values, then one of nulls."""
    assert [row[0] for row in found] == list(range(keys + 1))
    for row in found[:keys]:
        for (name, _, expected), value in zip(TYPES, row[1:], strict=True):
            assert same(value, expected), (name, value, expected)
    assert set(found[keys][1:]) == {None}


def adapt(name: str, value: Any) -> Any:
    return Jsonb(value) if name == "jsonb" else value


def test_psycopg_round_trips(connection: psycopg.Connection[Any], table: str) -> None:
    create(connection, table, [name for name, _, _ in TYPES])
    into = sql.SQL("INSERT INTO {} VALUES ({})")
    literals = sql.SQL(", ").join([sql.SQL("0"), *(sql.SQL(literal) for _, literal, _ in TYPES)])
    connection.execute(into.format(sql.Identifier(table), literals))
    values = [adapt(name, value) for name, _, value in TYPES]
    for key, placeholder in enumerate(("%t", "%b"), 1):
        marks = sql.SQL(", ").join([sql.SQL(placeholder)] * (len(TYPES) + 1))
        connection.execute(into.format(sql.Identifier(table), marks), [key, *values])
    # As strings, whose type the server finds by the column.
    marks = sql.SQL(", ").join([sql.SQL("%s")] * (len(TYPES) + 1))
    connection.execute(into.format(sql.Identifier(table), marks), [3, *[None] * len(TYPES)])
    check_rows(rows_of(connection, table, binary=False), 3)
    check_rows(rows_of(connection, table, binary=True), 3)


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copy_round_trips(connection: psycopg.Connection[Any], table: str, form: LiteralString) -> None:
    every = [*TYPES, *OWN_TYPES]
    create(connection, table, [name for name, _, _ in every])
    create(connection, f"{table}_2", [name for name, _, _ in every])
    literals = sql.SQL(", ").join([sql.SQL("0"), *(sql.SQL(literal) for _, literal, _ in every)])
    nulls = sql.SQL(", ").join([sql.SQL("1"), *[sql.SQL("NULL")] * len(every)])
    insert = sql.SQL("INSERT INTO {} VALUES ({}), ({})").format(sql.Identifier(table), literals, nulls)
    connection.execute(insert)
    out = sql.SQL("COPY {} TO STDOUT (FORMAT " + form + ")").format(sql.Identifier(table))
    with connection.cursor().copy(out) as copy:
        data = b"".join(bytes(block) for block in copy)
    into = sql.SQL("COPY {} FROM STDIN (FORMAT " + form + ")").format(sql.Identifier(f"{table}_2"))
    cursor = connection.cursor()
    with cursor.copy(into) as copy:
        copy.write(data)
    assert cursor.statusmessage == "COPY 2"
    original = rows_of(connection, table, binary=False)
    assert rows_of(connection, f"{table}_2", binary=False) == original
    own = dict(zip([name for name, _, _ in OWN_TYPES], original[0][-len(OWN_TYPES) :], strict=True))
    assert own == {name: shown for name, _, shown in OWN_TYPES}


def test_psycopg_copies_rows_in_binary(connection: psycopg.Connection[Any], table: str) -> None:
    known = [(name, value) for name, _, value in TYPES if "(" not in name and name != "jsonb"]
    create(connection, table, [name for name, _ in known])
    into = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(table))
    with connection.cursor().copy(into) as copy:
        copy.set_types(["int4", *(name for name, _ in known)])
        copy.write_row([0, *(value for _, value in known)])
        copy.write_row([1, *[None] * len(known)])
    found = rows_of(connection, table, binary=True)
    assert all(same(a, b) for a, b in zip(found[0][1:], [value for _, value in known], strict=True)), found[0]
    assert set(found[1][1:]) == {None}


def test_asyncpg_round_trips(connection: psycopg.Connection[Any], table: str, dsn: str) -> None:
    """asyncpg speaks binary only, and has the server tell it every parameter's type. It asks pg_type about
    arrays, which is for another day."""
    known = [(name, value) for name, _, value in TYPES if name != "jsonb" and "[" not in name]
    create(connection, table, [name for name, _ in known])

    async def go() -> list[Any]:
        client = await asyncpg.connect(**connect_arguments(dsn))
        try:
            marks = ", ".join(f"${n + 1}" for n in range(len(known) + 1))
            await client.execute(f"INSERT INTO {table} VALUES ({marks})", 0, *(value for _, value in known))
            await client.copy_records_to_table(
                table, records=[(1, *(value for _, value in known)), (2, *[None] * len(known))]
            )
            return await client.fetch(f"SELECT * FROM {table} ORDER BY k")
        finally:
            await client.close()

    found = asyncio.run(go())
    for row in found[:2]:
        for (name, expected), value in zip(known, tuple(row)[1:], strict=True):
            assert same(value, expected), (name, value, expected)
    assert set(tuple(found[2])[1:]) == {None}


def connect_arguments(dsn: str) -> dict[str, Any]:
    of = dict(pair.split("=", 1) for pair in dsn.split())
    return {
        "host": of["host"],
        "port": int(of["port"]),
        "user": of["user"],
        "database": of["dbname"],
        "timeout": 60,
    }
